"""Before a result is brought home: does it belong to what lies in the workspace now?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.foundation.files import read_json
from lockstep.launch.prepare import RunOptions, Sources, StageRun, prepare_run
from lockstep.runs.directory import RunDirectory
from lockstep.runs.identity import code_files
from lockstep.tracking.described import flatten


def workspace_run(project: Path, stage: str) -> StageRun:
    """The run that the workspace's own parameters, inputs, environment and code would be."""
    return prepare_run(Sources.of(project), stage, RunOptions())


def differences(run: StageRun, directory: RunDirectory, record: Mapping[str, Any]) -> list[str]:
    """What the workspace has otherwise than the recorded run, a line each; empty when the result belongs here."""
    recorded, here = record["locks"], run.identity.locks
    lines = _pairs("parameter", flatten(recorded["params"]), flatten(here["params"]))
    lines += _pairs("input", recorded["inputs"], here["inputs"])
    lines += _pairs("environment", recorded["environment"], here["environment"])
    if recorded["code"] != here["code"]:
        before = read_json(directory.lock_detail("code"))
        lines += _pairs("source file", before, code_files(run.project / "src" / "lockstep", run.spec.code))
    return lines


def _pairs(kind: str, recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind} {name}: {_short(recorded.get(name, 'absent'))} in the run, {_short(here.get(name, 'absent'))} here"
        for name in sorted({*recorded, *here})
        if recorded.get(name) != here.get(name)
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
