"""Summed negative log-likelihood of the supervised tokens; the output head, where most memory goes, by device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.data.store import IGNORED


class SupervisedHead:
    """Lets only positions through the output head whose next token carries loss.

    A hook before the head drops the other positions, so neither their logits nor the gradients of those exist; what a
    model does to its logits (scaling, capping) stays in its own code. Positions without loss are most of a chat.
    """

    def __init__(self, model: nn.Module) -> None:
        """`model`: a causal language model, with or without adapters, sharded or not."""
        head = model.get_output_embeddings()  # type: ignore[operator]
        head.register_forward_pre_hook(self._select)
        self._kept: Tensor | None = None

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The summed loss in fp32 of a batch with `input_ids` and `labels` (rows, tokens); labels of -100 do not count.

        A batch without any label gives a zero that still has a (zero) gradient.
        """
        targets = inputs["labels"][:, 1:]
        self._kept = targets != IGNORED
        try:
            logits = model(**{k: v for k, v in inputs.items() if k != "labels"}, use_cache=False).logits
        finally:
            kept, self._kept = self._kept, None
        return functional.cross_entropy(logits.float(), targets[kept], reduction="sum")

    def _select(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """(rows, tokens, hidden) → (supervised positions, hidden)."""
        if self._kept is None:
            return None
        return (args[0][:, :-1][self._kept], *args[1:])


class TiledHead:
    """TRL's fused head (Triton): tiles of the logits are made and dropped again, forward and backward."""

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """As `SupervisedHead`, for a model that an SFTTrainer prepared."""
        return -model(**inputs, use_cache=False, fused_lm_head=True).log_probs.sum()


Head = SupervisedHead | TiledHead


def head_for(model: PreTrainedModel, device: torch.device) -> Head:
    """The head that suits the device: TRL's tiles need Triton, and on CPUs they cost more than they save."""
    return SupervisedHead(model) if device.type == "cpu" else TiledHead()
