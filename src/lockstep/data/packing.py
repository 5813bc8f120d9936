"""Several samples in one row, so that little of a batch is padding; no sample is cut and none sees another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.data.encode import Sample

_WINDOW_TOKENS = 1 << 20
_WINDOW_ROWS = 64


@dataclass
class RowBuilder:
    """Takes samples, hands on rows whose lengths sum to `capacity` at most (None: each sample is a row of its own).

    Packs a window of about a million tokens at a time, so memory does not grow with the data. Every sample must fit.
    """

    add_row: Callable[[list[Sample]], None]
    capacity: int | None
    _window: list[Sample] = field(default_factory=list)
    _num_tokens: int = 0

    def add(self, sample: Sample) -> None:
        """Takes one sample; hands on the window's rows when it is full."""
        self._window.append(sample)
        self._num_tokens += len(sample)
        if self.capacity is None or self._num_tokens >= max(_WINDOW_TOKENS, _WINDOW_ROWS * self.capacity):
            self.finish()

    def finish(self) -> None:
        """Hands on what is left."""
        lengths = [len(sample) for sample in self._window]
        rows = [[0]] if self.capacity is None and lengths else best_fit_decreasing(lengths, self.capacity or 0)
        for row in rows:
            self.add_row([self._window[index] for index in row])
        self._window, self._num_tokens = [], 0


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` by row: longest first, each into the fullest row that still takes it (Johnson, 1973).

    Ties go to the lower index, indices rise within a row, and rows are ordered by their first index, so one input has
    one result. Raises ValueError for a length above `capacity`.
    """
    rows_with_room: dict[int, list[list[int]]] = {}
    rooms = 0  # bit r is set while some row has room for exactly r more tokens
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > capacity:
            raise ValueError(f"sample {index} has {length} tokens, a row {capacity}")
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row = capacity, []
            rows.append(row)
        row.append(index)
        rows_with_room.setdefault(room - length, []).append(row)
        rooms |= 1 << (room - length)
    return sorted(sorted(row) for row in rows)
