"""Keeps one attempt: workers in a process group of their own, their output shown and kept, signals turned into files.

The parent alone takes Ctrl-C and SIGTERM. It turns the first into a stop file, which the workers read at their next
step boundary; the second Ctrl-C ends the workers at once. Workers get no signal before their state is saved.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from lockstep.foundation.files import write_atomic

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, because between fork and exec nothing may take the loader's lock


@dataclass
class Supervisor:
    """One attempt's processes."""

    command: list[str]
    environment: dict[str, str]
    workdir: Path
    log_file: Path
    stop_file: Path
    on_kill: Callable[[], None] = lambda: None
    """What the engine must do to end a container whose client is gone."""
    _requests: int = field(default=0, init=False)

    def run(self) -> int:
        """Runs the attempt to its end and returns the launcher's exit code (negative: ended by that signal)."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def request_stop(self, reason: str) -> None:
        """Asks the workers to save and stop; asking twice changes nothing."""
        if not self.stop_file.exists():
            write_atomic(self.stop_file, reason + "\n")

    def _run(self) -> int:
        orchestrator = _dvc_ancestor()
        process = subprocess.Popen(
            self.command,
            cwd=self.workdir,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, its library loaded before
        )
        reader = threading.Thread(target=self._relay, args=(process,), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                if orchestrator and not orchestrator.is_running():
                    self.request_stop("dvc ended")
                if self._requests > 1:
                    self._kill(process)
                time.sleep(_POLL_S)
        finally:
            self._kill(process)
            reader.join(timeout=5)
        return process.returncode

    def _relay(self, process: subprocess.Popen[bytes]) -> None:
        """Every byte goes to the log and to the screen; a closed screen never stops the log."""
        assert process.stdout is not None
        screen: int | None = sys.stdout.fileno()
        with open(self.log_file, "ab") as log:
            while chunk := os.read(process.stdout.fileno(), 65536):
                log.write(chunk)
                log.flush()
                screen = _show(screen, chunk)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._requests += 1
        if self._requests > 1:
            return
        self.request_stop(signal.Signals(number).name)
        note = "\nlockstep: saving at the next step, then stopping. Ctrl-C again ends at once, without saving.\n"
        _show(sys.stderr.fileno(), note.encode())

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Ends whatever is left of the attempt: the launcher's whole tree, then the engine's container."""
        for child in _descendants(process.pid):
            child.kill()
        if process.poll() is None:
            process.kill()
            process.wait()
        self.on_kill()


def _show(screen: int | None, data: bytes) -> int | None:
    if screen is None:
        return None
    try:
        os.write(screen, data)
    except OSError:
        return None
    return screen


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _dvc_ancestor() -> psutil.Process | None:
    """The `dvc` process that started this stage, if one did: killed alone, it would leave the stage running."""
    for process in psutil.Process().parents():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(Path(word).name == "dvc" for word in words[:3]):  # dvc …, python …/dvc … or python -m dvc …
            return process
    return None


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
