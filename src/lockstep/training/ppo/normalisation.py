"""Running moments of scores, for rewards of a known scale; part of the checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from lockstep.training.ppo.advantages import SumOverRanks


@dataclass
class RunningMoments:
    """Count, mean and sum of squared deviations of all scores seen (Chan et al., 1979, pairwise update)."""

    count: float = 0.0
    mean: float = 0.0
    squared_deviations: float = 0.0

    def update(self, scores: Tensor, total: SumOverRanks) -> None:
        """Takes in the scores (batch,) of all ranks."""
        scores = scores.double()
        count = float(total(scores.new_tensor(float(len(scores)))))
        mean = float(total(scores.sum())) / count
        deviations = float(total(((scores - mean) ** 2).sum()))
        delta, seen = mean - self.mean, self.count
        self.count = seen + count
        self.mean += delta * count / self.count
        self.squared_deviations += deviations + delta**2 * seen * count / self.count

    @property
    def std(self) -> float:
        """Standard deviation; 1 while nothing varies, so that dividing by it changes nothing."""
        variance = self.squared_deviations / self.count if self.count else 0.0
        return math.sqrt(variance) if variance > 0 else 1.0
