"""`lockstep status` on a cluster: what the queue says of each submitted run, and how far the run itself says it is."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.cluster.bad_nodes import bad_nodes
from lockstep.cluster.intent import Intent, all_intents
from lockstep.cluster.slurm import job_states
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.spool import Point, read_points

_RATE_OVER = 50
"""Steps that the estimate of the remaining time looks back on."""


def describe_jobs(runs: Path) -> list[dict[str, Any]]:
    """One plain row per submitted job, oldest first: job, its state and who said so, run, progress, seconds left.

    The state comes from squeue, then scontrol, then sacct; where none of them knows the job, from the run's own record.
    """
    intents = [intent for intent in all_intents(runs) if intent.job_id]
    states = job_states([str(intent.job_id) for intent in intents])
    return [_row(intent, states[str(intent.job_id)].__dict__) for intent in intents]


def jobs_table(rows: list[dict[str, Any]], runs: Path) -> str:
    """The rows, and the nodes that new jobs keep away from, for a terminal."""
    view = Table("job", "stage", "run", "state", "step", "time left", "attempts", "last attempt ended by")
    for row in rows:
        state = f"{row['state']} ({row['why']})" if row["why"] else row["state"]
        steps = f"{row['step']}/{row['num_steps']}" if row["num_steps"] else str(row["step"])
        eta = str(dt.timedelta(seconds=row["eta_s"])) if row["eta_s"] is not None else ""
        cells = (row["job_id"], row["stage"], row["run_id"], state, steps, eta, row["attempts"], row["reason"])
        view.add_row(*("" if cell is None else str(cell) for cell in cells))
    console = Console()
    with console.capture() as capture:
        console.print(view)
        for node in bad_nodes(runs):
            until = dt.datetime.fromtimestamp(node.expires, dt.UTC).isoformat(timespec="minutes")
            console.print(f"kept away from {node.name} until {until}: {node.reason}", highlight=False)
    return capture.get().rstrip()


def _row(intent: Intent, state: dict[str, str]) -> dict[str, Any]:
    directory = RunDirectory(intent.run) if intent.run else None
    record = (directory.read() if directory else None) or {"status": "waiting for its inputs", "attempts": []}
    attempts = record["attempts"]
    points = _points(directory)
    num_steps = getattr(getattr(intent.experiment, intent.stage, None), "max_steps", None)
    return {
        "job_id": intent.job_id,
        "stage": intent.stage,
        "run_id": intent.run.name if intent.run else None,
        "state": record["status"] if state["state"] == "unknown" else state["state"].lower(),
        "said_by": "run.json" if state["state"] == "unknown" else state["source"],
        "why": state["reason"],
        "status": record["status"],
        "step": points[-1].step if points else 0,
        "num_steps": num_steps,
        "eta_s": _seconds_left(points, num_steps) if record["status"] == "running" else None,
        "attempts": len(attempts),
        "reason": attempts[-1]["reason"] if attempts else "",
    }


def _points(directory: RunDirectory | None) -> list[Point]:
    return list(read_points(directory.metrics))[-_RATE_OVER:] if directory else []


def _seconds_left(points: list[Point], num_steps: int | None) -> int | None:
    """From the steps of the newest attempt that are in view; None while there are too few, or no known end."""
    newest = [point for point in points if point.attempt == points[-1].attempt]
    if num_steps is None or len(newest) < 2 or newest[-1].step == newest[0].step:
        return None
    seconds_per_step = (newest[-1].time_ms - newest[0].time_ms) / 1000 / (newest[-1].step - newest[0].step)
    return max(0, round((num_steps - newest[-1].step) * seconds_per_step))
