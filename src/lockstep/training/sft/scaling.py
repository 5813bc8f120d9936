"""What fp16 needs beside bf16: a scale on the loss, and a step left out where a gradient overflowed.

fp16 gradients below 6e-8 are zero, so the loss is multiplied by a large number and the gradients are divided by it
(Micikevicius et al., 2018, "Mixed precision training", arXiv:1710.03740, section 3.2). Whether a gradient overflowed is
asked on every shard, and the answer is shared: DTensor reduces it over the ranks, so all leave the step out or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import GradScaler


def loss_scaler(compute: str, device: torch.device) -> GradScaler | None:
    """The scaler for a compute dtype; None where none is needed."""
    return GradScaler(device.type) if compute == "fp16" else None


def leave_skipping_to_the_scaler(optimizer: torch.optim.Optimizer) -> None:
    """Fused optimisers would take the verdict into their kernel, which refuses it beside shards (DTensors)."""
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


def scaler_facts(scaler: GradScaler | None) -> dict[str, Any] | None:
    """The scaler's state as JSON."""
    return None if scaler is None else dict(scaler.state_dict())


def restore_scaler(scaler: GradScaler | None, facts: dict[str, Any] | None) -> None:
    """Takes over what `scaler_facts` gave."""
    if scaler is not None and facts is not None:
        scaler.load_state_dict(facts)
