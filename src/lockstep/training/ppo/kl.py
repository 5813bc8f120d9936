"""KL divergence from the reference: estimators per token, and the coefficient that weighs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Estimator = Literal["k1", "k3"]


def kl_per_token(logprobs: Tensor, ref_logprobs: Tensor, estimator: Estimator) -> Tensor:
    """Estimates KL(policy || reference) at each sampled token, in nats; shapes (batch, length).

    Schulman (2020), "Approximating KL divergence": with log-ratio l = log p_ref - log p_policy,
    k1 = -l (unbiased, may be negative) and k3 = exp(l) - 1 - l (unbiased, never negative, lower variance).
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    return log_ratio.exp() - 1 - log_ratio


@dataclass
class KlController:
    """The weight of the KL penalty: fixed, or moved so that the observed KL approaches a target.

    Ziegler et al. (2019), "Fine-tuning language models from human preferences", section 2.2:
    e = clip(KL / target - 1, -0.2, 0.2); beta <- beta * (1 + e * n / horizon), n completions having been seen.
    """

    coefficient: float
    target: float | None
    """Nats per token; None keeps the coefficient as it is."""
    horizon: int
    """Completions."""

    def update(self, kl: float, num_completions: int) -> None:
        """Takes in the mean KL (nats per token) of `num_completions` completions."""
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coefficient *= 1 + error * num_completions / self.horizon
