"""The whole experiment as one typed value, read from params.yaml; every mistake in the file is named at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lockstep.foundation.errors import UsageError, nearest
from lockstep.params.base import Strict
from lockstep.params.data import DataParams
from lockstep.params.evaluate import EvaluateParams
from lockstep.params.flavours import FlavourParams
from lockstep.params.model import ModelParams
from lockstep.params.ppo import PpoParams
from lockstep.params.retired import successor
from lockstep.params.reward import RewardParams
from lockstep.params.run import RunParams
from lockstep.params.sft import SftParams, check_trainable


class Experiment(Strict):
    """Everything params.yaml may say. All but the section `run` (and fields marked operational) decides results."""

    seed: int = Field(ge=0, lt=2**31, description="the one seed from which every stage derives its own")
    environment: FlavourParams
    model: ModelParams
    data: DataParams
    sft: SftParams
    reward: RewardParams
    ppo: PpoParams
    evaluate: EvaluateParams
    run: RunParams = RunParams()

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        """Combinations over several sections that could only fail later."""
        check_trainable(self.sft, self.model)
        reward = self.ppo.reward
        if self.model.precision.compute == "fp16" and (self.ppo.enabled or self.reward.enabled):
            raise ValueError("ppo and reward scale no loss, which fp16 needs: write model.precision.compute: bf16")
        if self.ppo.enabled and not self.data.prompts.sources:
            raise ValueError("ppo has no prompts: name data.prompts.sources, or write ppo.enabled: false")
        if self.ppo.enabled and reward.kind == "model" and not self.reward.enabled:
            raise ValueError("ppo.reward.kind: model needs the reward stage; write reward.enabled: true")
        if self.reward.enabled and not self.data.preferences.sources:
            raise ValueError("reward has no pairs: name data.preferences.sources, or write reward.enabled: false")
        if self.ppo.enabled and reward.kind == "learned" and not self.data.reviews.sources:
            raise ValueError("ppo.reward.kind: learned is fitted to data.reviews.sources, and none is named")
        if reward.file is not None and not reward.file.startswith("rewards/"):
            raise ValueError(f"ppo.reward.file: put {reward.file} below rewards/, the folder that DVC watches for ppo")
        return self


def load_experiment(path: Path) -> Experiment:
    """Reads and checks a parameter file.

    Raises UsageError naming every wrong key with its place, what is wrong and how to mend it.
    """
    return parse_experiment(read_yaml(path), where=path.name)


def read_yaml(path: Path) -> Any:
    """Plain data of a YAML 1.2 file (so `1e-5` is a number). Raises UsageError with line and column."""
    if not path.exists():
        raise UsageError(f"{path.name} is not here.\nWrite one with: ./lockstep use recipes/smollm2-135m-cpu.yaml")
    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise UsageError(f"{path.name} is not valid YAML:\n{error}") from None


def parse_experiment(raw: Any, where: str = "params.yaml") -> Experiment:
    """Validates plain data; raises UsageError as `load_experiment` does."""
    if not isinstance(raw, Mapping):
        raise UsageError(f"{where}: expected sections (seed, model, data, sft, …), found {type(raw).__name__}.")
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {_explain(problem)}" for problem in error.errors()]
        plural = "s" if len(lines) > 1 else ""
        raise UsageError(f"{where}: {len(lines)} mistake{plural}, nothing was started.\n" + "\n".join(lines)) from None


def _explain(problem: Any) -> str:
    location = list(problem["loc"])
    key = ".".join(str(part) for part in location)
    kind = problem["type"]
    if kind == "extra_forbidden":
        moved = successor(key)
        known = _known_keys(location[:-1])
        hint = f" {moved}" if moved else nearest(str(location[-1]), known) or f" Known here: {', '.join(known)}."
        return f"{key}: unknown parameter.{hint}"
    if kind == "missing":
        return f"{key}: missing."
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if kind == "value_error" else f" (found {problem['input']!r})"
    return f"{key or 'params'}: {message}{given}"


def _known_keys(location: list[Any]) -> list[str]:
    """The field names of the model at a location; list indices are stepped over."""
    model: type[BaseModel] = Experiment
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _model_in(model.model_fields[part].annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _model_in(argument):
            return found
    return None
