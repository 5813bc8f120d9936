"""From scores to advantages: masked statistics, the per-token reward, generalised advantage estimation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SumOverRanks = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks; the identity on one."""


def masked_mean(values: Tensor, mask: Tensor, total: SumOverRanks) -> Tensor:
    """Mean of `values` where `mask` is true, over all ranks. Zero where nothing is."""
    sums = total(torch.stack([(values * mask).sum(), mask.sum().to(values.dtype)]))
    return sums[0] / sums[1].clamp(min=1)


def whiten(values: Tensor, mask: Tensor, total: SumOverRanks, *, shift_mean: bool = True) -> Tensor:
    """Scales `values` to variance 1 over the masked entries of all ranks, and to mean 0 unless `shift_mean` is false.

    Biased variance, epsilon 1e-8. Two passes (mean, then squared deviations), as sums of squares lose digits in fp32.
    Entries outside the mask become zero.
    """
    mean = masked_mean(values, mask, total)
    variance = masked_mean((values - mean) ** 2, mask, total)
    whitened = (values - mean) * torch.rsqrt(variance + 1e-8)
    return (whitened if shift_mean else whitened + mean) * mask


def token_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """The reward of each token: minus the weighted KL everywhere, plus the score at the last token.

    Ziegler et al. (2019), eq. 2, in its per-token form (Stiennon et al., 2020, appendix A).
    scores: (batch,); kl and mask: (batch, length), the mask being true on the first `length_i` tokens of row i.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    is_last = positions == mask.sum(dim=1, keepdim=True) - 1
    return -kl_coef * kl * mask + scores.unsqueeze(1) * is_last


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation; returns (advantages, returns), both (batch, length) and zero outside the mask.

    Schulman et al. (2016), "High-dimensional continuous control using GAE", eqs. 11, 12 and 16:
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t); A_t = delta_t + gamma lam A_{t+1}; returns = A + V.
    A completion is an episode that ends at its last token (finished or cut), so the value after it is zero.
    """
    values = values * mask
    advantages = torch.zeros_like(rewards)
    next_advantage = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (delta + gamma * lam * next_advantage) * mask[:, t]
        advantages[:, t] = next_advantage
        next_value = values[:, t]
    return advantages, (advantages + values) * mask
