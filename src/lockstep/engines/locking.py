"""Makes the locks: resolves requirements/*.in, keeps this platform's hashes, writes environments to image.lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging import tags
from packaging.utils import parse_wheel_filename

from lockstep.engines.environment import image_lock_path, read_image_lock, records_path
from lockstep.engines.installed import installed_packages, record_digest
from lockstep.engines.lockfile import FLAVOURS, PYTHON_MINOR, environment_id_of, lock_path, normalised, read_lock
from lockstep.engines.variables import host_variables
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json, sha256_file, write_atomic, write_json

_GLIBC = (2, 28)
"""Oldest glibc that the locked torch runs on; a newer wheel of another package would lock those hosts out."""
_EXTRA_ARGUMENTS = {"cpu": (), "cuda": (), "dev": ("-c", "cpu.lock"), "data": ("--no-deps",)}
"""Beyond the common ones, in the order in which the locks are made."""


@dataclass(frozen=True)
class LockedFile:
    """One file of a package, as an index offers it."""

    url: str
    sha256: str


def lock_all(project: Path, say: Callable[[str], None]) -> list[str]:
    """Resolves every input anew (versions already locked are kept) and rewrites locks and image.lock's environments.

    Returns the names of the files that changed. Raises LockstepError when the resolver fails.
    """
    changed = []
    for name in _EXTRA_ARGUMENTS:
        say(f"resolving requirements/{name}.in")
        text = compile_lock(project, name)
        path = lock_path(project, name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)
            changed.append(f"requirements/{name}.lock")
    return changed + update_environments(project, say)


def stale_locks(project: Path) -> list[str]:
    """The locks that no longer follow from their inputs; resolves anew and compares, writes nothing."""
    stale = [
        f"requirements/{name}.lock"
        for name in _EXTRA_ARGUMENTS
        if compile_lock(project, name) != lock_path(project, name).read_text(encoding="utf-8")
    ]
    environments = read_image_lock(project)["environments"]
    wrong = [
        f"image.lock: environments.{flavour}"
        for flavour in FLAVOURS
        if environments.get(flavour) != environment_entry(project, flavour)
    ]
    return stale + wrong


def compile_lock(project: Path, name: str) -> str:
    """The text of one lock, resolved now, with one hash per package."""
    with tempfile.TemporaryDirectory(prefix="lockstep-lock-") as folder:
        lock, current = Path(folder) / f"{name}.lock", lock_path(project, name)
        if current.exists():
            lock.write_text(current.read_text(encoding="utf-8"), encoding="utf-8")
        _compile(project, name, "--generate-hashes", "--no-header", "-o", str(lock))
        keep = {file.sha256 for file in _files_of(project, name, lock).values()}
        return f"# {name}.in, resolved and hash-locked by `make lock`.\n" + _pruned(lock.read_text(), keep)


def locked_files(project: Path, name: str) -> dict[str, LockedFile]:
    """Package → the file that the committed lock means, and where it can be had now (a file or an index's address)."""
    return _files_of(project, name, lock_path(project, name))


def _files_of(project: Path, name: str, lock: Path) -> dict[str, LockedFile]:
    with tempfile.TemporaryDirectory(prefix="lockstep-files-") as folder:
        files = Path(folder) / "pylock.toml"
        _compile(project, name, "-c", str(lock), "--format", "pylock.toml", "-o", str(files))
        return chosen(files)


def _compile(project: Path, name: str, *arguments: str) -> None:
    platform = ["--python-version", PYTHON_MINOR, "--python-platform", f"x86_64-manylinux_{_GLIBC[0]}_{_GLIBC[1]}"]
    hidden = ["--no-emit-index-url", "--no-emit-find-links", "--quiet"]
    source = [] if name == "cuda" else torch_source()
    inputs = [f"{name}.in", *_EXTRA_ARGUMENTS[name]]
    _run_uv("pip", "compile", *inputs, *arguments, *platform, *hidden, *source, cwd=project / "requirements")


def _run_uv(*arguments: str, cwd: Path | None = None) -> None:
    uv = Path(sys.prefix) / "bin" / "uv"
    if not uv.exists():
        raise UsageError(f"{uv} is missing; `make setup` installs it")
    done = subprocess.run([str(uv), *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LockstepError(f"`uv {' '.join(arguments[:4])} …` failed:\n{done.stderr.strip()[-2000:]}")


def torch_source() -> list[str]:
    """uv's arguments that tell where the CPU build of torch comes from: a folder, else PyTorch's own index."""
    folders = host_variables().get("PIP_FIND_LINKS", "").split()
    if any(list(Path(folder).glob("torch-*+cpu*.whl")) for folder in folders):
        return [word for folder in folders for word in ("--find-links", folder)]
    return ["--torch-backend", "cpu"]


def chosen(files: Path) -> dict[str, LockedFile]:
    """Package → the one file that an installer takes on this platform, from a pylock.toml (PEP 751)."""
    order = {tag: position for position, tag in enumerate(_platform_tags())}
    packages = tomllib.loads(files.read_text(encoding="utf-8"))["packages"]
    return {normalised(package["name"]): _best_file(package, order) for package in packages}


def _platform_tags() -> list[tags.Tag]:
    version = (3, 11)
    modern = [f"manylinux_{_GLIBC[0]}_{minor}_x86_64" for minor in range(_GLIBC[1], 4, -1)]
    legacy = {17: "manylinux2014_x86_64", 12: "manylinux2010_x86_64", 5: "manylinux1_x86_64"}
    platforms = []
    for name in modern:
        platforms.append(name)
        minor = int(name.split("_")[2])
        platforms += [legacy[minor]] if minor in legacy else []
    platforms.append("linux_x86_64")
    return [
        *tags.cpython_tags(version, ["cp311"], platforms),
        *tags.compatible_tags(version, "cp311", platforms),
    ]


def _best_file(package: dict[str, Any], order: dict[tags.Tag, int]) -> LockedFile:
    ranked = []
    for wheel in package.get("wheels", []):
        filename = unquote(wheel["url"].rsplit("/", 1)[-1])
        ranks = [order[tag] for tag in parse_wheel_filename(filename)[3] if tag in order]
        if ranks:
            ranked.append((min(ranks), filename, wheel))
    best = min(ranked, key=lambda row: row[:2])[2] if ranked else package.get("sdist")
    if best is None:
        named = f"{package['name']} {package['version']}"
        raise LockstepError(
            f"{named} has no file for Python {PYTHON_MINOR} on Linux x86_64 (glibc {_GLIBC[0]}.{_GLIBC[1]})"
        )
    return LockedFile(best["url"], best["hashes"]["sha256"])


def _pruned(lock: str, keep: set[str]) -> str:
    """The lock with only the hashes in `keep`; a continuation that led to a dropped line ends before it."""
    lines = [
        line
        for line in lock.splitlines()
        if not (found := re.search(r"--hash=sha256:([0-9a-f]{64})", line)) or found[1] in keep
    ]
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line.endswith("\\") and "--hash" not in following:
            lines[index] = line.rstrip("\\").rstrip()
    return "\n".join(lines) + "\n"


def update_environments(project: Path, say: Callable[[str], None]) -> list[str]:
    """Writes each flavour's id and package list to image.lock and its file digests to `requirements/*.records.json`.

    Returns the names of the files that changed. Digests of wheels already known are kept; when one is missing, the lock
    is installed into a temporary environment, hash-checked by the installer, and read from there.
    """
    path = image_lock_path(project)
    lock = read_image_lock(project) if path.exists() else {"environments": {}, "images": {}}
    changed = [f"requirements/{flavour}.records.json" for flavour in FLAVOURS if _update_records(project, flavour, say)]
    environments = {flavour: environment_entry(project, flavour) for flavour in FLAVOURS}
    if environments != lock["environments"]:
        write_json(path, {**lock, "environments": environments})
        changed.append("image.lock")
    return changed


def environment_entry(project: Path, flavour: str) -> dict[str, Any]:
    """What image.lock says about one flavour. Kept short: DVC reads the file for every stage."""
    lock = lock_path(project, flavour)
    pins = read_lock(lock)
    return {
        "id": environment_id_of(pins),
        "python": PYTHON_MINOR,
        "lock": f"requirements/{lock.name}",
        "lock_sha256": sha256_file(lock),
        "packages": {pin.name: pin.version for pin in pins.values()},
    }


def _update_records(project: Path, flavour: str, say: Callable[[str], None]) -> bool:
    path, pins = records_path(project, flavour), read_lock(lock_path(project, flavour))
    before = read_json(path) if path.exists() else {}
    if {name: row["sha256"] for name, row in before.items()} == {name: pin.sha256 for name, pin in pins.items()}:
        return False
    say(f"installing {flavour}.lock into a temporary folder to read its packages' file lists")
    records = _installed_records(project, flavour)
    write_json(path, {name: {"sha256": pin.sha256, "record": records[name]} for name, pin in pins.items()})
    return True


def _installed_records(project: Path, flavour: str) -> dict[str, str]:
    lock = str(lock_path(project, flavour))
    with tempfile.TemporaryDirectory(prefix="lockstep-records-", dir=project) as folder:
        _run_uv("venv", "--quiet", "--python", sys.executable, folder)
        source = [] if flavour == "cuda" else torch_source()
        hashed = ["--require-hashes", "--no-deps", "--build-constraints", lock, "-r", lock]
        _run_uv("pip", "install", "--quiet", "--python", f"{folder}/bin/python", *hashed, *source)
        site = Path(folder) / "lib" / f"python{PYTHON_MINOR}" / "site-packages"
        return {name: record_digest(found.record) for name, found in installed_packages(site).items()}
