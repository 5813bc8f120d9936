"""A result before it is brought home: is it whole, and does it belong to what lies in the workspace now?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import read_json, sha256_file, sha256_tree
from lockstep.launch.prepare import RunOptions, Sources, StageRun, prepare_run
from lockstep.runs.directory import RunDirectory
from lockstep.runs.identity import code_files
from lockstep.tracking.described import flatten


def verify_result(directory: RunDirectory) -> dict[str, Any]:
    """The record of a complete run whose outputs, and whose model behind its manifest, are what was recorded.

    Raises UsageError for a run that is not complete, DoNotRetryError where a file differs.
    """
    record = directory.read()
    if not record or record["status"] != "complete":
        status = record["status"] if record else "not recorded"
        raise UsageError(f"Run {directory.root.name} has no result to bring home (status: {status}).")
    if sha256_tree(directory.outputs) != record["result"]["outputs_sha256"]:
        raise DoNotRetryError(
            f"{directory.outputs} is not what run {directory.root.name} recorded; a file was changed."
        )
    _verify_model(directory)
    return record


def _verify_model(directory: RunDirectory) -> None:
    manifest = directory.outputs / "weights" / "manifest.json"
    if not manifest.exists():
        return
    facts = read_json(manifest)
    folder = directory.model if facts.get("kind") == "model" else manifest.parent
    for name, expected in facts["files"].items():
        path = folder / name
        if not path.exists() or path.stat().st_size != expected["bytes"] or sha256_file(path) != expected["sha256"]:
            raise DoNotRetryError(
                f"{path} is missing or not the file that {manifest} names; the run's result is damaged."
            )


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
