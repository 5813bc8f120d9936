"""One attempt's processes: a stop is a file, a signal ends with a save, and nothing outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lockstep.launch.supervise import Supervisor

ROOT = Path(__file__).resolve().parents[3]

_WORKER = """
    import os, pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    (folder / "worker.pid").write_text(str(os.getpid()))
    print("working", flush=True)
    while not (folder / "stop").exists():
        time.sleep(0.02)
    (folder / "saved").write_text("yes")
    sys.exit(85)
"""
_PARENT = """
    import sys
    from pathlib import Path
    from lockstep.launch.supervise import Supervisor
    folder = Path(sys.argv[1])
    command = [sys.executable, str(folder / "worker.py"), str(folder)]
    sys.exit(Supervisor(command, {}, folder, folder / "log", folder / "stop").run())
"""


def _supervisor(folder: Path, command: list[str]) -> Supervisor:
    return Supervisor(command, dict(os.environ), folder, folder / "log", folder / "stop")


def _wait(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def _start_parent(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "worker.py").write_text(textwrap.dedent(_WORKER))
    (folder / "parent.py").write_text(textwrap.dedent(_PARENT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    parent = subprocess.Popen([sys.executable, str(folder / "parent.py"), str(folder)], env=environment)
    _wait(lambda: (folder / "worker.pid").exists() and bool((folder / "worker.pid").read_text()))
    return parent


def _worker_gone(folder: Path) -> bool:
    return not psutil.pid_exists(int((folder / "worker.pid").read_text()))


def test_output_is_kept_and_the_code_is_the_commands(tmp_path: Path) -> None:
    code = _supervisor(tmp_path, [sys.executable, "-c", "print('hello'); raise SystemExit(7)"]).run()
    assert code == 7
    assert (tmp_path / "log").read_text() == "hello\n"


def test_sigterm_to_the_parent_becomes_a_stop_file_and_a_save(tmp_path: Path) -> None:
    parent = _start_parent(tmp_path)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(20) == 85
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "stop").read_text() == "SIGTERM\n"


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    stubborn = _WORKER.replace('not (folder / "stop").exists()', "True")
    (tmp_path / "worker.py").write_text(textwrap.dedent(stubborn))
    (tmp_path / "parent.py").write_text(textwrap.dedent(_PARENT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(tmp_path)], env=environment)
    _wait(lambda: (tmp_path / "worker.pid").exists() and bool((tmp_path / "worker.pid").read_text()))
    parent.send_signal(signal.SIGINT)
    _wait((tmp_path / "stop").exists)
    parent.send_signal(signal.SIGINT)
    parent.wait(20)
    assert _worker_gone(tmp_path)
    assert not (tmp_path / "saved").exists()


def test_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    parent = _start_parent(tmp_path)
    parent.kill()
    parent.wait()
    _wait(lambda: _worker_gone(tmp_path))
