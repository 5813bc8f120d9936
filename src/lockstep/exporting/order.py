"""What the command line asks of the worker that exports. Needs no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment, parse_experiment
from lockstep.params.model import QuantizationParams
from lockstep.runs.directory import RunDirectory

EXPORTED_STAGES = ("sft", "reward", "ppo")
NEWEST: Final = "last"


@dataclass(frozen=True)
class Order:
    """One export. Paths are absolute."""

    run_dir: str
    project: str
    dest: str
    step: int | Literal["last"] | None
    """A checkpoint; None: what the complete run made."""
    merge: bool
    max_shard_bytes: int
    inputs: dict[str, str] = field(default_factory=dict)
    """The run's inputs that this export needs, by name, already compared with what the run locked."""

    def argument(self) -> str:
        """For the worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> Order:
        """What `argument` wrote."""
        return cls(**json.loads(argument))

    @property
    def directory(self) -> RunDirectory:
        """The run's folder."""
        return RunDirectory(Path(self.run_dir))

    @cached_property
    def record(self) -> dict[str, Any]:
        """The run's record. Raises UsageError where there is none."""
        record = self.directory.read()
        if record is None:
            raise UsageError(f"{self.run_dir} holds no recorded run.")
        return record

    @property
    def stage(self) -> str:
        """Whose run it is."""
        return str(self.record["stage"])

    @cached_property
    def experiment(self) -> Experiment:
        """The parameters that the run was started with. Raises UsageError where this version does not know them."""
        try:
            return parse_experiment(self.record["params"], where=f"{self.run_dir}/run.json")
        except UsageError as error:
            commit = self.record["provenance"].get("git", {}).get("commit", "unknown")
            raise UsageError(
                f"{error}\nAnother version of Lockstep recorded it; export it with that one, in a checkout of {commit}."
            ) from None

    @property
    def trains_adapter(self) -> bool:
        """Whether the run trains an adapter, and not all parameters of a model."""
        return self.stage != "sft" or self.experiment.sft.peft is not None

    @property
    def quantization(self) -> QuantizationParams | None:
        """How the run's frozen base was quantised."""
        params = self.experiment
        return params.ppo.backbone_quantization(params.model) if self.stage == "ppo" else params.model.quantization

    def input(self, name: str) -> Path:
        """The path of an input."""
        return Path(self.inputs[name])

    @property
    def needed_inputs(self) -> tuple[str, ...]:
        """The names of the run's inputs without which the order cannot be carried out."""
        if self.step is None and not self.merge:
            return ()
        if self.stage != "sft":
            return ("model", "sft")
        return ("model", "tokens") if self.merge or not self.trains_adapter else ("model",)
