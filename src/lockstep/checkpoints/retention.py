"""Which checkpoints stay. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Retention:
    """Keeps the last `keep_last`, every step that is a multiple of `keep_every`, and the one with the best metric."""

    keep_last: int = 2
    keep_every: int | None = None
    keep_best: Literal["min", "max"] | None = None
    """Whether a smaller or a greater metric is better; None: metrics keep nothing."""

    def __post_init__(self) -> None:
        if self.keep_last < 1 or (self.keep_every is not None and self.keep_every < 1):
            raise ValueError("keep_last and keep_every are at least 1: the newest checkpoint always stays")

    def expired(self, metrics: Mapping[int, float | None]) -> list[int]:
        """Steps that may go, ascending. `metrics` maps each standing, usable step to its metric."""
        steps = sorted(metrics)
        kept = set(steps[-self.keep_last :])
        if self.keep_every is not None:
            kept.update(step for step in steps if step % self.keep_every == 0)
        kept.update(self._best(metrics))
        return [step for step in steps if step not in kept]

    def _best(self, metrics: Mapping[int, float | None]) -> list[int]:
        measured = {step: value for step, value in metrics.items() if value is not None}
        if self.keep_best is None or not measured:
            return []
        sign = 1.0 if self.keep_best == "min" else -1.0
        return [min(measured, key=lambda step: (sign * measured[step], step))]
