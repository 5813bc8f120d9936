"""`lockstep repro`: data and model, then all stages through DVC, then where to look."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from lockstep.foundation.errors import EXIT_OK
from lockstep.launch.fetch import fetch_all
from lockstep.launch.prepare import RunOptions
from lockstep.launch.run_stage import run_stage
from lockstep.params.experiment import load_experiment


def reproduce(project: Path) -> int:
    """Runs whatever is not up to date; returns DVC's exit code, 0 when everything stands."""
    start = time.monotonic()
    load_experiment(project / "params.yaml")
    for name, what in fetch_all(project).items():
        print(f"{name}: {what}")
    sys.stdout.flush()
    before = _dvc_lock(project)
    code = _dvc_repro(project)
    if code == EXIT_OK and not _report(project).exists():
        # It is no out of DVC's, so after `dvc pull` everything is up to date without it.
        code = run_stage(project, "report", RunOptions())
    if code == EXIT_OK:
        print(_closing_words(project, unchanged=_dvc_lock(project) == before, seconds=time.monotonic() - start))
    return code


def _dvc_repro(project: Path) -> int:
    """DVC in the foreground. Ctrl-C is the running stage's to handle, so that it can save; DVC then stops by itself."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=project, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, previous)


def _report(project: Path) -> Path:
    return project / "results" / "report" / "report.html"


def _dvc_lock(project: Path) -> bytes:
    path = project / "dvc.lock"
    return path.read_bytes() if path.exists() else b""


def _closing_words(project: Path, unchanged: bool, seconds: float) -> str:
    first = "Nothing to do: every stage is up to date" if unchanged else "Done"
    lines = [
        f"\n{first} ({seconds:.0f} s).",
        f"Report:    {_report(project)}",
        "MLflow UI: make ui",
        "Try it:    ./lockstep generate ppo --prompt 'The film was'",
    ]
    return "\n".join(lines)
