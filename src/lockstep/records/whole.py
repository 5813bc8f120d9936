"""Is a recorded result whole: its outputs, and the model behind its manifest?"""

from __future__ import annotations

from typing import Any

from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import read_json, sha256_file, sha256_tree
from lockstep.runs.directory import RunDirectory


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
