"""What a report is made of: per stage its results, its run's record and its curves, read from where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json
from lockstep.reporting.words import seconds_between, short
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import curves, read_points
from lockstep.tracking.system import system_spools

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class StageFacts:
    """One stage as it was run. Without a record (its run was on another machine) only the results are known."""

    name: str
    result: Mapping[str, Any]
    metrics: Mapping[str, Any]
    samples: Any
    directory: RunDirectory | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def skipped(self) -> bool:
        """True for a stage that the parameters turned off."""
        return bool(self.result.get("skipped"))

    @property
    def run_id(self) -> str:
        """The run that made the results."""
        return str(self.result.get("run_id", ""))

    @property
    def attempts(self) -> list[Mapping[str, Any]]:
        """Each start of the workers, the first one first."""
        return list(self.record.get("attempts", []))

    @property
    def seconds(self) -> float | None:
        """Time over all attempts, from start to end of each; None where it is not recorded."""
        ended = [a for a in self.attempts if "ended" in a]
        return sum(seconds_between(a["started"], a["ended"]) for a in ended) if ended else None

    @property
    def resumed_at(self) -> list[tuple[int, str]]:
        """Steps at which a later attempt went on, with what had stopped the one before."""
        following = zip(self.attempts, self.attempts[1:], strict=False)
        return [
            (int(after["start_step"]), f"attempt {after['attempt']} goes on; before: {before['reason']}")
            for before, after in following
            if after.get("start_step") is not None
        ]

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Every metric of the run's spool; a step that was replayed counts once."""
        return curves(self.directory.metrics) if self.directory else {}

    @cached_property
    def peak_memory_bytes(self) -> float | None:
        """The most memory that the process tree of a node held, as its parent saw it, or a worker itself."""
        memory = [curve for name, curve in self.system.items() if name.endswith("/system_memory_usage_megabytes")]
        sampled = [1e6 * value for curve in memory for _, value in curve]
        told = [float(a["peak_memory_bytes"]) for a in self.attempts if a.get("peak_memory_bytes")]
        return max(sampled + told, default=None)

    @cached_property
    def against_plan(self) -> tuple[float, float] | None:
        """Planned and measured peak of tensors, bytes per GPU; None where one of them is not known."""
        planned = read_json(self.directory.plan) if self.directory and self.directory.plan.exists() else {}
        told = [float(a["peak_memory_bytes"]) for a in self.attempts if a.get("peak_memory_bytes")]
        return (float(planned["peak_gpu_bytes"]), max(told)) if planned and told else None

    @cached_property
    def system(self) -> dict[str, Curve]:
        """What parents sampled of their machines, by sample; on a cluster the names say which node it was."""
        found: dict[str, Curve] = {}
        for spool in self._system_spools:
            found |= curves(spool)
        return found

    @property
    def _system_spools(self) -> list[Path]:
        root = self.directory.root if self.directory else None
        return [root / name for name in system_spools(root)] if root else []

    @cached_property
    def energy_wh(self) -> float | None:
        """What the GPUs took, in watt-hours: each sample's power over the time before it. None without GPUs."""
        joules = sum(_joules(spool) for spool in self._system_spools)
        return joules / 3600 if joules else None


def _joules(spool: Path) -> float:
    joules, before = 0.0, None
    for point in read_points(spool):
        watts = [value for key, value in point.values.items() if key.endswith("_power_usage_watts")]
        if before is not None and before.attempt == point.attempt:
            joules += sum(watts) * (point.time_ms - before.time_ms) / 1000
        before = point
    return joules


@dataclass(frozen=True)
class Material:
    """The whole experiment."""

    params: Mapping[str, Any]
    stages: Mapping[str, StageFacts]
    producers: Mapping[str, Mapping[str, str]]
    """Per stage: which stage made an input; what is not named came from outside."""

    @property
    def newest_record(self) -> Mapping[str, Any]:
        """The record of the last stage that has one: its provenance stands for the experiment's."""
        records = [stage.record for stage in self.stages.values() if stage.record]
        return records[-1] if records else {}


def commit_name(record: Mapping[str, Any]) -> str:
    """The commit that a run was started from, and whether the files differed from it."""
    git = record.get("provenance", {}).get("git", {})
    return short(git.get("commit")) + (" + changes" if git.get("dirty") is True else "")


def load_stage(name: str, results: Path, runs_root: Path) -> StageFacts:
    """Reads one stage's results folder, and its run directory where this machine has it."""
    result = read_json(results / "result.json")
    directory = RunDirectory(runs_root / name / result["run_id"]) if "run_id" in result else None
    record = directory.read() if directory else None
    return StageFacts(
        name=name,
        result=result,
        metrics=_optional(results / "metrics.json", {}),
        samples=_optional(results / "samples.json", []),
        directory=directory if record else None,
        record=record or {},
    )


def _optional(path: Path, otherwise: Any) -> Any:
    return read_json(path) if path.exists() else otherwise
