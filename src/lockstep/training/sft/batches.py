"""From rows to micro-batches: a loader over the step sampler, with token counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader

from lockstep.training.common.batches import StepSampler

Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]


def training_loader(dataset: Dataset, sampler: StepSampler, collate: Collate, num_workers: int) -> DataLoader[Any]:
    """A loader that leaves the global random state alone (torch draws a base seed from it unless given a generator)."""
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=Counted(collate),
        num_workers=num_workers,
        generator=torch.Generator(),
    )


@dataclass(frozen=True)
class Counted:
    """Adds `num_tokens`, the batch's tokens without padding, to what the collator makes."""

    collate: Collate

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = self.collate(rows)
        batch["num_tokens"] = torch.tensor(sum(len(row["input_ids"]) for row in rows))
        return batch
