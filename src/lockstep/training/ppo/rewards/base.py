"""What a reward is to the engine: a number for each whole text, prompt and completion together."""

from __future__ import annotations

from typing import Protocol


class Reward(Protocol):
    """Scores texts. The same texts get the same scores, in whatever batches they come."""

    def score(self, texts: list[str]) -> list[float]:
        """One finite number per text; higher is better."""
        ...
