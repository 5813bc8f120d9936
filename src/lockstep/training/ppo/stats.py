"""What an update says about itself: one record per minibatch, already summed over micro-batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MinibatchStats:
    """Sums over one minibatch and all ranks, turned into means."""

    policy_loss: float
    value_loss: float
    clipfrac: float
    value_clipfrac: float
    approx_kl: float
    """Nats per token, old policy to new."""
    ratio: float
    mean_advantage: float
    """Mean magnitude per token."""
    max_ratio_error: float
    policy_grad_norm: float = 0.0
    """Before clipping, over all ranks."""
    value_grad_norm: float = 0.0


@dataclass
class UpdateStats:
    """Every minibatch of one step's update, in order."""

    minibatches: list[MinibatchStats] = field(default_factory=list)
    stopped_early: bool = False
    """target_kl was exceeded; the minibatch that showed it is not applied."""

    def mean(self, name: str) -> float:
        """Mean of one number over minibatches."""
        return sum(getattr(stats, name) for stats in self.minibatches) / len(self.minibatches)
