"""The PPO objective: clipped policy loss, clipped value loss, entropy bonus. All are sums divided by a given count.

The count is the number of completion tokens in the whole minibatch over all micro-batches and ranks, so that neither
gradient accumulation nor data parallelism changes a gradient (a mean of means would).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyTerms:
    """Policy loss of one micro-batch and what is logged about it. `loss` carries the gradient; the rest are sums."""

    loss: Tensor
    """Share of the minibatch's mean; the shares of all micro-batches add up to it."""
    clipped: Tensor
    """Number of tokens on which clipping binds."""
    approx_kl: Tensor
    """Sum over tokens of the k3 estimate of KL(old || new), nats."""
    ratio: Tensor
    """Sum over tokens of the probability ratio."""
    max_ratio_error: Tensor
    """Largest |ratio - 1|."""


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, cliprange: float, num_tokens: Tensor
) -> PolicyTerms:
    """The clipped surrogate, negated: Schulman et al. (2017), "Proximal policy optimization algorithms", eq. 7.

    L = -sum_t min(r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t) / num_tokens, with r_t = exp(log pi - log pi_old).
    Tensors have shape (batch, length); `num_tokens` is the minibatch's token count over all ranks.
    """
    log_ratio = (logprobs - old_logprobs) * mask
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    loss = (torch.maximum(unclipped, clipped) * mask).sum() / num_tokens
    with torch.no_grad():
        return PolicyTerms(
            loss=loss,
            clipped=((clipped > unclipped) * mask).sum(),
            # exp(l) - 1 - l of samples from the old policy: Schulman (2020), "Approximating KL divergence", k3.
            approx_kl=((ratio - 1 - log_ratio) * mask).sum(),
            ratio=(ratio * mask).sum(),
            max_ratio_error=((ratio - 1).abs() * mask).max(),
        )


@dataclass(frozen=True)
class ValueTerms:
    """Value loss of one micro-batch; `loss` carries the gradient and is a share like the policy's."""

    loss: Tensor
    clipped: Tensor
    """Number of tokens on which clipping binds."""


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange_value: float, num_tokens: Tensor
) -> ValueTerms:
    """The clipped value loss of the PPO reference code: Engstrom et al. (2020), "Implementation matters", section 3.

    L = 1/2 sum_t max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) / num_tokens; shapes (batch, length).
    """
    bounded = torch.clamp(values, old_values - cliprange_value, old_values + cliprange_value)
    unclipped = (values - returns) ** 2
    clipped = (bounded - returns) ** 2
    loss = 0.5 * (torch.maximum(unclipped, clipped) * mask).sum() / num_tokens
    return ValueTerms(loss=loss, clipped=((clipped > unclipped) * mask).sum().detach())


def entropy_bonus(entropy: Tensor, mask: Tensor, num_tokens: Tensor) -> Tensor:
    """The mean entropy per token in nats, a share like the losses: Schulman et al. (2017), eq. 9, S[pi]."""
    return (entropy * mask).sum() / num_tokens


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over masked tokens: 1 is perfect, 0 no better than a constant."""
    chosen = mask.bool()
    variance = returns[chosen].double().var(unbiased=False)
    if variance == 0:
        return 0.0
    return float(1 - (returns - values)[chosen].double().var(unbiased=False) / variance)
