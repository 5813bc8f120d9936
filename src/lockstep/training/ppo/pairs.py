"""Preference pairs as tokens, and how often a reward model ranks held-out ones right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lockstep.data.store import read_preferences
from lockstep.foundation.errors import UsageError

Score = Callable[[Tensor, Tensor], Tensor]
"""(tokens, attention mask), right-padded → a reward per row."""


def tokenised_pairs(path: Path, tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[Dataset, int]:
    """The pairs of one split with columns chosen_ids and rejected_ids, and how many were too long to keep.

    Each text is prompt and answer, ended by the end-of-text token, which is where the reward is read. Raises UsageError
    when no pair is left.
    """
    columns: dict[str, list[list[int]]] = {"chosen_ids": [], "rejected_ids": []}
    num_too_long = 0
    for pair in read_preferences(path):
        chosen, rejected = (
            [*tokenizer(pair.prompt + answer)["input_ids"], tokenizer.eos_token_id]
            for answer in (pair.chosen, pair.rejected)
        )
        if max(len(chosen), len(rejected)) > max_length:
            num_too_long += 1
            continue
        columns["chosen_ids"].append(chosen)
        columns["rejected_ids"].append(rejected)
    if not columns["chosen_ids"]:
        raise UsageError(
            f"{path} has no pair of at most {max_length} tokens ({num_too_long} are longer), so there is nothing to "
            "learn from. Raise reward.max_length, or name data.preferences.sources."
        )
    return Dataset.from_dict(columns), num_too_long


@torch.no_grad()
def num_ranked_right(
    score: Score, pairs: Dataset, rows: range, pad_token_id: int, device: torch.device, *, batch_size: int
) -> int:
    """How many of the pairs `rows` get a higher reward for the chosen text; `batch_size` pairs at a time."""
    right = 0
    for start in range(0, len(rows), batch_size):
        batch = pairs.select(rows[start : start + batch_size])
        texts = [*batch["chosen_ids"], *batch["rejected_ids"]]
        longest = max(len(text) for text in texts)
        tokens = torch.tensor([text + [pad_token_id] * (longest - len(text)) for text in texts], device=device)
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device)
        chosen, rejected = score(tokens, mask).chunk(2)
        right += int((chosen > rejected).sum())
    return right
