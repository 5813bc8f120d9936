"""The order in which training visits rows: a permutation per epoch that is computed, not stored or replayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
_NUM_ROUNDS = 8
_MIN_HALF_BITS = 5


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
        while True:
            position = int(self._encrypt(np.array([position], dtype=np.uint64), keys)[0])
            if position < self.num_rows:
                return position

    def epoch(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All rows in the order of one epoch, shape (num_rows,)."""
        keys = self._keys(epoch)
        rows = self._encrypt(np.arange(self.num_rows, dtype=np.uint64), keys)
        while (outside := rows >= self.num_rows).any():
            rows[outside] = self._encrypt(rows[outside], keys)
        return rows.astype(np.int64)

    @cached_property
    def _half_bits(self) -> int:
        return max(_MIN_HALF_BITS, ((self.num_rows - 1).bit_length() + 1) // 2)

    def _keys(self, epoch: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        base = _mix(np.array([self.seed & _MASK], dtype=np.uint64))
        epoch_key = _mix(base + np.array([epoch & _MASK], dtype=np.uint64))
        return _mix(epoch_key + np.arange(1, _NUM_ROUNDS + 1, dtype=np.uint64))

    def _encrypt(self, values: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << bits) | right


def _mix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """SplitMix64's output function on uint64 values, modulo 2**64."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
