"""Tracks one attempt from the launching parent: samples the machine and sends the spools to MLflow in the background.

Training writes its spool and never waits for this. MLflow away means one line on the screen, and `lockstep sync` later.
"""

from __future__ import annotations

import contextlib
import fcntl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from lockstep.foundation.files import read_json
from lockstep.params.run import RunParams
from lockstep.tracking.mlflow_client import connect, tracking_address
from lockstep.tracking.provenance import without_credentials
from lockstep.tracking.sender import RunSender
from lockstep.tracking.system import SystemSampler

_RETRY_S = 15.0
_FINISH_S = 120.0


class Tracker:
    """`with Tracker(...) as tracker: … tracker.finish()`; `run.json` is written before each of the two.

    Entering takes the run's tracking lock and starts two threads; leaving sends what is left with the status that
    run.json has by then. No error of MLflow comes out of it.
    """

    def __init__(
        self, root: Path, parameters: RunParams, runs_root: Path, say: Callable[[str], None] | None = None
    ) -> None:
        """`root` is the run directory, `runs_root` the folder of all runs; `say` shows one line to a person."""
        self._root, self._parameters, self._say = root, parameters, say or _to_stderr
        self._uri = tracking_address(runs_root, parameters.tracking_uri)
        self._sampler = SystemSampler(root, attempt=len(read_json(root / "run.json")["attempts"]))
        self._ended = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="lockstep-mlflow", daemon=True)

    def __enter__(self) -> Self:
        self._sampler.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """Sends what is left and the final status; gives up after two minutes. Calling it again does nothing."""
        if self._ended.is_set():
            return
        self._sampler.stop()
        self._ended.set()
        self._thread.join(timeout=_FINISH_S)
        if self._thread.is_alive():
            self._complain("is slow to answer")

    def _run(self) -> None:
        with tracking_lock(self._root, wait=True):
            last_try = False
            while not self._try_to_track() and not last_try:
                last_try = self._ended.wait(_RETRY_S)

    def _try_to_track(self) -> bool:
        """Sends until the attempt has ended; False when MLflow failed before all of it had arrived."""
        try:
            sender = RunSender(self._root, connect(self._uri), self._uri, self._parameters.experiment_name)
            sender.open()
            sender.mark_running()
            while not self._ended.wait(self._parameters.tracking_flush_s):
                sender.pump()
            sender.close()
        except Exception as error:  # noqa: BLE001 - MLflow's backends raise anything; training must not care
            self._complain(f"does not answer ({_short(error)})")
            return False
        return True

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            self._say(
                f"lockstep: MLflow at {without_credentials(self._uri)} {what}.\n"
                "The run goes on and its metrics are kept; `./lockstep sync` sends what is missing."
            )


@contextlib.contextmanager
def tracking_lock(root: Path, *, wait: bool) -> Iterator[TextIO | None]:
    """The right to send a run, for one process at a time; None without `wait` when another process has it."""
    path = root / "control" / "tracking.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield file


def _short(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:160].rstrip(": ")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
