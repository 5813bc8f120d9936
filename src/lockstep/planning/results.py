"""What a plan says, as values: per stage and phase, with its verdict. Light, so that the host side can show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

PLANNED = ("sft", "ppo")
"""Stages that are planned. `evaluate` and `reward` hold the same model with less beside it."""
PHASES = ("load", "forward", "backward", "rollout", "scoring", "update", "optimizer", "save", "resume", "export")
"""The phases of a stage in the order in which they are shown."""
TIGHT_FRACTION = 0.03
"""A smaller margin than this part of the memory is called tight."""


class Kind(StrEnum):
    """What bytes on the device are for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    KV_CACHE = "kv_cache"
    UNSHARDED = "unsharded"
    COMMUNICATION = "communication"
    TEMPORARY = "temporary"


@dataclass(frozen=True)
class PhaseUse:
    """The fullest point of a phase on one GPU."""

    kinds: dict[str, int]
    """Live bytes by kind."""
    part: str = ""
    """Where in the model that point is."""

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Range:
    """From the best to the worst that was assumed."""

    best: float
    worst: float


@dataclass(frozen=True)
class TimeUse:
    """How much work a stage is, and how long it takes at the stated utilisation."""

    tokens_per_step: int
    num_steps: int | None
    """None where it follows from the size of the data."""
    flops_per_step: float
    """Model FLOPs of all ranks together; recomputation does not count."""
    utilisation: Range | None
    """The assumed fraction of peak FLOP/s; None without a peak (CPUs)."""
    step_s: Range | None = None
    hours: Range | None = None
    gpu_hours: Range | None = None


@dataclass(frozen=True)
class StorageUse:
    """Host memory per node, and disk."""

    host_load_bytes_per_node: int
    host_save_bytes_per_node: int
    checkpoint_bytes: int
    num_kept: int
    """Checkpoints on disk at the fullest moment: the kept ones, the permanent ones and the one being written."""
    kept_bytes: int
    export_bytes: int


@dataclass(frozen=True)
class Saving:
    """What one technique saves on each GPU, against the same stage without it."""

    technique: str
    used: bool
    with_bytes: int
    without_bytes: int
    how: str
    """`simulated`, or the arithmetic behind it."""

    @property
    def fraction(self) -> float:
        """The part of the memory that it saves."""
        return 1 - self.with_bytes / self.without_bytes if self.without_bytes else 0.0


@dataclass(frozen=True)
class Suggestion:
    """A change that helps, with what the plan says after it."""

    change: str
    peak_bytes: int
    verdict: str


@dataclass(frozen=True)
class StagePlan:
    """One stage on one kind of hardware. Bytes are per GPU (or per process on CPUs) unless said."""

    stage: str
    num_ranks: int
    num_nodes: int
    capacity_bytes: int
    phases: dict[str, PhaseUse]
    allowance: dict[str, int]
    """What no tensor accounts for, by cause."""
    storage: StorageUse
    time: TimeUse
    num_parameters: int
    num_trained: int
    host_capacity_bytes: int | None = None
    savings: list[Saving] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        """Live tensor bytes at the fullest point of the stage."""
        return max(phase.total_bytes for phase in self.phases.values())

    @property
    def allowance_bytes(self) -> int:
        """All of the allowance."""
        return sum(self.allowance.values())

    @property
    def margin_bytes(self) -> int:
        """What is left; negative where it does not fit."""
        return self.capacity_bytes - self.peak_bytes - self.allowance_bytes

    @property
    def host_bytes_per_node(self) -> int:
        """The larger of loading and saving."""
        return max(self.storage.host_load_bytes_per_node, self.storage.host_save_bytes_per_node)

    @property
    def verdict(self) -> str:
        """`fits`, `tight` or `no`."""
        if self.host_capacity_bytes is not None and self.host_bytes_per_node > self.host_capacity_bytes:
            return "no"
        if self.margin_bytes < 0:
            return "no"
        return "tight" if self.margin_bytes < TIGHT_FRACTION * self.capacity_bytes else "fits"

    def as_json(self) -> dict[str, Any]:
        """Plain data with the totals spelt out."""
        plain = asdict(self)
        plain["phases"] = {name: _phase(phase) for name, phase in self.phases.items()}
        plain["savings"] = [asdict(saving) | {"saves_fraction": saving.fraction} for saving in self.savings]
        return plain | {
            "peak_gpu_bytes": self.peak_bytes,
            "allowance_bytes": self.allowance_bytes,
            "margin_bytes": self.margin_bytes,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Plan:
    """All stages of an experiment that train."""

    name: str
    hardware: str
    stages: list[StagePlan]

    def as_json(self) -> dict[str, Any]:
        """Plain data. At the top: the largest needs over the stages, each phase at its fullest, the worst verdict."""
        largest = max(self.stages, key=lambda stage: stage.peak_bytes + stage.allowance_bytes)
        phases: dict[str, dict[str, Any]] = {}
        for stage in self.stages:
            for name, phase in stage.phases.items():
                if name not in phases or phase.total_bytes > phases[name]["total_bytes"]:
                    phases[name] = _phase(phase) | {"stage": stage.stage}
        storage = [stage.storage for stage in self.stages]
        return {
            "name": self.name,
            "hardware": self.hardware,
            "stage": largest.stage,
            "peak_gpu_bytes": largest.peak_bytes,
            "allowance_bytes": largest.allowance_bytes,
            "capacity_bytes": largest.capacity_bytes,
            "margin_bytes": min(stage.margin_bytes for stage in self.stages),
            "phases": phases,
            "verdict": self.verdict,
            "host_load_bytes_per_node": max(use.host_load_bytes_per_node for use in storage),
            "host_save_bytes_per_node": max(use.host_save_bytes_per_node for use in storage),
            "checkpoint_bytes": max(use.checkpoint_bytes for use in storage),
            "kept_bytes": sum(use.kept_bytes + use.export_bytes for use in storage),
            "stages": {stage.stage: stage.as_json() for stage in self.stages},
        }

    @property
    def verdict(self) -> str:
        """The worst of the stages'."""
        return max((stage.verdict for stage in self.stages), key=["fits", "tight", "no"].index)


def _phase(phase: PhaseUse) -> dict[str, Any]:
    return {"total_bytes": phase.total_bytes, "kinds": phase.kinds, "part": phase.part}
