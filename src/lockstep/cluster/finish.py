"""`lockstep finish`: what a job made comes home once, on the login node: checked, materialised, committed, tracked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.cluster.attempt import close_lost
from lockstep.cluster.belongs import differences, workspace_run
from lockstep.cluster.intent import Intent, all_intents
from lockstep.cluster.slurm import job_states
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.launch.lock import exclusive
from lockstep.launch.outputs import materialise
from lockstep.launch.places import runs_root
from lockstep.params.experiment import load_experiment
from lockstep.params.stages import STAGES
from lockstep.records.find import all_runs
from lockstep.records.whole import verify_result
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.mlflow_client import tracking_address
from lockstep.tracking.sync import sync


@dataclass
class Finished:
    """What `finish` did."""

    brought_home: list[str] = field(default_factory=list)
    """`<stage> <run id>` of every result that is now in results/ and in dvc.lock."""
    others: list[dict[str, Any]] = field(default_factory=list)
    """Complete runs of the same stages and submissions that were not chosen (an array's other tasks)."""
    closed: list[str] = field(default_factory=list)
    """Runs whose job is gone and whose last attempt nobody had closed."""
    tracked: dict[str, int] = field(default_factory=dict)
    """Values sent to MLflow, by run."""

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{name}: in results/ and in dvc.lock" for name in self.brought_home]
        lines += [f"{name}: its job is gone; closed" for name in self.closed]
        lines += [f"also complete: {row['stage']} {row['run_id']} ({row['what']})" for row in self.others]
        lines += [f"MLflow: {name}: {count} values sent" for name, count in self.tracked.items()]
        return "\n".join(lines) or "nothing to bring home"


def finish(project: Path, stages: list[str], chosen: RunDirectory | None = None) -> Finished:
    """Closes dead runs, brings the newest complete result of each of `stages` (or `chosen`) home, and syncs MLflow.

    Raises UsageError when a result does not belong to what the workspace holds now, naming every difference, or when a
    stage has none; DoNotRetryError when a result is damaged; LockstepError when DVC or MLflow fails.
    """
    runs = runs_root(project)
    finished = Finished(closed=close_dead(project))
    for stage in stages:
        directory = chosen or newest_result(runs, stage)
        bring_home(project, stage, directory)
        finished.brought_home.append(f"{stage} {directory.root.name}")
        finished.others += other_results(runs, stage, directory)
    parameters = load_experiment(project / "params.yaml").run
    uri = tracking_address(runs, parameters.tracking_uri)
    finished.tracked = sync(runs, uri, parameters.experiment_name).sent
    return finished


def bring_home(project: Path, stage: str, directory: RunDirectory) -> None:
    """Makes `results/<stage>` the run's outputs and dvc.lock the record of it."""
    record = verify_result(directory)
    if changed := differences(workspace_run(project, stage), directory, record):
        raise UsageError(_not_from_here(stage, directory, record, changed))
    materialise(project, stage, directory, STAGES[stage].outputs)
    # `dvc commit` writes whatever parameters and files lie here beside the result; the comparison above made sure that
    # they are those that made it.
    _dvc(project, "commit", "--force", stage)
    status = _dvc(project, "status", stage)
    if "up to date" not in status:
        raise LockstepError(f"dvc does not find {stage} up to date after the commit:\n{status}")


def newest_result(runs: Path, stage: str) -> RunDirectory:
    """The complete run that was submitted last. Raises UsageError when there is none."""
    submitted = [intent for intent in all_intents(runs) if intent.stage == stage and intent.run]
    for intent in reversed(submitted):
        assert intent.run is not None
        directory = RunDirectory(intent.run)
        if (directory.read() or {}).get("status") == "complete":
            return directory
    states = ", ".join(f"{i.run.name}: {(RunDirectory(i.run).read() or {})['status']}" for i in submitted if i.run)
    raise UsageError(
        f"No submitted run of {stage} is complete ({states or 'none was submitted'}). See: ./lockstep status"
    )


def submitted_stages(runs: Path) -> list[str]:
    """The stages that were ever submitted, in the order of the pipeline."""
    stages = {intent.stage for intent in all_intents(runs)}
    return [stage for stage in STAGES if stage in stages]


def other_results(runs: Path, stage: str, chosen: RunDirectory) -> list[dict[str, Any]]:
    """The complete runs that were submitted together with the chosen one."""
    intents = [intent for intent in all_intents(runs) if intent.stage == stage and intent.run]
    mine = {
        intent.path.parent for intent in intents if intent.run == chosen.root and intent.path.parent.name != "intents"
    }
    rows = [_described(intent) for intent in intents if intent.path.parent in mine and intent.run != chosen.root]
    return [row for row in rows if row["status"] == "complete"]


def close_dead(project: Path) -> list[str]:
    """Closes every open attempt of a Slurm job that Slurm no longer runs; returns `<stage> <run id>` of each."""
    closed = []
    for directory in all_runs(project):
        record = directory.read()
        if record is None or not record["attempts"] or "ended" in record["attempts"][-1]:
            continue
        job_id = record["attempts"][-1].get("slurm", {}).get("job_id")
        if job_id is None or job_states([job_id])[job_id].is_live:
            continue
        with exclusive(directory):
            close_lost(directory, record)
        closed.append(f"{record['stage']} {record['run_id']}")
    return closed


def _described(intent: Intent) -> dict[str, Any]:
    assert intent.run is not None
    directory = RunDirectory(intent.run)
    record = directory.read() or {"status": "not recorded"}
    return {
        "stage": intent.stage,
        "run_id": intent.run.name,
        "status": record["status"],
        "what": f"job {intent.job_id}, seed {intent.params['seed']}",
        "weights_sha256": record.get("result", {}).get("weights_sha256"),
    }


def _not_from_here(stage: str, directory: RunDirectory, record: dict[str, Any], changed: list[str]) -> str:
    shown = "\n".join(f"  {line}" for line in changed[:10])
    more = f"\n  … and {len(changed) - 10} more" if len(changed) > 10 else ""
    commit = record["provenance"]["git"]["commit"]
    return (
        f"The result of {stage} {directory.root.name} was not made by what lies here now:\n{shown}{more}\n"
        f"Bring that back first (git stash, or: git worktree add ../recorded {commit}; params.yaml from "
        f"{directory.run_json}), then finish again. Nothing was changed."
    )


def _dvc(project: Path, *words: str) -> str:
    command = [sys.executable, "-m", "dvc", *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise LockstepError(f"dvc {' '.join(words)} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
