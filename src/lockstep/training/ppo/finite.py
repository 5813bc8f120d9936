"""When numbers stop being finite: which layer was the first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import Completions


@torch.no_grad()
def first_non_finite(backbone: Backbone, completions: Completions) -> str | None:
    """The name of the first module (in forward order, innermost first) whose output on a real token is not finite.

    Runs the body and the head again under the active role with a hook on each module. None if all are finite.
    """
    found: list[str] = []
    real = completions.attention_mask.bool()

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if not found and isinstance(tensor, Tensor) and tensor.is_floating_point() and _bad(tensor, real):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in backbone.model.named_modules() if name]
    try:
        states = backbone.hidden_states(completions.tokens, completions.attention_mask, completions.position_ids)
        backbone.output_head(states[:, -1])
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _bad(tensor: Tensor, real: Tensor) -> bool:
    if tensor.shape[:2] == real.shape:
        tensor = tensor[real]
    return not bool(torch.isfinite(tensor).all())


def explain_non_finite(backbone: Backbone, role: Role, completions: Completions) -> str:
    """A message for people: where the first bad number came from, and what usually helps."""
    layer = first_non_finite(backbone, completions) or "the log-softmax over the vocabulary"
    return (
        f"A log-probability of the {role} is not finite. The first layer with a bad output: {layer}.\n"
        "Usual causes: fp16 or int8 activations out of range (write model.precision.compute: bf16, or raise "
        "model.quantization.llm_int8_threshold), or a learning rate that is too high (ppo.learning_rate)."
    )
