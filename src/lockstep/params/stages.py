"""The stages as a table: which parameters, inputs and code decide each one, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.foundation.errors import UsageError, nearest
from lockstep.params.base import deciding
from lockstep.params.experiment import Experiment


@dataclass(frozen=True)
class Input:
    """One thing that a stage reads. Paths are relative to the project."""

    path: str
    """What is hashed and named as a dep in dvc.yaml."""
    stage: str | None = None
    """The stage that makes it; None for data and models from outside."""
    folder: str | None = None
    """What the worker gets, where it is not `path` itself (a model's folder beside its manifest)."""


@dataclass(frozen=True)
class StageSpec:
    """Everything that decides one stage."""

    name: str
    sections: tuple[str, ...]
    """Sections of the experiment that decide it."""
    inputs: Callable[[Experiment], dict[str, Input]]
    code: tuple[str, ...]
    """Rooms and files below `src/lockstep` that decide it; fewer than it imports (tracking decides nothing)."""
    outputs: tuple[str, ...]
    """Names below `results/<stage>/` that are DVC outs."""
    num_processes: Callable[[Experiment], int] = lambda _: 1
    enabled: Callable[[Experiment], bool] = lambda _: True

    def deciding_params(self, experiment: Experiment) -> dict[str, Any]:
        """The parameters that enter the run id, as plain data."""
        everything = deciding(experiment)
        return {section: everything[section] for section in self.sections}


def _model(experiment: Experiment) -> Input:
    return Input(experiment.model.manifest, folder=experiment.model.path)


def _prepare_inputs(experiment: Experiment) -> dict[str, Input]:
    data = experiment.data
    return {
        "sft": Input(data.sft.path),
        "prompts": Input(data.prompts.path),
        "preferences": Input(data.preferences.path),
        "reviews": Input(data.reviews.path),
        "model": _model(experiment),
    }


def _sft_inputs(experiment: Experiment) -> dict[str, Input]:
    return {"tokens": Input("results/prepare/sft", stage="prepare"), "model": _model(experiment)}


def _reward_inputs(experiment: Experiment) -> dict[str, Input]:
    return {
        "preferences": Input("results/prepare/preferences", stage="prepare"),
        "model": _model(experiment),
        "sft": Input("results/sft/weights", stage="sft"),
    }


def _ppo_inputs(experiment: Experiment) -> dict[str, Input]:
    inputs = {
        "prompts": Input("results/prepare/prompts", stage="prepare"),
        "reviews": Input("results/prepare/reviews", stage="prepare"),
        "model": _model(experiment),
        "sft": Input("results/sft/weights", stage="sft"),
        "reward": Input("results/reward/weights", stage="reward"),
    }
    if experiment.ppo.reward.file is not None:
        inputs["reward_file"] = Input(experiment.ppo.reward.file.rpartition(":")[0])
    return inputs


def _evaluate_inputs(experiment: Experiment) -> dict[str, Input]:
    return {
        **_ppo_inputs(experiment),
        "tokens": Input("results/prepare/sft", stage="prepare"),
        "ppo": Input("results/ppo/weights", stage="ppo"),
    }


def _report_inputs(_: Experiment) -> dict[str, Input]:
    return {
        name: Input(f"results/{name}/result.json", stage=name, folder=f"results/{name}")
        for name in ("prepare", "sft", "reward", "ppo", "evaluate")
    }


_SHARED = ("params", "models", "training/common")

STAGES = {
    spec.name: spec
    for spec in (
        StageSpec(
            "prepare",
            ("seed", "data"),
            _prepare_inputs,
            ("params", "data", "stages/prepare.py"),
            ("result.json", "metrics.json", "samples.json", "sft", "prompts", "preferences", "reviews"),
        ),
        StageSpec(
            "sft",
            ("seed", "model", "sft"),
            _sft_inputs,
            (*_SHARED, "data", "training/sft", "stages/sft.py"),
            ("result.json", "metrics.json", "curves", "weights"),
            num_processes=lambda experiment: experiment.sft.num_processes,
            enabled=lambda experiment: experiment.sft.enabled,
        ),
        StageSpec(
            "reward",
            ("seed", "model", "reward"),
            _reward_inputs,
            (*_SHARED, "data", "training/ppo", "stages/reward.py"),
            ("result.json", "metrics.json", "weights"),
            num_processes=lambda experiment: experiment.reward.num_processes,
            enabled=lambda experiment: experiment.reward.enabled,
        ),
        StageSpec(
            "ppo",
            ("seed", "model", "ppo"),
            _ppo_inputs,
            (*_SHARED, "data", "training/ppo", "stages/ppo.py"),
            ("result.json", "metrics.json", "samples.json", "curves", "weights"),
            num_processes=lambda experiment: experiment.ppo.num_processes,
            enabled=lambda experiment: experiment.ppo.enabled,
        ),
        StageSpec(
            "evaluate",
            ("seed", "model", "ppo", "evaluate"),
            _evaluate_inputs,
            (*_SHARED, "data", "training/sft", "training/ppo", "evaluation", "stages/evaluate.py"),
            ("result.json", "metrics.json", "samples.json"),
            num_processes=lambda experiment: experiment.evaluate.num_processes,
            enabled=lambda experiment: experiment.evaluate.enabled,
        ),
        StageSpec("report", ("seed",), _report_inputs, ("reporting", "stages/report.py"), ()),
    )
}


def stage_spec(name: str) -> StageSpec:
    """The table row of a stage; raises UsageError with the nearest known name."""
    if name not in STAGES:
        raise UsageError(f"There is no stage '{name}'.{nearest(name, STAGES)} Stages: {', '.join(STAGES)}.")
    return STAGES[name]
