"""What is installed in an environment, read from its metadata, and the digest of each package's files."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from lockstep.engines.lockfile import normalised
from lockstep.foundation.files import sha256_bytes

_INSTALLER_FILES = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_build.json", "uv_cache.json"}
_CHUNK_BYTES = 1 << 20
CHECK_STAMP = ".lockstep-checked"
"""Left in an environment by a full check: id and signature of what was checked."""


@dataclass(frozen=True)
class Installed:
    """One installed package."""

    name: str
    version: str
    record: Path


def site_packages() -> Path:
    """Where this Python's environment keeps its packages."""
    return Path(sysconfig.get_path("purelib"))


def installed_packages(site: Path) -> dict[str, Installed]:
    """All packages in `site` by normalised name; reads folder names only, so it takes milliseconds."""
    found: dict[str, Installed] = {}
    for folder in site.glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        found[normalised(name)] = Installed(normalised(name), version, folder / "RECORD")
    return found


def record_rows(record: Path) -> list[tuple[str, str]]:
    """(relative path, hash) of each file that the wheel brought, sorted; a hash is `sha256=<urlsafe base64>`.

    Left out is what an installer makes: bytecode, its own notes, and scripts outside the folder, whose first line
    holds the environment's path.
    """
    with open(record, newline="", encoding="utf-8") as file:
        rows = [(row[0], row[1]) for row in csv.reader(file) if row]
    return sorted((path, digest) for path, digest in rows if digest and _from_the_wheel(path))


def _from_the_wheel(path: str) -> bool:
    if path.startswith("../") or path.endswith(".pyc"):
        return False
    folder, _, name = path.rpartition("/")
    return not (folder.endswith(".dist-info") and name in _INSTALLER_FILES)


def record_digest(record: Path) -> str:
    """sha256 over `record_rows`: one name for the content that a package brought."""
    return sha256_bytes("\n".join(f"{path} {digest}" for path, digest in record_rows(record)).encode())


def changed_files(site: Path, record: Path) -> list[str]:
    """Files of one package whose bytes are not those that its RECORD names, or that are gone."""
    return [path for path, digest in record_rows(record) if _file_digest(site / path) != digest]


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        return "missing"
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def signature(site: Path) -> str:
    """sha256 over path, size and modification time of every file but bytecode: a tenth of a second for a venv.

    It tells whether a full check must be repeated; it is no name of the content.
    """
    digest = hashlib.sha256()
    folders = [str(site)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif not entry.name.endswith(".pyc") and entry.name != CHECK_STAMP:
                    stat = entry.stat(follow_symlinks=False)
                    digest.update(f"{entry.path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
