"""Which checkpoints stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.checkpoints.retention import Retention

METRICS = st.dictionaries(
    st.integers(1, 200), st.one_of(st.none(), st.floats(-9, 9, allow_nan=False)), min_size=1, max_size=20
)
RULES = st.builds(
    Retention,
    keep_last=st.integers(1, 4),
    keep_every=st.one_of(st.none(), st.integers(1, 50)),
    keep_best=st.sampled_from([None, "min", "max"]),
)


def test_the_last_every_fiftieth_and_the_best_stay() -> None:
    metrics = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 4.0, 60: 5.0, 70: 6.0}
    assert Retention(2).expired(metrics) == [10, 20, 30, 40, 50]
    assert Retention(2, keep_every=50).expired(metrics) == [10, 20, 30, 40]
    assert Retention(2, keep_every=50, keep_best="min").expired(metrics) == [10, 30, 40]
    assert Retention(1, keep_best="max").expired(metrics) == [10, 20, 30, 40, 50, 60]


@given(metrics=METRICS, rule=RULES)
def test_the_newest_never_goes(metrics: dict[int, float | None], rule: Retention) -> None:
    expired = rule.expired(metrics)
    assert max(metrics) not in expired
    assert len(metrics) - len(expired) >= min(rule.keep_last, len(metrics))


@given(metrics=METRICS, rule=RULES)
def test_what_is_kept_once_pruned_stays_kept(metrics: dict[int, float | None], rule: Retention) -> None:
    left = {step: value for step, value in metrics.items() if step not in rule.expired(metrics)}
    assert rule.expired(left) == []


def test_keeping_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Retention(keep_last=0)
