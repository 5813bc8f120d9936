"""The content of an image as a list of files, and its name: equal for a Docker image and a SIF made from it.

One line per entry below `/`: path, kind, permission bits, and the sha256 of a file or the target of a link. Owner,
times and extended attributes do not count (an unprivileged build drops them), nor what an engine mounts or adds.
The content id is the sha256 of the sorted lines. `python -m lockstep.engines.content` prints the lines of its own root.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_MOUNTED = {"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/root", "/home"}
"""Filled anew by every engine at start."""
_ENGINES_OWN = {
    "/.singularity.d", "/.exec", "/.run", "/.shell", "/.test", "/singularity", "/environment", "/.dockerenv",
    "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/mtab", "/etc/localtime", "/etc/passwd", "/etc/group",
}  # fmt: skip
_LEFT_OUT = _MOUNTED | _ENGINES_OWN


def entries(root: Path) -> list[str]:
    """The sorted lines for everything below `root`, files hashed in parallel (a SIF's reads are slow one by one)."""
    top = os.fsencode(root).rstrip(b"/")
    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        return list(pool.map(lambda path: _line(top, path), sorted(_walk(top, b""))))


def content_id(lines: list[str]) -> str:
    """The name of a content: sha256 over its lines."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _walk(root: bytes, folder: bytes) -> Iterator[bytes]:
    with os.scandir(root + folder or b"/") as listing:
        for entry in listing:
            path = folder + b"/" + entry.name
            if os.fsdecode(path) in _LEFT_OUT:
                continue
            yield path
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, path)


def _line(root: bytes, path: bytes) -> str:
    whole = root + path
    status = os.lstat(whole)
    kind, detail = "other", ""
    if stat.S_ISDIR(status.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(status.st_mode):
        kind, detail = "link", _text(os.readlink(whole))  # noqa: PTH115 (names are bytes here)
    elif stat.S_ISREG(status.st_mode):
        kind, detail = "file", _sha256(whole)
    return f"{_text(path)}\t{kind}\t{stat.S_IMODE(status.st_mode) & 0o777:03o}\t{detail}"


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace").replace("\t", "\\t").replace("\n", "\\n")


def _sha256(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def differences(locked: list[str], found: list[str]) -> list[str]:
    """What differs, one line a path: `changed`, `missing` or `added`."""
    before = dict(line.split("\t", 1) for line in locked)
    after = dict(line.split("\t", 1) for line in found)
    rows = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            rows.append(f"missing  {path}")
        elif path not in before:
            rows.append(f"added    {path}")
        elif before[path] != after[path]:
            rows.append(f"changed  {path}")
    return rows


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in entries(Path("/"))))
