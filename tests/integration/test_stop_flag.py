"""Two real gloo ranks agree on a stop (tests/stopping_cases.py)."""

from __future__ import annotations

from typing import Any

import pytest

from stopping_cases import all_cases
from worlds import run_world

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks saw, by case."""
    return run_world(2, all_cases, tmp_path_factory.mktemp("stopping"))


def test_all_ranks_act_one_poll_after_the_file_was_seen(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["equal_polls"] == [False, False, False, False, True, True, True]


def test_loops_of_unequal_length_end_together(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["unequal_loops"] == {"inside": False, "settled": False, "after": [False, True, True]}


def test_a_stop_inside_an_unequal_loop_reaches_the_rank_that_had_left_it(seen: list[dict[str, Any]]) -> None:
    early, late = (rank["stop_inside_an_unequal_loop"] for rank in seen)
    assert early == {"polls": 2, "settled": True, "after": True}
    assert late["settled"]
    assert late["after"]
    assert 10 < late["polls"] < 1000


def test_a_poll_waits_for_nobody(seen: list[dict[str, Any]]) -> None:
    assert [rank["poll_does_not_wait"] for rank in seen] == [False, False]


def test_a_stop_before_training_is_seen_at_the_second_poll(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["stop_before_the_first_poll"] == [False, True]
