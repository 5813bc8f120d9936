"""VADER: a sentiment lexicon with rules, no training and no network (Hutto & Gilbert, 2014, ICWSM)."""

from __future__ import annotations

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer


class LexiconReward:
    """The compound score of a text, in [-1, 1]. Dense and deterministic, weak as a classifier."""

    def __init__(self) -> None:
        self._analyzer = SentimentIntensityAnalyzer()

    def score(self, texts: list[str]) -> list[float]:
        """Compound scores; 0 for a text without a word of the lexicon."""
        return [float(self._analyzer.polarity_scores(text)["compound"]) for text in texts]
