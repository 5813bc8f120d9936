"""Fresh clones of this checkout, each with a home of its own, driven only by the commands that the README names."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("prepare", "sft", "reward", "ppo", "evaluate")


@dataclass(frozen=True)
class Clone:
    """One clone and what a shell in it would see."""

    path: Path
    home: Path

    @classmethod
    def make(cls, folder: Path, *, share_environment: bool) -> Clone:
        """Clones the commit that is checked out here; with `share_environment` it uses this checkout's .venv."""
        path, home = folder / "checkout", folder / "home"
        home.mkdir(parents=True)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(path)], check=True)
        if share_environment:
            (path / ".venv").symlink_to(ROOT / ".venv")
        return cls(path, home)

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the clone and shows what it says; its output is in `stdout`."""
        done = subprocess.run(
            command, cwd=self.path, env=self.environment(environment), capture_output=True, text=True, check=False
        )
        print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        if check:
            assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}"
        return done

    def result(self, stage: str, name: str = "result.json") -> Any:
        """A file of `results/<stage>/`."""
        return json.loads((self.path / "results" / stage / name).read_text())

    def record(self, stage: str) -> Any:
        """run.json of the run behind `results/<stage>/`."""
        run_id = self.result(stage)["run_id"]
        return json.loads((self.path / "runs" / stage / run_id / "run.json").read_text())

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """What a shell of this clone's user sees: nothing of ours but PATH."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "DVC_", "VIRTUAL_ENV", "PYTHON"))}
        author = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org"}
        committer = {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org"}
        path = f"{self.path / '.venv' / 'bin'}:{os.environ['PATH']}"
        return {**kept, **author, **committer, "HOME": str(self.home), "PATH": path, **more}
