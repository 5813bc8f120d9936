"""Sampling whose noise comes from a counter: what is drawn never depends on how a batch was split over forwards or ranks.

The distribution that is drawn from is `softmax(logits / temperature)` and nothing else. Top-k, top-p and minimum lengths
are left out on purpose: they draw from a distribution that scoring would have to truncate in the same way, and a token
that an update moves out of the kept set would get a probability ratio of zero.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


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
    """Draws one token per row by inverting the cumulative distribution.

    logits: (batch, vocabulary); noise: (batch,) uniform numbers. Returns (batch,) token ids.
    Summed in float64, so that rounding in the logits (another batch shape) moves a bound by less than 1e-6.
    """
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    bounds = probabilities.cumsum(dim=-1)
    target = noise.to(bounds).unsqueeze(-1) * bounds[:, -1:]
    return torch.searchsorted(bounds, target, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
