"""Noise is a pure function of its counter, and draws follow the distribution that scoring sees."""

from __future__ import annotations

import pytest
import torch

from lockstep.training.ppo.sampling import Stream, draw, permutation, uniforms


def test_noise_depends_on_prompt_and_position_and_not_on_the_batch() -> None:
    whole = uniforms(7, Stream.ROLLOUT, 3, [0, 1, 2, 3, 4], 6)
    assert torch.equal(uniforms(7, Stream.ROLLOUT, 3, [3, 1], 6), whole[[3, 1]])
    assert torch.equal(uniforms(7, Stream.ROLLOUT, 3, [2], 4), whole[2:3, :4])


def test_every_part_of_the_counter_counts() -> None:
    base = uniforms(7, Stream.ROLLOUT, 3, [0], 8)
    others = [
        uniforms(8, Stream.ROLLOUT, 3, [0], 8),
        uniforms(7, Stream.EVALUATION, 3, [0], 8),
        uniforms(7, Stream.ROLLOUT, 4, [0], 8),
        uniforms(7, Stream.ROLLOUT, 3, [1], 8),
    ]
    assert all(not torch.isin(base, other).any() for other in others)


def test_noise_is_uniform() -> None:
    noise = uniforms(0, Stream.ROLLOUT, 0, list(range(400)), 50).flatten()
    counts = torch.histc(noise, bins=20, min=0, max=1)
    chi_squared = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_squared < 43.8  # 99.9 % quantile of chi-squared with 19 degrees of freedom


@pytest.mark.parametrize("vocabulary", [5, 256, 257, 1000])
def test_draw_inverts_the_cumulative_distribution(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(40, vocabulary, generator=generator)
    noise = torch.rand(40, generator=generator, dtype=torch.float64)
    bounds = torch.softmax(logits.double() / 0.7, -1).cumsum(-1)
    expected = [int((bounds[row] <= noise[row]).sum()) for row in range(40)]
    assert draw(logits, noise, 0.7).tolist() == expected


def test_draws_are_distributed_as_the_softmax_with_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    noise = uniforms(1, Stream.ROLLOUT, 0, [0], 20_000)[0]
    drawn = draw(logits.expand(20_000, 4), noise, 0.5)
    frequency = torch.bincount(drawn, minlength=4) / 20_000
    torch.testing.assert_close(frequency, torch.softmax(logits[0] / 0.5, -1), rtol=0, atol=0.01)


def test_the_ends_of_the_noise_give_tokens_that_can_be_drawn() -> None:
    logits = torch.full((2, 300), -1e9)
    logits[:, 10], logits[:, 280] = 0.0, 0.0
    drawn = draw(logits, torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64), 1.0)
    assert drawn.tolist() == [10, 280]


def test_a_permutation_is_one_and_differs_between_epochs() -> None:
    first, second = (permutation(0, Stream.MINIBATCHES, 5, epoch, 32) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second
    assert first == permutation(0, Stream.MINIBATCHES, 5, 0, 32)
