"""A sentiment classifier fitted to the locked reviews: TF-IDF features and logistic regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from lockstep.data.store import read_reviews
from lockstep.foundation.errors import UsageError

_FEWEST = 20


class LearnedReward:
    """How positive a text is, in [-1, 1]: 2 P(positive) - 1."""

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        """Fits on whole texts (better than on texts cut to a rollout's length, for short ones too); deterministic.

        Raises UsageError when the labels are not of two kinds.
        """
        if len(set(labels)) != 2:
            raise UsageError(f"A learned reward needs reviews of two labels, found {sorted(set(labels))}.")
        self._pipeline: Pipeline = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True),
            LogisticRegression(C=4.0, max_iter=1000),
        )
        self._pipeline.fit(texts, np.array(labels))

    def score(self, texts: list[str]) -> list[float]:
        """2 P(positive) - 1 of each text."""
        positive = self._pipeline.predict_proba(texts)[:, 1]
        return [float(score) for score in 2 * positive - 1]


def fit_learned_reward(reviews: Path) -> LearnedReward:
    """Fits on `reviews`/train.jsonl, lines of {"text", "label"}.

    Raises UsageError when the file is not there or holds too few reviews to learn anything from.
    """
    rows = read_reviews(reviews / "train.jsonl")
    if len(rows) < _FEWEST:
        raise UsageError(f"{reviews}/train.jsonl has {len(rows)} reviews; a learned reward needs at least {_FEWEST}.")
    return LearnedReward([row.text for row in rows], [row.label for row in rows])
