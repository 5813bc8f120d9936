"""The order of an epoch is a permutation that follows from (seed, epoch) and can be entered anywhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data.order import EpochOrder


@settings(max_examples=30, deadline=None)
@given(num_rows=st.integers(1, 3000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000))
def test_every_epoch_visits_every_row_once(num_rows: int, seed: int, epoch: int):
    rows = EpochOrder(num_rows, seed).epoch(epoch)
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


@settings(max_examples=30, deadline=None)
@given(num_rows=st.integers(1, 500), seed=st.integers(0, 2**31 - 1), index=st.integers(0, 10**9))
def test_any_sample_is_found_without_the_ones_before_it(num_rows: int, seed: int, index: int):
    order = EpochOrder(num_rows, seed)
    epoch, position = divmod(index, num_rows)
    assert order.row(index) == order.epoch(epoch)[position]


def test_epochs_and_seeds_differ_and_repeat():
    first = EpochOrder(1000, 1)
    assert np.array_equal(first.epoch(3), EpochOrder(1000, 1).epoch(3))
    assert not np.array_equal(first.epoch(3), first.epoch(4))
    assert not np.array_equal(first.epoch(3), EpochOrder(1000, 2).epoch(3))


def test_all_orders_of_a_small_set_are_equally_likely():
    counts = Counter(tuple(map(EpochOrder(4, seed).row, range(4))) for seed in range(1200))
    assert len(counts) == 24
    chi_squared = sum((count - 50) ** 2 / 50 for count in counts.values())
    assert chi_squared < 49.7  # the 99.9th percentile for 23 degrees of freedom


def test_an_order_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        EpochOrder(0, 1)
