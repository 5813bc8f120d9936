"""Two real gloo ranks save, are damaged, run out of disk, and go on: one launch, cases in tests/checkpoint_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint_cases import all_cases
from toy_training import Toy
from worlds import run_world

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks saw, by case; and what one process had saved for them."""
    folder = tmp_path_factory.mktemp("checkpoints")
    toy = Toy(1, folder / "alone")
    toy.train(2)
    toy.save()
    ranks: list[dict[str, Any]] = run_world(2, all_cases, folder / "cases", folder / "alone")
    return [{**rank, "alone": toy.digest()} for rank in ranks]


def test_resumed_training_ends_with_the_bits_of_an_uninterrupted_one(seen: list[dict[str, Any]]) -> None:
    for case in (rank["round_trip"] for rank in seen):
        assert case["loaded"] == case["saved"]
        assert case["resumed"] == case["whole"] != case["saved"]
        assert case["learning_rate"] == [1e-2 / 4, 1e-2 / 4]


def test_two_ranks_to_one(seen: list[dict[str, Any]]) -> None:
    toy = Toy(5, Path(seen[0]["round_trip"]["path"]).parent)
    found = toy.store.newest()
    assert found is not None
    own_generators = toy.load(found)
    assert toy.digest() == seen[0]["round_trip"]["saved"]
    assert not own_generators


def test_one_rank_to_two(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["more_ranks"] == {"loaded": rank["alone"], "own_generators": False, "step": 3}


def test_asynchronous_saves_hold_the_state_at_the_save_and_not_a_later_one(seen: list[dict[str, Any]]) -> None:
    for case in (rank["fifty_asynchronous_saves"] for rank in seen):
        assert len(set(case["states"].values())) == 50
        assert case["loaded"] == case["states"]
        assert case["last"] == 50


def test_damaged_checkpoints_are_skipped_with_the_reason(seen: list[dict[str, Any]]) -> None:
    for case in (rank["damages"] for rank in seen):
        assert case["found"] == case["full"] == 2
        reasons = case["skipped"]
        assert sorted(reasons) == [3, 4, 5, 6, 7, 8]
        assert "unknown format 2" in reasons[8]
        assert reasons[7] == "it belongs to run another, not to toy"
        assert "__1_0.distcp has" in reasons[6]
        assert reasons[5] == "__0_0.distcp does not have the hash it was written with"
        assert "no manifest.json" in reasons[4]
        assert reasons[3] == "manifest.json does not have the hash it was written with"


def test_all_damaged_is_an_error_and_no_silent_new_start(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert "rank-00001.pt does not have the hash" in rank["nothing_usable"]
        assert "start again from step 0" in rank["nothing_usable"]


def test_a_full_disk_on_one_rank_leaves_the_last_good_checkpoint_and_training_going(
    seen: list[dict[str, Any]],
) -> None:
    for case in (rank["full_disk_goes_on"] for rank in seen):
        assert case["after_failure"] == {"steps": [1], "left": 0, "last": 1}
        assert case["then"] == [1, 3]
        assert case["found"] == 3


@pytest.mark.parametrize("case", ["full_disk_stops", "asynchronous_failure_surfaces"])
def test_a_full_disk_stops_all_ranks_with_one_message(seen: list[dict[str, Any]], case: str) -> None:
    first, second = seen[0][case], seen[1][case]
    assert first == second
    assert first["found"] == 1
    assert first["left"] == 0
    assert "step 2 was not saved; step 1" in first["message"]
    assert "File too large" in first["message"]


def test_ranks_that_disagree_about_a_replica_are_told(seen: list[dict[str, Any]]) -> None:
    for case in (rank["replicas_that_differ"] for rank in seen):
        assert "'adapter.low' must be the same on every rank" in case["message"]
        assert case["steps"] == []
        assert case["left"] == 0


def test_short_memory_refuses_the_copy_and_still_saves(seen: list[dict[str, Any]]) -> None:
    case = seen[0]["short_memory"]
    assert case["steps"] == [1]
    assert case["last"] == 1
    assert "saving synchronously instead" in case["said"][0]
    assert "run.asynchronous_save" in case["said"][0]


def test_state_that_needs_pickle_is_refused_at_the_save(seen: list[dict[str, Any]]) -> None:
    assert "per-rank state 'path' can't be loaded without pickle (PosixPath)" in seen[0]["unsafe_state"]


def test_a_lora_checkpoint_has_the_bytes_of_its_adapters(seen: list[dict[str, Any]]) -> None:
    case = seen[0]["adapters_only"]
    assert case["tensors"] < case["on_disk"] < case["tensors"] + 32_000


def test_another_base_model_is_refused(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert "was trained on the base aaaa" in rank["other_base"]
