"""A run with the runs that it came from, and the evaluation that measured it, read from the runs folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.params.stages import STAGES
from lockstep.reporting.material import Material, StageFacts, load_stage
from lockstep.runs.directory import RunDirectory


@dataclass(frozen=True)
class Family:
    """A run, where it came from, and how good it is."""

    run: StageFacts
    material: Material
    """The run and its ancestors; the run is the last stage."""
    evaluation: StageFacts | None
    """The newest evaluation of the run's result."""


def family(directory: RunDirectory, *, measured: bool) -> Family:
    """The run in `directory` and its ancestors, in the order of the stages; runs that are not here are left out.

    `measured`: with its result and the newest evaluation of that; else only with what was recorded on the way to it.
    """
    found = {directory.root.parent.name: directory}
    for stage in reversed(STAGES):
        if stage in found:
            found = {**_parents(found[stage]), **found}
    stages = {
        name: _facts(found[name], with_result=measured or found[name] is not directory)
        for name in STAGES
        if name in found
    }
    evaluation = _evaluation(directory) if measured else None
    return Family(
        run=stages[directory.root.parent.name],
        material=Material(_record(directory)["params"], stages, {}),
        evaluation=_facts(evaluation, with_result=True) if evaluation else None,
    )


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


def _facts(directory: RunDirectory, *, with_result: bool) -> StageFacts:
    """As `load_stage`, also for a run that is not complete."""
    stage, runs = directory.root.parent.name, directory.root.parent.parent
    if with_result and (directory.outputs / "result.json").exists():
        return load_stage(stage, directory.outputs, runs)
    record = _record(directory)
    result = {"stage": stage, "run_id": directory.root.name, "inputs": record["locks"]["inputs"]}
    return StageFacts(stage, result, {}, [], directory, record)
