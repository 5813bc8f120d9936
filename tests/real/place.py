"""A place to work as an ordinary user: a checkout of this very tree, its own venv, and commands run as that user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
USER = "lockstep-tester"
BASE_IMAGE = "lockstep-base:bookworm"
_PASSED = ("PIP_", "SSL_", "LOCKSTEP_TORCH_INDEX")


def state() -> Path:
    """Where setup.sh keeps what it made."""
    return Path(os.environ.get("LOCKSTEP_REAL", "/var/lib/lockstep-real"))


@dataclass(frozen=True)
class Place:
    """A checkout that belongs to the user."""

    checkout: Path

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        check: bool = True,
        timeout_s: float = 1800,
        stdin: str = "",
        network: bool = True,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as the user, with a clean environment, in the checkout; without `network`, with none."""
        passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        variables = {
            "HOME": str(state() / "home"),
            "USER": USER,
            "LOGNAME": USER,
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            **passed,
            **environment,
        }
        assignments = [f"{name}={value}" for name, value in variables.items()]
        done = subprocess.run(
            [
                *([] if network else ["unshare", "--net"]),
                "runuser",
                "-u",
                USER,
                "--",
                "env",
                "-i",
                *assignments,
                *map(str, command),
            ],
            cwd=cwd or self.checkout,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            words = " ".join(map(str, command))
            raise AssertionError(f"{words} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done

    def lockstep(self, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """`./lockstep …` as the user."""
        return self.run("./lockstep", *words, check=check, **environment)

    def dvc(self, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """The checkout's own dvc, as the user."""
        return self.run(self.checkout / ".venv" / "bin" / "dvc", *words, check=check, **environment)


def make_place(folder: Path) -> Place:
    """Copies the tracked files of this tree, commits them there, and gives all of it to the user."""
    checkout = folder / "checkout"
    checkout.mkdir(parents=True, exist_ok=True)
    lock = checkout / "image.lock"
    images = json.loads(lock.read_text())["images"] if lock.exists() else {}
    shutil.rmtree(checkout / "src", ignore_errors=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, checkout / name, follow_symlinks=False)
    # A kept place knows its image already; committed image.locks name none.
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "images": images}, indent=2, sort_keys=True) + "\n")
    if (PROJECT / "wheelhouse").is_dir():
        shutil.copytree(PROJECT / "wheelhouse", checkout / "wheelhouse", dirs_exist_ok=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", folder], check=True)
    place = Place(checkout)
    place.run("git", "init", "--quiet", "--initial-branch", "main")
    place.run("git", "config", "user.name", "Tester")
    place.run("git", "config", "user.email", "tester@example.org")
    place.run("git", "add", "--all")
    if place.run("git", "diff", "--cached", "--quiet", check=False).returncode != 0:
        place.run("git", "commit", "--quiet", "--message", "The tree under test")
    return place
