"""AdamW whose moments take one byte each, on shards: what lets a 70B model train on one node.

bitsandbytes' optimisers refuse DTensors. Its kernel works on any flat piece of memory, though, and quantises moments in
blocks of 256 numbers, each with a scale of its own (Dettmers et al., 2022, "8-bit optimizers via block-wise
quantization", arXiv:2110.02861). FSDP2 shards by rows, so wherever a row is a whole number of blocks no block lies on
two ranks: the update is the same on shards as on the whole parameter, and a checkpoint can be resharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from bitsandbytes.functional import create_dynamic_map, optimizer_update_8bit_blockwise
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from lockstep.checkpoints.optimizer import zeros_by_rows

_BLOCK = 256
_SMALL = 4096
"""Parameters with fewer numbers keep fp32 moments, as in bitsandbytes (min_8bit_size)."""


class AdamW8bit(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, 2019) with block-wise 8-bit moments, for tensors and DTensors sharded by rows.

    Parameters that are small, or whose rows are no whole number of blocks, keep fp32 moments.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._codes: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_fresh(parameter))
        state["step"] += 1
        shard, gradient = _local(parameter), _local(parameter.grad)
        if shard.numel() == 0:
            return
        moments = {name: _local(value) for name, value in state.items() if isinstance(value, Tensor)}
        if "scale1" in moments:
            self._update_8bit(shard, gradient, moments, state["step"], group)
        else:
            _update_fp32(shard, gradient, moments, state["step"], group)

    def _update_8bit(
        self, shard: Tensor, gradient: Tensor, moments: dict[str, Tensor], step: int, group: dict[str, Any]
    ) -> None:
        signed, unsigned = self._code_books(shard.device)
        optimizer_update_8bit_blockwise(
            "adam",
            gradient.contiguous(),
            shard,
            moments["moment1"],
            moments["moment2"],
            *group["betas"],
            0.0,
            0.0,
            group["eps"],
            step,
            float(group["lr"]),
            signed,
            unsigned,
            moments["scale1"].view(-1),
            moments["scale2"].view(-1),
            weight_decay=group["weight_decay"],
        )

    def _code_books(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._codes:
            self._codes[device] = (
                create_dynamic_map(signed=True).to(device),
                create_dynamic_map(signed=False).to(device),
            )
        return self._codes[device]


def _update_fp32(shard: Tensor, gradient: Tensor, moments: dict[str, Tensor], step: int, group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    gradient = gradient.float()
    shard.mul_(1 - group["lr"] * group["weight_decay"])
    moments["moment1"].lerp_(gradient, 1 - beta1)
    moments["moment2"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    deviation = (moments["moment2"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
    shard.add_((moments["moment1"] / deviation).to(shard.dtype), alpha=-group["lr"] / (1 - beta1**step))


def _fresh(parameter: Tensor) -> dict[str, Any]:
    """Zero moments: one byte each and a scale for every block, or fp32. All sharded as the parameter is."""
    row_size = parameter.numel() // parameter.shape[0] if parameter.ndim else 1
    if parameter.numel() < _SMALL or row_size % _BLOCK or not _by_rows(parameter):
        moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("moment1", "moment2")}
        return {"step": 0, **moments}
    moments = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("moment1", "moment2")}
    scales = {name: zeros_by_rows(parameter, row_size // _BLOCK, torch.float32) for name in ("scale1", "scale2")}
    return {"step": 0, **moments, **scales}


def _by_rows(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return True
    return all(not isinstance(placement, Shard) or placement.dim == 0 for placement in parameter.placements)


def _local(tensor: Tensor | None) -> Tensor:
    """This rank's shard, over the same memory."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
