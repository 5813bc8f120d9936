"""The order in which training visits rows: a permutation per epoch that is computed, not stored or replayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
_NUM_ROUNDS = 8
_MIN_HALF_BITS = 3


@dataclass(frozen=True)
class EpochOrder:
    """Maps a global sample index (0, 1, 2, … over all epochs) to a row, in O(1) time and memory.

    Each epoch visits every row exactly once, in an order that depends on (seed, epoch) alone. The permutation is a
    balanced Feistel network on the smallest even number of bits that holds `num_rows`, with cycle walking (Black and
    Rogaway, 2002, "Ciphers with Arbitrary Finite Domains"), its round function the finaliser of SplitMix64 (Steele et
    al., 2014). So a resumed run seeks to its next sample, and no global random state is involved.
    """

    num_rows: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise ValueError("an order needs at least one row")

    def row(self, index: int) -> int:
        """The row of global sample `index` (epoch = index // num_rows)."""
        epoch, position = divmod(index, self.num_rows)
        keys = self._keys(epoch)
        row: int = self._encrypt(position, keys)
        while row >= self.num_rows:
            row = self._encrypt(row, keys)
        return row

    def epoch(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All rows in the order of one epoch, shape (num_rows,)."""
        keys = self._keys(epoch)
        rows: np.ndarray[Any, Any] = self._encrypt(np.arange(self.num_rows, dtype=np.uint64), keys)
        while (outside := rows >= self.num_rows).any():
            rows[outside] = self._encrypt(rows[outside], keys)
        return rows.astype(np.int64)

    @cached_property
    def _half_bits(self) -> int:
        return max(_MIN_HALF_BITS, ((self.num_rows - 1).bit_length() + 1) // 2)

    def _keys(self, epoch: int) -> list[int]:
        base = _mix(_mix(self.seed & _MASK) + epoch)
        return [int(_mix(base + number)) for number in range(1, _NUM_ROUNDS + 1)]

    def _encrypt(self, values: Any, keys: list[int]) -> Any:
        """One pass of the network over an int, or an array of uint64."""
        mask = (1 << self._half_bits) - 1
        left, right = values >> self._half_bits, values & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << self._half_bits) | right


def _mix(values: Any) -> Any:
    """SplitMix64's output function on 64-bit numbers, modulo 2**64: one int, or an array of uint64."""
    z = (values + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
