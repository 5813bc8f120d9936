"""What ran on this machine, in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.records.find import all_runs
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import last_step

_COLUMNS = {
    "stage": "stage",
    "run_id": "run",
    "status": "status",
    "step": "step",
    "attempts": "attempts",
    "reason": "last attempt ended by",
    "started": "started",
}


def describe_runs(project: Path) -> list[dict[str, Any]]:
    """One plain row per run, newest attempt last: stage, run id, status, last step, attempts, reason, weights."""
    return [_row(run) for run in all_runs(project)]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text for a terminal."""
    if not rows:
        return "no runs yet; make repro makes some"
    view = Table(*_COLUMNS.values())
    for row in rows:
        view.add_row(*("" if row[key] is None else str(row[key]) for key in _COLUMNS))
    console = Console()
    with console.capture() as capture:
        console.print(view)
    return capture.get().rstrip()


def _row(directory: RunDirectory) -> dict[str, Any]:
    record = directory.read() or {}
    attempts = record.get("attempts", [])
    newest = attempts[-1] if attempts else {}
    return {
        "stage": record.get("stage"),
        "run_id": record.get("run_id"),
        "status": record.get("status"),
        "step": last_step(directory.metrics),
        "attempts": len(attempts),
        "reason": newest.get("reason"),
        "started": newest.get("started"),
        "weights_sha256": record.get("result", {}).get("weights_sha256"),
    }
