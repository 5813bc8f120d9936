"""A run with the runs that it came from, and the evaluation that measured it, read from the runs folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.params.stages import STAGES
from lockstep.reporting.material import Material, StageFacts, load_stage
from lockstep.runs.directory import RunDirectory


def family(directory: RunDirectory, *, measured: bool) -> Material:
    """The run in `directory` and its ancestors, in the order of the stages; `measured` adds its newest evaluation.

    Runs that this machine does not have are left out. The last stage but the evaluation is the run itself.
    """
    found = {directory.root.parent.name: directory}
    for stage in reversed(STAGES):
        if stage in found:
            found = {**_parents(found[stage]), **found}
    if measured and (evaluation := _evaluation(directory)):
        found["evaluate"] = evaluation
    stages = {name: _facts(found[name]) for name in STAGES if name in found}
    return Material(_record(directory)["params"], stages, {})


def _record(directory: RunDirectory) -> Mapping[str, Any]:
    return directory.read() or {}


def _parents(directory: RunDirectory) -> dict[str, RunDirectory]:
    """The runs that made the inputs, by stage."""
    makers, runs = set(_record(directory).get("made_by", {}).values()), directory.root.parent.parent
    there = (path.parent for run_id in makers for path in runs.glob(f"*/{run_id}/run.json"))
    return {folder.parent.name: RunDirectory(folder) for folder in there}


def _evaluation(directory: RunDirectory) -> RunDirectory | None:
    """The newest complete evaluation that read this run's result."""
    candidates = [RunDirectory(path.parent) for path in directory.root.parent.parent.glob("evaluate/*/run.json")]
    mine = [
        candidate
        for candidate in candidates
        if directory.root.name in _record(candidate).get("made_by", {}).values()
        and _record(candidate)["status"] == "complete"
    ]
    return max(mine, key=lambda candidate: str(_record(candidate)["created"]), default=None)


def _facts(directory: RunDirectory) -> StageFacts:
    """As `load_stage`, also for a run that is not complete."""
    stage, runs = directory.root.parent.name, directory.root.parent.parent
    if (directory.outputs / "result.json").exists():
        return load_stage(stage, directory.outputs, runs)
    record = _record(directory)
    result = {"stage": stage, "run_id": directory.root.name, "inputs": record["locks"]["inputs"]}
    return StageFacts(stage, result, {}, [], directory, record)
