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
    """Makes a batch of B rows: token ids, labels and position ids that restart at every sample; no attention mask.

    Given position ids and neither mask nor cache (call the model with use_cache=False), Transformers starts a sequence
    wherever positions do not rise by one and lets attention cross no such border (masking_utils,
    find_packed_sequence_indices), in each row by itself. So attention costs B·T², not (B·T)² as it does with all
    samples in one row. Shorter rows are filled up on the right with a sequence of padding that nothing attends to.

    Flash attention finds the borders in a single row only (modeling_flash_attention_utils, _is_packed_sequence) and
    ignores them, without a word, in several; its cost does not grow with the row. For it, `join_rows`.
    """

    pad_token_id: int | None
    """What fills rows up; None where the tokenizer has none: token 0 then, since padding is known by its place."""
    attn_implementation: str = "sdpa"

    @property
    def join_rows(self) -> bool:
        """Whether the batch is one row without padding, for kernels that take sequences of any length."""
        return self.attn_implementation.startswith("flash")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns int64 `input_ids`, `labels` and `position_ids`, each (B, T), or (1, sum of T) with `join_rows`."""
        groups = [list(rows)] if self.join_rows else [[row] for row in rows]
        length = max(sum(len(row["input_ids"]) for row in group) for group in groups)
        return {
            "input_ids": _stack(groups, "input_ids", length, self.pad_token_id or 0),
            "labels": _stack(groups, "labels", length, IGNORED),
            "position_ids": torch.from_numpy(np.stack([_positions(group, length) for group in groups])),
        }


def _positions(group: list[Mapping[str, Any]], length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths = [int(one) for row in group for one in row["seq_lengths"]]
    return position_ids([*lengths, length - sum(lengths)])


def position_ids(seq_lengths: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """0, 1, 2, … within each sample: shape (sum of `seq_lengths`,)."""
    lengths = np.asarray(seq_lengths, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)


def _stack(groups: list[list[Mapping[str, Any]]], column: str, length: int, filler: int) -> Tensor:
    stacked = np.full((len(groups), length), filler, dtype=np.int64)
    for number, group in enumerate(groups):
        joined = np.concatenate([np.asarray(row[column]) for row in group])
        stacked[number, : len(joined)] = joined
    return torch.from_numpy(stacked)
