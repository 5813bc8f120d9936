"""fp16 with a loss scale on two shards: near fp32, overflows leave a step out on both ranks, resumes to the bit."""

from __future__ import annotations

from typing import Any

import pytest

import fp16_cases
import tiny_llama
from two_ranks import found_by_two_ranks

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("fp16")
    tiny_llama.write_model(folder / "tied")
    return found_by_two_ranks(fp16_cases.__file__, folder)


def test_losses_are_near_those_of_fp32(found: list[dict[str, Any]]) -> None:
    half, full = (found[0][name]["curves"] for name in ("fp16", "fp32"))
    assert half["loss"] == pytest.approx(full["loss"], rel=0.02)
    assert half["loss"] != full["loss"]
    assert half["grad_norm"] == pytest.approx(full["grad_norm"], rel=0.1)


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(found: list[dict[str, Any]]) -> None:
    case = found[0]["overflowing"]
    scales, hashes = case["scales"], case["hashes"]
    assert scales[0] == fp16_cases.TOO_LARGE / 2
    skipped = [step for step in range(1, len(scales)) if scales[step] == scales[step - 1] / 2]
    assert skipped
    assert all(hashes[step] == hashes[step - 1] for step in skipped)
    assert "1" not in case["curves"]["grad_norm"]


def test_ranks_leave_out_the_same_steps(found: list[dict[str, Any]]) -> None:
    assert found[0]["overflowing"]["scales"] == found[1]["overflowing"]["scales"]
    assert found[0]["overflowing"]["hashes"] == found[1]["overflowing"]["hashes"]


def test_a_resumed_run_has_the_same_bits(found: list[dict[str, Any]]) -> None:
    assert found[0]["resumed"]["start_step"] == 3
    assert found[0]["resumed"]["sha"] == found[0]["fp16"]["sha"]
