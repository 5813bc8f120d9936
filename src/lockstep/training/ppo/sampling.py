"""Sampling whose noise comes from a counter: what is drawn does not depend on how a batch was split.

The distribution that is drawn from is `softmax(logits / temperature)` and nothing else. Top-k, top-p and minimum
lengths are left out on purpose: they draw from a distribution that scoring would have to truncate in the same way, and
a token that an update moves out of the kept set would get a probability ratio of zero.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 256
"""Tokens per block of the two-level search."""


class Stream(IntEnum):
    """What the noise is for; streams never share a number."""

    ROLLOUT = 0
    EVALUATION = 1
    MINIBATCHES = 2
    PROMPTS = 3


def uniforms(seed: int, stream: Stream, step: int, prompts: list[int], num_positions: int) -> Tensor:
    """Uniform numbers in [0, 1) for each (prompt, position), a pure function of (seed, stream, step, prompt, position).

    Philox (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by seed and step, its counter
    starting at (stream, prompt). Shape (len(prompts), num_positions), float64, on the CPU.
    """
    rows = [_philox(seed, stream, step, prompt).random(num_positions) for prompt in prompts]
    return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, num_positions, dtype=torch.float64)


def permutation(seed: int, stream: Stream, step: int, index: int, length: int) -> list[int]:
    """A shuffle of range(length), a pure function of its arguments."""
    return _philox(seed, stream, step, index).permutation(length).tolist()


def _philox(seed: int, stream: Stream, step: int, index: int) -> np.random.Generator:
    # The lowest counter word is the position; it must start at zero for each index.
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, index, int(stream)]))


def draw(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Draws one token per row by inverting the cumulative distribution, block by block.

    logits: (batch, vocabulary); noise: (batch,) uniform numbers. Returns (batch,) token ids.
    In float64, so that rounding in the logits (another batch shape) moves a bound by less than 1e-6. Sums are products
    with a triangle of ones, because torch has no deterministic floating-point cumsum on CUDA.
    """
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    blocks = F.pad(probabilities, (0, -logits.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    bounds = _running_sum(blocks.sum(dim=-1))
    target = noise.to(bounds).unsqueeze(-1) * bounds[:, -1:]
    block = torch.searchsorted(bounds, target, right=True).clamp(max=blocks.shape[1] - 1)
    chosen = blocks.gather(1, block.unsqueeze(-1).expand(-1, 1, _BLOCK)).squeeze(1)
    below = F.pad(bounds, (1, 0)).gather(1, block)
    offset = torch.searchsorted(_running_sum(chosen), target - below, right=True).clamp(max=_BLOCK - 1)
    return (block * _BLOCK + offset).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _running_sum(values: Tensor) -> Tensor:
    return values @ _triangle(values.shape[-1], values.dtype, values.device)


@lru_cache(maxsize=8)
def _triangle(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(size, size, dtype=dtype, device=device).triu()
