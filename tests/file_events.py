"""File events of Linux (inotify(7)): a test waits for what another process does to a folder instead of sleeping."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_MODIFY, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_IS_FOLDER = 0x40000000
_HEADER = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class FileEvents:
    """Events in `roots` and in folders that appear in them, one after the other. A context."""

    def __init__(self, *roots: Path) -> None:
        self._fd = _LIBC.inotify_init1(os.O_NONBLOCK)
        self._folders: dict[int, Path] = {}
        for root in roots:
            self._watch(root)

    def __enter__(self) -> FileEvents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def follow(self, timeout_s: float) -> Iterator[tuple[Path, bool]]:
        """Yields (path, whether it arrived under that name by a rename). Raises TimeoutError after a silence."""
        while True:
            ready, _, _ = select.select([self._fd], [], [], timeout_s)
            if not ready:
                raise TimeoutError(f"no file event in {timeout_s} s")
            yield from self._read()

    def _read(self) -> Iterator[tuple[Path, bool]]:
        data, at = os.read(self._fd, 1 << 16), 0
        while at < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, at)
            name = data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0").decode()
            at += _HEADER.size + length
            if watch not in self._folders or not name:
                continue
            path = self._folders[watch] / name
            if mask & _IS_FOLDER and mask & _CREATE:
                self._watch(path)
            yield path, bool(mask & _MOVED_TO)

    def _watch(self, folder: Path) -> None:
        watch = _LIBC.inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
        if watch >= 0:
            self._folders[watch] = folder
