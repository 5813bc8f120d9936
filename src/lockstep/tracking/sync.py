"""`lockstep sync`: brings MLflow up to what the run directories hold. Doing it again sends nothing twice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import read_json
from lockstep.tracking.mlflow_client import connect
from lockstep.tracking.provenance import without_credentials
from lockstep.tracking.sender import RunSender
from lockstep.tracking.sweeps import send_sweep, sweep_files
from lockstep.tracking.tracker import tracking_lock


@dataclass
class SyncSummary:
    """What one `sync` did; runs are named `<stage>/<run id>`."""

    sent: dict[str, int] = field(default_factory=dict)
    """Values sent, per run that lacked something."""
    up_to_date: list[str] = field(default_factory=list)
    going_on: list[str] = field(default_factory=list)
    """Runs that a living parent is sending itself."""

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{name}: {count} values sent" for name, count in self.sent.items()]
        lines += [f"{name}: is being sent by its own launcher" for name in self.going_on]
        lines.append(f"{len(self.up_to_date)} run(s) were up to date")
        return "\n".join(lines)


def sync(runs_root: Path, uri: str, experiment: str) -> SyncSummary:
    """Sends every run below `runs_root` whose metrics or end MLflow at `uri` lacks.

    Raises LockstepError naming the run at which MLflow failed; what came before it is kept, repeating goes on there.
    """
    summary = SyncSummary()
    runs = sorted(path.parent for path in runs_root.glob("*/*/run.json"))
    client: Any = None
    for root in runs:
        name = f"{root.parent.name}/{root.name}"
        try:
            client = client or connect(uri)
            _sync_run(root, name, RunSender(root, client, uri, experiment), summary)
        except Exception as error:
            raise LockstepError(
                f"MLflow at {without_credentials(uri)} failed at run {name} ({type(error).__name__}: {error}).\n"
                "Nothing is lost: repeat `./lockstep sync` when it answers."
            ) from error
    for file in sweep_files(runs_root) if client else []:
        send_sweep(file, client, uri, experiment)
    return summary


def watch(runs_root: Path, uri: str, experiment: str, every_s: float, say: Callable[[str], None]) -> None:
    """Repeats `sync` until Ctrl-C, and says what it sent; a server that does not answer is asked again next time."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                summary = sync(runs_root, uri, experiment)
                if any(summary.sent.values()):
                    say(summary.text())
            except LockstepError as error:
                say(str(error))
            time.sleep(every_s)


def _sync_run(root: Path, name: str, sender: RunSender, summary: SyncSummary) -> None:
    with tracking_lock(root, wait=False) as lock:
        if lock is None:
            summary.going_on.append(name)
            return
        record = read_json(root / "run.json")
        if not record["attempts"]:  # waits in a queue: there is nothing to say yet
            return
        sender.open()
        if _runs_in_a_job(record):
            sender.mark_running()
            summary.sent[name] = sender.pump()
            return
        if sender.up_to_date:
            summary.up_to_date.append(name)
            return
        summary.sent[name] = sender.pump()
        sender.close()


def _runs_in_a_job(record: dict[str, Any]) -> bool:
    """True while a Slurm job has the run: its nodes only spool, and this is how MLflow learns of it meanwhile."""
    newest = record["attempts"][-1] if record["attempts"] else {"ended": None}
    return "ended" not in newest and bool(newest.get("slurm"))
