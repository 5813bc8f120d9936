"""Small-sample statistics of an evaluation: intervals that honour pairing, and a diversity that spots repetition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student_t


@dataclass(frozen=True)
class Interval:
    """A mean and its two-sided 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def bounds(self) -> list[float]:
        """[low, high]."""
        return [self.low, self.high]


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with Student's interval: mean ± t(0.975, n-1) · s / √n (Student 1908).

    Raises ValueError for fewer than two values, which have no spread.
    """
    count = len(values)
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, not {count}")
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(student_t.ppf(0.975, count - 1)) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


def paired_gain(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The mean of after - before over the same items: pairing removes the spread between prompts from the interval."""
    return mean_interval([b - a for a, b in zip(before, after, strict=True)])


def distinct_n(texts: Sequence[str], n: int = 2) -> float:
    """Share of word n-grams over all texts that are different from each other (Li et al. 2016, arXiv:1510.03055).

    0.0 where no text has n words.
    """
    split = [text.lower().split() for text in texts]
    grams = [tuple(words[i : i + n]) for words in split for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0
