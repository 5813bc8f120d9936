"""QLoRA with the base sharded over two ranks: it learns what it learns on a whole base, and every adapter moves."""

from __future__ import annotations

from typing import Any

import pytest

import sharded_4bit_cases
import tiny_llama
from two_ranks import found_by_two_ranks

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("sharded4bit")
    tiny_llama.write_model(folder / "untied", tied=False)
    return found_by_two_ranks(sharded_4bit_cases.__file__, folder)


def test_each_rank_holds_half_of_the_packed_weights(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["sharded"]["num_sharded"] == rank["sharded"]["num_layers"] > 0
        assert rank["sharded"]["local"] * 2 == rank["sharded"]["packed"]
        assert rank["whole"]["num_sharded"] == 0


def test_every_adapter_gets_a_gradient_and_both_ranks_agree(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert all(rank["sharded"]["moved"])
        assert all(norm > 0 for norm in rank["sharded"]["curves"]["grad_norm"].values())
    assert found[0]["sharded"]["sha"] == found[1]["sharded"]["sha"]


def test_losses_are_those_of_a_whole_base(found: list[dict[str, Any]]) -> None:
    for curve in ("loss", "grad_norm", "eval_loss"):
        sharded, whole = (found[0][name]["curves"][curve] for name in ("sharded", "whole"))
        assert sharded == pytest.approx(whole, rel=1e-4)


def test_a_resumed_run_has_the_same_bits(found: list[dict[str, Any]]) -> None:
    assert found[0]["resumed"] == found[0]["sharded"]["sha"]
