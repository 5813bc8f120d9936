"""From rows of the token store to a batch whose attention stays inside each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.store import IGNORED


@dataclass(frozen=True)
class RowCollator:
    """Stacks B rows to (B, T) tensors with position ids that restart at every sample, and no attention mask.

    Given position ids without a mask, Transformers (masking_utils.find_packed_sequence_indices) starts a new sequence
    wherever positions do not rise by one and lets attention cross no such border, for each row by itself. So the cost
    of attention is B·T², not (B·T)² as with all samples joined into one row. Shorter rows are filled up on the right
    with a sequence of padding that carries no loss and that nothing attends to.
    """

    pad_token_id: int
    pad_to_multiple_of: int = 1

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns int64 `input_ids`, `labels` and `position_ids`, each (B, T). A pad token is known by its place."""
        longest = max(len(row["input_ids"]) for row in rows)
        length = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        return {
            "input_ids": _stack([row["input_ids"] for row in rows], length, self.pad_token_id),
            "labels": _stack([row["labels"] for row in rows], length, IGNORED),
            "position_ids": torch.from_numpy(
                np.stack([position_ids([*row["seq_lengths"], length - len(row["input_ids"])]) for row in rows])
            ),
        }


def position_ids(seq_lengths: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """0, 1, 2, … within each sample: shape (sum of `seq_lengths`,)."""
    lengths = np.asarray(seq_lengths, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)


def _stack(rows: list[Any], length: int, filler: int) -> Tensor:
    stacked = np.full((len(rows), length), filler, dtype=np.int64)
    for number, row in enumerate(rows):
        stacked[number, : len(row)] = row
    return torch.from_numpy(stacked)
