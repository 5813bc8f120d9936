"""Tokens per second, model FLOPs utilisation (MFU), time to go and peak memory."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import torch
from torch import nn

from lockstep.params.gpus import gpu_named

_KIB = 1024


def peak_flops(device: torch.device, compute: str) -> float | None:
    """Peak FLOP/s of this device in the compute dtype (params/gpus.py); None where it is no GPU of that table."""
    gpu = gpu_named(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if gpu is None else gpu.peak_flops(compute)


@dataclass(frozen=True)
class FlopsModel:
    """Floating-point operations of forward and backward, as in PaLM (Chowdhery et al., 2022, appendix B).

    Every weight that multiplies a token costs 2 FLOPs in forward, 2 for the gradient of its input, and 2 for its own
    gradient if it is trained: 6 per token, or 4 for a frozen one. Attention adds 6·L·H·T per token when causal (half of
    PaLM's 12·L·H·T). The head is counted on supervised tokens only, because nothing else passes through it here.
    Recomputation (activation checkpointing) is overhead, not model FLOPs.
    """

    num_body: int
    """Weights that multiply every token."""
    num_body_trained: int
    num_head: int
    """Weights of the output head (hidden × vocabulary)."""
    head_trained: bool
    num_layers: int
    hidden_size: int

    @classmethod
    def of(cls, model: nn.Module) -> FlopsModel:
        """Counts a Transformers causal language model, with or without adapters; quantised weights count unpacked."""
        config = model.config.get_text_config()  # type: ignore[operator, union-attr]
        head = model.get_output_embeddings().weight  # type: ignore[operator]
        outside = {id(head), id(model.get_input_embeddings().weight)}  # type: ignore[operator]
        body = [p for p in model.parameters() if id(p) not in outside and p.ndim > 1]
        return cls(
            num_body=sum(_num_weights(p) for p in body),
            num_body_trained=sum(_num_weights(p) for p in body if p.requires_grad),
            num_head=head.numel(),
            head_trained=head.requires_grad,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
        )

    def flops(self, num_tokens: int, num_supervised: int, sequence_length: int) -> float:
        """FLOPs of forward and backward over `num_tokens` in sequences of `sequence_length`."""
        body = 4 * self.num_body + 2 * self.num_body_trained
        attention = 6 * self.num_layers * self.hidden_size * sequence_length
        head = (6 if self.head_trained else 4) * self.num_head
        return float((body + attention) * num_tokens + head * num_supervised)


def _num_weights(parameter: nn.Parameter) -> int:
    """Weights in a parameter; bitsandbytes packs two 4-bit weights in each byte."""
    state = getattr(parameter, "quant_state", None)
    return int(state.shape.numel()) if state is not None else parameter.numel()


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process held so far: on the accelerator, or resident on the host for a CPU job."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def as_duration(seconds: float) -> str:
    """ "75" → "1:15", "3700" → "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
