"""The metric spool: append-only JSON lines in the run directory, the first and durable home of every number.

One line is `{"step": 7, "time_ms": 1764500000000, "attempt": 1, "values": {"loss": 2.5}}`, from a single write().
JSON has no NaN, so non-finite values are the strings "NaN", "Infinity" and "-Infinity". A process that dies inside a
line leaves a torn tail: readers ignore it and the next writer cuts it off.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Point:
    """One line of a spool. `end` is the byte offset behind it: where a reader that has taken this line goes on."""

    step: int
    time_ms: int
    attempt: int
    values: dict[str, float]
    end: int


class Spool:
    """The writer of one attempt. Raises OSError when a line cannot be written whole; no part of it stays then."""

    def __init__(self, path: Path, *, attempt: int) -> None:
        """Opens (or makes) the spool at `path` and cuts off a torn last line of an attempt that was killed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._attempt = attempt
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, _end_of_whole_lines(self._fd))

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one line for `step`; values are anything that float() takes, non-finite ones included."""
        line = {
            "step": step,
            "time_ms": time.time_ns() // 1_000_000,
            "attempt": self._attempt,
            "values": {key: _to_json(float(value)) for key, value in values.items()},
        }
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        start = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                # A short write means a full disk; the second write raises the error that says so.
                os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def close(self) -> None:
        """Makes what was written durable and closes the file."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_points(path: Path, offset: int = 0) -> Iterator[Point]:
    """The whole lines of the spool from byte `offset` on, in the order written; none when the file is not there.

    A torn last line is left for later: it may be in the middle of being written.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            yield _parse(json.loads(raw), offset)


def curve(path: Path, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric by step. The last line wins: a step replayed after a resume counts once."""
    return sorted({point.step: point.values[key] for point in read_points(path) if key in point.values}.items())


def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Every metric's curve in one pass, as `curve` gives it."""
    found: dict[str, dict[int, float]] = {}
    for point in read_points(path):
        for key, value in point.values.items():
            found.setdefault(key, {})[point.step] = value
    return {key: sorted(steps.items()) for key, steps in found.items()}


def last_step(path: Path) -> int | None:
    """The highest step in the spool, or None when it holds no line."""
    return max((point.step for point in read_points(path)), default=None)


def _end_of_whole_lines(fd: int) -> int:
    """The offset behind the last newline: the file's size unless its last line is torn."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _parse(line: dict[str, Any], end: int) -> Point:
    values = {key: float(value) for key, value in line["values"].items()}
    return Point(line["step"], line["time_ms"], line["attempt"], values, end)
