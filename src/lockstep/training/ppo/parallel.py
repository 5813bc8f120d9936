"""Data parallelism by hand: which rows are this rank's, and sums over ranks. Nothing is wrapped, nothing is hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Replicas:
    """The ranks that each hold the backbone and complete prompts of their own."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def current(cls) -> Replicas:
        """All ranks of the default process group; one where there is none."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    def share(self, total: int) -> range:
        """This rank's part of `total` rows, which the number of ranks divides."""
        size = total // self.world_size
        return range(self.rank * size, (self.rank + 1) * size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, the same bits on all of them."""
        if self.world_size == 1:
            return tensor
        summed = tensor.detach().clone()
        dist.all_reduce(summed)
        return summed

    def max(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum over ranks."""
        if self.world_size == 1:
            return tensor
        largest = tensor.detach().clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Sums gradients over ranks in place, in one collective. A parameter without a gradient counts as zeros.

        Losses are shares of the minibatch's mean over all ranks, so the sum is the gradient of the whole minibatch.
        """
        if self.world_size == 1:
            return
        flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
