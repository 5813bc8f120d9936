"""Held-out perplexity that does not depend on the number of ranks or the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from lockstep.data.store import IGNORED
from lockstep.training.common.ranks import Ranks
from lockstep.training.sft.batches import Collate
from lockstep.training.sft.loss import Head


@dataclass(frozen=True)
class HeldOut:
    """Summed negative log-likelihood (nats) over a data set, and the number of tokens it was summed over."""

    nll: float
    num_tokens: int

    @property
    def loss(self) -> float:
        """Mean over supervised tokens."""
        return self.nll / max(1, self.num_tokens)

    @property
    def perplexity(self) -> float:
        """exp of the mean; infinite where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def evaluate(
    model: nn.Module,
    head: Head,
    dataset: Dataset,
    collate: Collate,
    ranks: Ranks,
    batch_size: int,
    stop_requested: Callable[[], bool],
) -> HeldOut | None:
    """Sums over all rows, shared out among the ranks; sums are kept in fp64. Collective.

    All ranks run equally many forward passes (sharded models need that); a rank without rows left repeats one without
    labels. Leaves the model in evaluation mode. None when a stop was requested on the way.
    """
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    rows_per_round = ranks.world_size * batch_size
    try:
        for start in range(0, len(dataset), rows_per_round):
            sums += _batch_sums(
                model, head, _share(dataset, collate, start + ranks.rank * batch_size, batch_size), ranks
            )
            if stop_requested():
                return None
    finally:
        _reshard(model)
    dist.all_reduce(sums, group=ranks.control)
    return HeldOut(float(sums[0]), int(sums[1]))


def _share(dataset: Dataset, collate: Collate, start: int, batch_size: int) -> dict[str, Tensor]:
    rows = [dataset[index] for index in range(start, min(start + batch_size, len(dataset)))]
    batch = collate(rows or [dataset[0]])
    if not rows:
        batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    return batch


@torch.no_grad()
def _batch_sums(model: nn.Module, head: Head, batch: dict[str, Tensor], ranks: Ranks) -> Tensor:
    num_tokens = (batch["labels"][:, 1:] != IGNORED).sum()
    nll = head(model, {name: tensor.to(ranks.device) for name, tensor in batch.items()})
    return torch.stack([nll.double().cpu(), num_tokens.double().cpu()])


def _reshard(model: nn.Module) -> None:
    """The last units stay gathered after a forward without backward; a save must see shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
