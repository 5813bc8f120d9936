"""Intervals and diversity against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lockstep.evaluation.statistics import distinct_n, mean_interval, paired_gain


def test_interval_is_scipys_one_sample_t_interval() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, size=23).tolist()
    found = mean_interval(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.bounds == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_pairing_removes_the_spread_between_prompts() -> None:
    random = np.random.default_rng(1)
    hard = random.normal(0.0, 10.0, size=40)
    before, after = hard + random.normal(0, 0.1, 40), hard + 0.5 + random.normal(0, 0.1, 40)
    gain = paired_gain(before.tolist(), after.tolist())
    assert 0.4 < gain.low < gain.mean < gain.high < 0.6


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        mean_interval([1.0])


def test_repetition_lowers_distinct_2() -> None:
    assert distinct_n(["a b c d"]) == 1.0
    assert distinct_n(["a b a b a b"]) == pytest.approx(2 / 5)
    assert distinct_n(["word", ""]) == 0.0
