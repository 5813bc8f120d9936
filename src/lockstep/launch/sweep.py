"""`lockstep sweep`: every point of a parameter grid through the stages.

params.yaml, results/ and dvc.lock stay as they are. What two trials have in common (the same prepare, the same sft) is
one run, which runs once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, UsageError
from lockstep.foundation.files import canonical_json, read_json, sha256_bytes, write_json
from lockstep.launch.lock import exclusive
from lockstep.launch.places import runs_root
from lockstep.launch.prepare import RunOptions, Sources, StageRun, prepare_run
from lockstep.launch.run_stage import execute
from lockstep.params.experiment import Experiment
from lockstep.params.grid import Grid, Point, label
from lockstep.params.stages import STAGES, stage_spec
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.sweeps import send_sweep

_CHAIN = tuple(name for name in STAGES if name != "report")


@dataclass
class Trial:
    """One point of the grid and its runs so far."""

    point: Point
    experiment: Experiment
    runs: dict[str, RunDirectory] = field(default_factory=dict)
    code: int = EXIT_OK

    def prepare(self, project: Path, stage: str) -> StageRun:
        """The trial's next stage, reading what its stages before left in their folders."""
        results = {name: directory.outputs for name, directory in self.runs.items()}
        run = prepare_run(Sources(project, project, runs_root(project), results), stage, RunOptions(), self.experiment)
        self.runs[stage] = run.directory
        return run

    def metrics(self, stage: str) -> dict[str, Any]:
        """The metrics.json of a stage that is complete; empty otherwise."""
        found: dict[str, Any] = {}
        if self.code == EXIT_OK and stage in self.runs:
            found = read_json(self.runs[stage].outputs / "metrics.json")
        return found


@dataclass
class Sweep:
    """A grid's trials up to one stage."""

    project: Path
    grid: Grid
    until: str
    trials: list[Trial]

    @classmethod
    def of(cls, project: Path, grid: Grid, until: str) -> Sweep:
        """Checks every point. Raises UsageError for a grid or a stage that cannot be swept."""
        stage_spec(until)
        if until not in _CHAIN:
            raise UsageError(f"A sweep ends with a stage that measures: {', '.join(_CHAIN)}, not {until}.")
        points = grid.experiments(project / "params.yaml")
        return cls(project, grid, until, [Trial(*point) for point in points])

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that each trial goes through."""
        return _CHAIN[: _CHAIN.index(self.until) + 1]

    @property
    def record_file(self) -> Path:
        """Says which runs belong together; MLflow's parent run is made from it."""
        decides = {"choices": self.grid.choices, "until": self.until, "params": self.trials[0].experiment.model_dump()}
        return runs_root(self.project) / "sweeps" / f"{sha256_bytes(canonical_json(decides).encode())[:12]}.json"

    def run(self, num_jobs: int = 1) -> int:
        """Stage by stage, `num_jobs` runs at a time. A trial that fails is left out of later stages.

        Returns 0, 1 when a trial failed, or 85 after a stop: then the same command goes on.
        """
        code = self._through_the_stages(num_jobs)
        self._track()
        return code

    def _through_the_stages(self, num_jobs: int) -> int:
        for stage in self.stages:
            waiting = [trial for trial in self.trials if trial.code == EXIT_OK]
            distinct = {trial.prepare(self.project, stage).directory.root: trial for trial in waiting}
            self._save()
            codes = self._apart(stage, distinct, num_jobs) if num_jobs > 1 else self._in_turn(stage, distinct)
            for trial in waiting:
                trial.code = codes.get(trial.runs[stage].root, EXIT_SAVED)
            if EXIT_SAVED in codes.values():
                return EXIT_SAVED
        return EXIT_OK if all(trial.code == EXIT_OK for trial in self.trials) else EXIT_FAILED

    def run_alone(self) -> int:
        """The one trial of a grid of one point: a run of a larger sweep, which keeps the record and the table."""
        for stage in self.stages:
            code = self._execute(self.trials[0], stage)
            if code != EXIT_OK:
                return code
        return EXIT_OK

    def _in_turn(self, stage: str, distinct: dict[Path, Trial]) -> dict[Path, int]:
        codes: dict[Path, int] = {}
        for root, trial in distinct.items():
            print(f"\n{stage} {label(trial.point)}", flush=True)
            codes[root] = self._execute(trial, stage)
            if codes[root] == EXIT_SAVED:
                break
        return codes

    def _execute(self, trial: Trial, stage: str) -> int:
        run = trial.prepare(self.project, stage)
        with exclusive(run.directory):
            return execute(run)

    def _apart(self, stage: str, distinct: dict[Path, Trial], num_jobs: int) -> dict[Path, int]:
        """Each run in a process of its own. Ctrl-C reaches them all; they save, and this process waits for them."""
        codes: dict[Path, int] = {}
        waiting, started = list(distinct.items()), dict[Path, subprocess.Popen[bytes]]()
        with _signals_for(started):
            while waiting and EXIT_SAVED not in codes.values():
                batch, waiting = waiting[:num_jobs], waiting[num_jobs:]
                started.clear()
                started.update({root: self._start(trial, stage) for root, trial in batch})
                codes |= {root: process.wait() for root, process in started.items()}
        return codes

    def _start(self, trial: Trial, stage: str) -> subprocess.Popen[bytes]:
        choices = [word for name, value in trial.point.items() for word in ("-S", f"{name}={canonical_json(value)}")]
        command = [sys.executable, "-m", "lockstep", "sweep", *choices, "--to", stage, "--alone"]
        return subprocess.Popen(command, cwd=self.project)

    def _track(self) -> None:
        """Hangs the trials below a parent in MLflow, or says how that is done later."""
        parameters = self.trials[0].experiment.run
        uri = tracking_address(runs_root(self.project), parameters.tracking_uri)
        try:
            send_sweep(self.record_file, connect(uri), uri, parameters.experiment_name)
        except Exception:  # noqa: BLE001 - MLflow's backends raise anything; the trials are what counts
            print("lockstep: MLflow does not show the sweep yet; `./lockstep sync` sends it.", file=sys.stderr)

    def _save(self) -> None:
        trials = [
            {"point": trial.point, "runs": {stage: run.root.name for stage, run in trial.runs.items()}}
            for trial in self.trials
        ]
        write_json(self.record_file, {"choices": self.grid.choices, "until": self.until, "trials": trials})


@contextmanager
def _signals_for(started: Mapping[Path, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Ctrl-C reaches children by itself; a SIGTERM to this process alone is handed on."""

    def hand_on(number: int, _: Any) -> None:
        for process in started.values():
            process.send_signal(number)

    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: hand_on}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
