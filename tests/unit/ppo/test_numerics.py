"""Every formula of the objective against a plain float64 loop written from the papers, values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lockstep.training.ppo.advantages import gae, masked_mean, token_rewards, whiten
from lockstep.training.ppo.kl import KlController, kl_per_token
from lockstep.training.ppo.normalisation import RunningMoments
from lockstep.training.ppo.objective import entropy_bonus, explained_variance, policy_loss, value_loss

ROWS, LENGTH = 5, 7
LENGTHS = [7, 3, 1, 5, 6]


def alone(tensor: Tensor) -> Tensor:
    return tensor


def random(seed: int, *, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(ROWS, LENGTH, generator=generator, dtype=torch.float64)


@pytest.fixture
def mask() -> Tensor:
    return (torch.arange(LENGTH) < torch.tensor(LENGTHS).unsqueeze(1)).double()


def close(actual: Tensor | float, expected: Tensor | float) -> None:
    as_double = [torch.as_tensor(value, dtype=torch.float64) for value in (actual, expected)]
    torch.testing.assert_close(*as_double, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.97, 0.0)])
def test_gae_is_the_discounted_sum_of_td_errors(mask: Tensor, gamma: float, lam: float) -> None:
    rewards, values = random(0), random(1)
    expected = torch.zeros(ROWS, LENGTH, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            for k in range(t, length):
                after = values[row, k + 1] if k + 1 < length else 0.0
                delta = rewards[row, k] + gamma * after - values[row, k]
                expected[row, t] += (gamma * lam) ** (k - t) * delta
    advantages, returns = gae(rewards * mask, values, mask, gamma, lam)
    close(advantages, expected)
    close(returns, (expected + values) * mask)


def test_gae_with_lambda_one_is_the_return_minus_the_value(mask: Tensor) -> None:
    rewards, values = random(2) * mask, random(3)
    _, returns = gae(rewards, values, mask, 1.0, 1.0)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            close(returns[row, t], rewards[row, t:length].sum())


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening_gives_unit_variance_over_real_tokens_only(mask: Tensor, shift_mean: bool) -> None:
    values = random(4, scale=3.0) + 100
    real = [float(values[row, t]) for row, length in enumerate(LENGTHS) for t in range(length)]
    mean = sum(real) / len(real)
    std = math.sqrt(sum((x - mean) ** 2 for x in real) / len(real) + 1e-8)
    expected = ((values - mean) / std + (0 if shift_mean else mean)) * mask
    close(whiten(values, mask, alone, shift_mean=shift_mean), expected)


def test_whitening_over_two_ranks_equals_whitening_the_whole(mask: Tensor) -> None:
    values = random(5)
    whole = whiten(values, mask, alone)
    halves = [slice(0, 2), slice(2, ROWS)]
    seen: list[list[Tensor]] = []

    def recorded(tensor: Tensor) -> Tensor:
        seen[-1].append(tensor)
        return tensor

    # What the other rank contributes is known by running it alone up to each sum in turn.
    def summed(index: int, other_values: Tensor, other_mask: Tensor) -> list[Tensor]:
        first = torch.stack([(other_values * other_mask).sum(), other_mask.sum()])
        mean = masked_mean(values, mask, alone)
        second = torch.stack([((other_values - mean) ** 2 * other_mask).sum(), other_mask.sum()])
        return [first, second]

    for index, half in enumerate(halves):
        other = halves[1 - index]
        queue = summed(index, values[other], mask[other])
        part = whiten(values[half], mask[half], lambda tensor, queue=queue: tensor + queue.pop(0))
        close(part, whole[half])


def test_the_score_is_paid_at_the_last_token_and_kl_at_every_token(mask: Tensor) -> None:
    kl, scores = random(6), torch.randn(ROWS, dtype=torch.float64)
    rewards = token_rewards(scores, kl, mask, 0.3)
    for row, length in enumerate(LENGTHS):
        for t in range(LENGTH):
            paid = scores[row] if t == length - 1 else 0.0
            close(rewards[row, t], (-0.3 * kl[row, t] if t < length else 0.0) + paid)


def test_kl_estimators_follow_their_definitions_and_k3_is_never_negative() -> None:
    logprobs, reference = random(7), random(8)
    close(kl_per_token(logprobs, reference, "k1"), logprobs - reference)
    ratio = (reference - logprobs).exp()
    k3 = kl_per_token(logprobs, reference, "k3")
    close(k3, (ratio - 1) - ratio.log())
    assert (k3 >= 0).all()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_both_kl_estimators_are_unbiased(estimator: str) -> None:
    policy = torch.log_softmax(torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64), 0)
    reference = torch.log_softmax(torch.tensor([-0.2, 0.4, 0.1, 0.9], dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    expectation = (policy.exp() * kl_per_token(policy, reference, estimator)).sum()  # type: ignore[arg-type]
    close(expectation, exact)


def loop_policy_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, clip: float, count: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            ratio = torch.exp(logprobs[row, t] - old[row, t])
            low, high = torch.full_like(ratio, 1 - clip), torch.full_like(ratio, 1 + clip)
            bounded = torch.minimum(torch.maximum(ratio, low), high)
            total = total + torch.minimum(ratio * advantages[row, t], bounded * advantages[row, t])
    return -total / count


def test_policy_loss_and_its_gradient(mask: Tensor) -> None:
    old, advantages = random(9, scale=0.3), random(10)
    logprobs = (old + random(11, scale=0.3)).requires_grad_()
    count = torch.tensor(float(sum(LENGTHS)), dtype=torch.float64)
    expected = loop_policy_loss(logprobs, old, advantages, 0.2, float(count))
    (expected_gradient,) = torch.autograd.grad(expected, logprobs)
    terms = policy_loss(logprobs, old, advantages, mask, 0.2, count)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    close(terms.loss, expected)
    close(gradient, expected_gradient)
    log_ratios = (logprobs - old).detach()
    ratios = [
        (math.exp(float(log_ratios[r, t])), float(advantages[r, t]))
        for r, length in enumerate(LENGTHS)
        for t in range(length)
    ]
    close(terms.clipped, float(sum((x > 1.2 and a > 0) or (x < 0.8 and a < 0) for x, a in ratios)))
    close(terms.ratio, sum(x for x, _ in ratios))
    close(terms.approx_kl, sum(x - 1 - math.log(x) for x, _ in ratios))
    close(terms.max_ratio_error, max(abs(x - 1) for x, _ in ratios))


def test_value_loss_and_its_gradient(mask: Tensor) -> None:
    old, returns = random(12), random(13)
    values = (old + random(14, scale=0.4)).requires_grad_()
    count = torch.tensor(float(sum(LENGTHS)), dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        for t in range(length):
            low, high = old[row, t] - 0.2, old[row, t] + 0.2
            bounded = torch.minimum(torch.maximum(values[row, t], low), high)
            target = returns[row, t]
            expected = expected + 0.5 * torch.maximum((values[row, t] - target) ** 2, (bounded - target) ** 2)
    expected = expected / count
    (expected_gradient,) = torch.autograd.grad(expected, values)
    terms = value_loss(values, old, returns, mask, 0.2, count)
    (gradient,) = torch.autograd.grad(terms.loss, values)
    close(terms.loss, expected)
    close(gradient, expected_gradient)


def test_losses_of_micro_batches_add_up_to_that_of_the_minibatch(mask: Tensor) -> None:
    logprobs, old, advantages = random(15, scale=0.1), random(16, scale=0.1), random(17)
    count = mask.sum()
    whole = policy_loss(logprobs, old, advantages, mask, 0.2, count).loss
    parts = [
        policy_loss(logprobs[rows], old[rows], advantages[rows], mask[rows], 0.2, count).loss
        for rows in (slice(0, 1), slice(1, 3), slice(3, ROWS))
    ]
    close(sum(parts), whole)


def test_entropy_bonus_is_the_mean_over_tokens(mask: Tensor) -> None:
    entropy = random(18).abs()
    real = [float(entropy[row, t]) for row, length in enumerate(LENGTHS) for t in range(length)]
    close(entropy_bonus(entropy, mask, mask.sum()), sum(real) / len(real))


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one(mask: Tensor) -> None:
    returns = random(19)
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full_like(returns, 2.0), returns, mask) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones_like(returns), mask) == 0.0


def test_adaptive_kl_coefficient_moves_towards_the_target_by_bounded_steps() -> None:
    controller = KlController(0.1, target=0.5, horizon=1000)
    controller.update(0.55, 100)
    assert controller.coefficient == pytest.approx(0.1 * (1 + 0.1 * 100 / 1000))
    controller = KlController(0.1, target=0.5, horizon=1000)
    controller.update(50.0, 100)
    assert controller.coefficient == pytest.approx(0.1 * (1 + 0.2 * 100 / 1000))
    fixed = KlController(0.1, target=None, horizon=1000)
    fixed.update(50.0, 100)
    assert fixed.coefficient == 0.1


def test_running_moments_are_those_of_all_scores_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, generator=generator) * 3 + 1 for size in (4, 9, 1, 16)]
    moments = RunningMoments()
    for batch in batches:
        moments.update(batch, alone)
    everything = torch.cat(batches).double()
    assert moments.count == 30
    assert moments.mean == pytest.approx(float(everything.mean()), rel=1e-12)
    assert moments.std == pytest.approx(float(everything.std(unbiased=False)), rel=1e-12)


def test_scores_that_never_vary_are_left_as_they_are() -> None:
    moments = RunningMoments()
    moments.update(torch.full((4,), 2.5), alone)
    assert moments.std == 1.0
