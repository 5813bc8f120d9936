"""From a name that a person types to a run directory."""

from __future__ import annotations

from pathlib import Path

from lockstep.foundation.errors import UsageError, nearest
from lockstep.foundation.files import read_json
from lockstep.launch.places import runs_root
from lockstep.params.stages import STAGES
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.sender import mlflow_run_id


def all_runs(project: Path) -> list[RunDirectory]:
    """Every recorded run on this machine, by stage and id."""
    return [RunDirectory(path.parent) for path in sorted(runs_root(project).glob("*/*/run.json"))]


def find_run(project: Path, name: str) -> RunDirectory:
    """The run called `name`: an id or its unambiguous start, a stage for the run behind `results/<stage>`, the id that
    the run has in MLflow, or the path of a run.json.

    Raises UsageError naming the candidates.
    """
    if name.endswith("run.json"):
        return _at(Path(name))
    if name in STAGES:
        name = _current(project, name)
    runs = all_runs(project)
    matches = [run for run in runs if run.root.name.startswith(name) or name == mlflow_run_id(run.root)]
    exact = [run for run in matches if run.root.name == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    names = [f"{run.root.parent.name}/{run.root.name}" for run in matches or runs]
    what = "is the start of several runs" if matches else "is no run on this machine"
    hint = nearest(name, [run.root.name for run in runs])
    raise UsageError(f"'{name}' {what}.{hint}\nRuns: {', '.join(names) or 'none yet (make repro makes some)'}")


def _at(record: Path) -> RunDirectory:
    if not record.is_file():
        raise UsageError(f"{record} is not there; it would be a run's record.")
    return RunDirectory(record.resolve().parent)


def _current(project: Path, stage: str) -> str:
    result = project / "results" / stage / "result.json"
    if not result.exists():
        raise UsageError(f"{stage} has no result yet.\nRun it with: ./lockstep run {stage}")
    return str(read_json(result).get("run_id", stage))
