"""What a worker knows about its task: everything was gathered by the parent and handed in as one file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json, write_json
from lockstep.params.experiment import Experiment
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import Spool


@dataclass(frozen=True)
class Job:
    """One attempt of one run, as its workers see it. Paths are absolute."""

    stage: str
    run_id: str
    attempt: int
    params: Experiment
    project: Path
    inputs: dict[str, Path]
    input_hashes: dict[str, str]
    directory: RunDirectory
    options: dict[str, Any] = field(default_factory=dict)
    """What this attempt was asked beyond the parameters: `elastic`, `continue_from`, `until_step`."""

    @classmethod
    def load(cls, run_dir: Path, attempt: int) -> Job:
        """Reads the file that the parent wrote for this attempt."""
        directory = RunDirectory(run_dir)
        handed = read_json(directory.job_file(attempt))
        return cls(
            stage=handed["stage"],
            run_id=handed["run_id"],
            attempt=attempt,
            params=Experiment.model_validate(handed["params"]),
            project=Path(handed["project"]),
            inputs={name: Path(path) for name, path in handed["inputs"].items()},
            input_hashes=handed["input_hashes"],
            directory=directory,
            options=handed["options"],
        )

    @property
    def rank(self) -> int:
        """This worker's rank as torchrun numbers it; 0 without torchrun."""
        return int(os.environ.get("RANK", "0"))

    @property
    def is_main(self) -> bool:
        """True on rank 0, which alone tracks and writes results."""
        return self.rank == 0

    @cached_property
    def _spool(self) -> Spool:
        return Spool(self.directory.metrics, attempt=self.attempt)

    def log_metrics(self, step: int, values: dict[str, float]) -> None:
        """Appends one line to the spool on rank 0; does nothing elsewhere."""
        if self.is_main:
            self._spool.append(step, values)

    def write_outcome(self, outcome: dict[str, Any]) -> None:
        """Hands the end of this attempt to the parent (`reason`, `start_step`, `end_step`, rates); rank 0 only."""
        if self.is_main:
            write_json(self.directory.outcome_file(self.attempt), outcome)

    def write_error(self, exit_code: int, message: str) -> None:
        """Leaves the status of this rank beside the attempt's job file, where the parent and a batch script read it."""
        path = self.directory.control / f"status.{self.attempt}.{self.rank}.json"
        write_json(path, {"exit_code": exit_code, "message": message, "rank": self.rank})
