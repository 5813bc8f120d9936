"""AdamW with 8-bit moments on shards: equal to the unsharded one, and through a checkpoint, resharded or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import numpy as np
import pytest

from adamw8bit_cases import NUM_STEPS, Weights, load_on_one, model, on_two_ranks, optimizer_of, steps, weights
from worlds import World

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adamw8bit")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    with World(2, on_two_ranks, folder) as world:
        return world.results()


@pytest.fixture(scope="module")
def alone() -> Weights:
    """The weights after as many steps on one whole model."""
    made = model()
    steps(made, optimizer_of(made), range(NUM_STEPS))
    return weights(made)


def assert_close(found: Weights, expected: Weights) -> None:
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_shards_learn_what_the_whole_model_learns(two_ranks: list[dict[str, Any]], alone: Weights) -> None:
    assert_close(two_ranks[0]["weights"], alone)
    moved = model()
    assert any(not np.allclose(alone[name], p) for name, p in weights(moved).items())


def test_a_resumed_run_has_the_same_bits(two_ranks: list[dict[str, Any]]) -> None:
    for result in two_ranks:
        for name, tensor in result["weights"].items():
            assert np.array_equal(result["resumed"][name], tensor), name


def test_a_checkpoint_of_two_ranks_goes_on_in_one(
    two_ranks: list[dict[str, Any]], alone: Weights, folder: Path
) -> None:
    assert two_ranks
    assert_close(load_on_one(folder), alone)


def test_moments_take_little_more_than_a_byte_each(two_ranks: list[dict[str, Any]]) -> None:
    made = model()
    expected = 0.0
    for parameter in made.parameters():
        in_8_bits = parameter.numel() >= 4096 and parameter.shape[-1] % 256 == 0
        expected += 2 * parameter.numel() * (1 + 4 / 256 if in_8_bits else 4)
    assert sum(result["state_bytes"] for result in two_ranks) == expected


def test_one_process_agrees_with_bitsandbytes_own_optimiser(alone: Weights) -> None:
    """Where both keep 8-bit moments; bitsandbytes also quantises rows that are no whole number of blocks."""
    theirs = model()
    optimizer = bnb.optim.AdamW8bit(theirs.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)
    steps(theirs, optimizer, range(NUM_STEPS))  # type: ignore[arg-type]
    found = weights(theirs)
    np.testing.assert_allclose(found["0.weight"], alone["0.weight"], rtol=1e-2, atol=1e-3)
