"""The layout of `runs/<stage>/<run id>/`: one place that knows the names in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json, write_json


@dataclass(frozen=True)
class RunDirectory:
    """Paths below one run's folder. The launching parent alone writes `run.json`; workers write the rest."""

    root: Path

    @property
    def run_json(self) -> Path:
        """The record: stage, status, locks, provenance, attempts, result."""
        return self.root / "run.json"

    @property
    def metrics(self) -> Path:
        """The metric spool: append-only JSON lines."""
        return self.root / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the workers printed, one file per attempt."""
        return self.root / "log"

    @property
    def control(self) -> Path:
        """Stop files and what parent and workers hand each other, per attempt."""
        return self.root / "control"

    @property
    def checkpoints(self) -> Path:
        """The checkpoint store of this run."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """A full model that the run made; never a DVC out."""
        return self.root / "model"

    @property
    def outputs(self) -> Path:
        """What becomes `results/<stage>/`: complete or absent."""
        return self.root / "outputs"

    @property
    def scratch(self) -> Path:
        """Caches and temporary files of this run."""
        return self.root / "scratch"

    def job_file(self, attempt: int) -> Path:
        """What the parent hands the workers of one attempt."""
        return self.control / f"job.{attempt}.json"

    def outcome_file(self, attempt: int) -> Path:
        """What rank 0 hands back at the end of one attempt."""
        return self.control / f"outcome.{attempt}.json"

    def stop_file(self, attempt: int) -> Path:
        """Its presence asks the workers of one attempt to save and stop."""
        return self.control / f"stop.{attempt}"

    def lock_detail(self, name: str) -> Path:
        """What stands behind one lock, for comparing runs: `code` (file → sha256) or `packages` (name → version)."""
        return self.root / "locks" / f"{name}.json"

    @property
    def plan(self) -> Path:
        """What was planned before the first start: verdict and bytes per GPU; empty where nothing is planned."""
        return self.root / "plan.json"

    def read(self) -> dict[str, Any] | None:
        """The record, or None before the first attempt."""
        return read_json(self.run_json) if self.run_json.exists() else None

    def write(self, record: dict[str, Any]) -> None:
        """Replaces the record atomically."""
        write_json(self.run_json, record)
