"""The optimiser over adapters and value head, and its learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch

from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Backbone, Role

_BITSANDBYTES = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "paged_adamw_32bit": "PagedAdamW32bit",
}


def build_optimizer(backbone: Backbone, value_head: ScalarHead, params: PpoParams) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter, 2019) with a group for each adapter and one for the value head.

    The head's default rate is learning_rate / sqrt(hidden_size): its output is a sum over hidden_size features, and
    Adam moves every weight by the rate, so at the adapters' rate a step would move values by more than rewards differ.
    """
    head_rate = params.value.learning_rate or params.learning_rate / math.sqrt(backbone.hidden_size)
    groups = [
        {"params": list(backbone.parameters_of(role).values()), "base_lr": params.learning_rate, "role": role.value}
        for role in sorted(backbone.trainable)
    ]
    groups.append({"params": list(value_head.parameters()), "base_lr": head_rate, "role": Role.VALUE.value})
    common: dict[str, Any] = {
        "lr": 0.0,
        "betas": (params.adam_beta1, params.adam_beta2),
        "eps": params.adam_epsilon,
        "weight_decay": params.weight_decay,
    }
    if params.optim in _BITSANDBYTES:
        import bitsandbytes as bnb

        optimizer = getattr(bnb.optim, _BITSANDBYTES[params.optim])(groups, **common)
    else:
        optimizer = torch.optim.AdamW(groups, fused=params.optim == "adamw_torch_fused", **common)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, params: PpoParams) -> float:
    """Sets every group's rate for PPO step `step` (from 0); returns the policy's."""
    factor = _schedule(step, params)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return params.learning_rate * factor


def _schedule(step: int, params: PpoParams) -> float:
    if step < params.warmup_steps:
        return (step + 1) / params.warmup_steps
    progress = (step - params.warmup_steps) / max(1, params.max_steps - params.warmup_steps)
    if params.lr_scheduler_type == "linear":
        return 1 - progress
    if params.lr_scheduler_type == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1.0
