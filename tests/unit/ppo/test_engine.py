"""The step as a whole: it starts at the reference, moves every trained tensor, and can be repeated to the bit."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from live_tensors import LiveTensors, storage_bytes
from lockstep.foundation.errors import DoNotRetryError
from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.roles import Role
from lockstep.training.ppo.state import trained_parameters
from ppo_cases import EOS, ShareOfGoodWords, tiny_backbone, tiny_engine, tiny_params, tiny_tokenizer


class ForbiddenText:
    """A reward of what is not text."""

    def score(self, texts: list[str]) -> list[float]:
        return [float("nan")] * len(texts)


class Brief:
    """Shorter texts score higher: 1 for none, falling by an eighth for every word."""

    def score(self, texts: list[str]) -> list[float]:
        return [1 - len(text.split()) / 8 for text in texts]


def snapshot(engine: PpoEngine) -> dict[str, Tensor]:
    return {
        name: parameter.detach().clone()
        for name, parameter in trained_parameters(engine.backbone, engine.value_head).items()
    }


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_first_step_starts_at_the_reference_with_ratio_one(adapter: bool, checkpointing: bool) -> None:
    params = tiny_params(value={"adapter": adapter}, gradient_checkpointing=checkpointing)
    engine = tiny_engine(params)
    before = snapshot(engine)
    errors: list[float] = []
    check = engine.guards.check_minibatch

    def recorded(stats: Any, *, first: bool) -> None:
        errors.append(stats.max_ratio_error)
        check(stats, first=first)

    engine.guards.check_minibatch = recorded  # type: ignore[method-assign]
    result = engine.step()
    assert result.metrics["objective/kl"] == 0.0
    assert errors[0] < 1e-5 < errors[1]
    after = snapshot(engine)
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert still == []


def test_batch_shapes_change_no_draw_and_hardly_a_gradient() -> None:
    whole = tiny_engine(tiny_params(num_mini_batches=1, num_ppo_epochs=1, per_device_train_batch_size=8))
    split = tiny_engine(
        tiny_params(
            num_mini_batches=1, num_ppo_epochs=1, per_device_train_batch_size=2, per_device_rollout_batch_size=2
        )
    )
    results = [engine.step() for engine in (whole, split)]
    assert results[0].experience.texts == results[1].experience.texts
    for name in ("policy/grad_norm", "value/grad_norm", "policy/loss", "value/loss"):
        assert results[1].metrics[name] == pytest.approx(results[0].metrics[name], rel=1e-4, abs=1e-7)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        engine = tiny_engine(seed=seed)
        for _ in range(2):
            engine.step()
        return snapshot(engine)

    first, again, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_rollout_that_is_abandoned_changes_nothing() -> None:
    engine, undisturbed = tiny_engine(tiny_params(scale_rewards=True)), tiny_engine(tiny_params(scale_rewards=True))
    engine.step()
    undisturbed.step()
    for stop_at in range(3):
        polls = iter(range(100))

        def poll(polls: Any = polls, stop_at: int = stop_at) -> None:
            if next(polls) == stop_at:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            engine.step(poll)
    engine.step()
    undisturbed.step()
    first, second = snapshot(engine), snapshot(undisturbed)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_policy_learns_to_stop_although_padding_is_the_end_of_text_token() -> None:
    """With masks made from pad ids the end-of-text token would have no gradient, and nothing would get shorter."""
    params = tiny_params(
        max_steps=12, rollout_batch_size=64, per_device_rollout_batch_size=64, per_device_train_batch_size=32,
        kl_coef=0.0, missing_eos_penalty=1.0, guards={"max_kl": None, "min_length": None, "min_distinct": None},
    )  # fmt: skip
    backbone = tiny_backbone(params, vocabulary=12)
    engine = tiny_engine(params, reward=Brief(), backbone=backbone, prompts=[[token] for token in range(3, 12)])
    metrics = [engine.step().metrics for _ in range(12)]
    assert metrics[0]["objective/finished"] < 0.6
    assert metrics[-1]["objective/finished"] > metrics[0]["objective/finished"] + 0.25
    assert metrics[-1]["objective/length"] < metrics[0]["objective/length"] - 1


def test_the_unfinished_pay_the_penalty_and_scores_are_clipped() -> None:
    plain = tiny_engine(tiny_params(kl_coef=0.0)).step()
    punished = tiny_engine(tiny_params(kl_coef=0.0, missing_eos_penalty=0.5)).step()
    finished = plain.experience.completions.finished.float()
    difference = (plain.experience.rewards - punished.experience.rewards).sum(dim=1)
    torch.testing.assert_close(difference, 0.5 * (1 - finished))
    clipped = tiny_engine(tiny_params(kl_coef=0.0, clip_rewards=0.1)).step()
    paid = clipped.experience.rewards.sum(dim=1)
    torch.testing.assert_close(paid, plain.experience.scores.clamp(-0.1, 0.1))


def test_the_score_of_the_prompt_can_be_subtracted() -> None:
    source = {"kind": "function", "file": "rewards/words.py:score"}
    plain = tiny_engine(tiny_params(kl_coef=0.0, reward=source)).step().experience
    added = tiny_engine(tiny_params(kl_coef=0.0, reward={**source, "subtract_prompt": True})).step().experience
    prompts = [prompt for prompt, _ in plain.completions.token_lists()]
    of_prompts = ShareOfGoodWords().score(tiny_tokenizer().batch_decode(prompts))
    torch.testing.assert_close(added.rewards.sum(dim=1), plain.scores - torch.tensor(of_prompts))
    assert torch.equal(added.scores, plain.scores)


def test_epochs_end_early_once_the_policy_moved_too_far_and_that_minibatch_is_not_applied() -> None:
    free = tiny_engine(tiny_params(num_ppo_epochs=4))
    held = tiny_engine(tiny_params(num_ppo_epochs=4, target_kl=1e-6))
    free.step()
    held.step()
    once = tiny_engine(tiny_params(num_ppo_epochs=1, num_mini_batches=2, target_kl=1e-6))
    once.step()
    assert not all(torch.equal(a, b) for a, b in zip(snapshot(free).values(), snapshot(held).values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(snapshot(held).values(), snapshot(once).values(), strict=True))


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_the_learning_rate_follows_its_schedule(optim: str) -> None:
    params = tiny_params(max_steps=6, warmup_steps=2, lr_scheduler_type="linear", learning_rate=0.01, optim=optim)
    engine = tiny_engine(params)
    rates = [engine.step().metrics["learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025])


def test_the_adaptive_coefficient_falls_while_the_policy_is_near_its_reference() -> None:
    engine = tiny_engine(tiny_params(kl_coef=0.1, kl_target=10.0, kl_horizon=80))
    assert [engine.step().metrics["objective/kl_coef"] for _ in range(2)] == pytest.approx([0.1, 0.1 * (1 - 0.2 * 0.1)])


class TestGuards:
    """Each violation names itself and how to mend it; `warn` goes on."""

    def test_a_policy_that_is_not_the_reference_at_step_0_is_refused(self) -> None:
        backbone = tiny_backbone()
        with torch.no_grad():
            for parameter in backbone.parameters_of(Role.POLICY).values():
                parameter.add_(0.05)
        with pytest.raises(DoNotRetryError, match="start_kl_tolerance"):
            tiny_engine(backbone=backbone).step()

    def test_dropout_shows_as_a_ratio_other_than_one_and_is_off_by_default(self) -> None:
        lora = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.3}

        def second_step(**changes: Any) -> float:
            engine = tiny_engine(tiny_params(lora=lora, num_ppo_epochs=1, num_mini_batches=1, **changes))
            engine.step()
            seen: list[float] = []
            check = engine.guards.check_minibatch

            def recorded(stats: Any, *, first: bool) -> None:
                seen.append(stats.max_ratio_error)
                check(stats, first=first)

            engine.guards.check_minibatch = recorded  # type: ignore[method-assign]
            engine.step()
            return seen[0]

        assert second_step() < 1e-5
        assert second_step(disable_dropout=False) > 1e-3

    def test_numbers_that_are_not_finite_stop_before_the_optimiser_step(self) -> None:
        engine = tiny_engine(tiny_params(guards={"on_violation": "warn"}), reward=ForbiddenText())
        before = snapshot(engine)
        with pytest.raises(DoNotRetryError, match="not finite"):
            engine.step()
        assert all(torch.equal(before[name], value) for name, value in snapshot(engine).items())

    @pytest.mark.parametrize(
        ("guard", "name"),
        [({"max_kl": 1e-9}, "max_kl"), ({"min_distinct": 0.99}, "min_distinct"), ({"min_length": 50.0}, "min_length")],
    )
    def test_limits_stop_the_run_or_warn_once(
        self, guard: dict[str, float], name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        quiet: dict[str, Any] = {"max_kl": None, "min_distinct": None, "min_length": None}

        def run(reaction: str) -> None:
            guards = {**quiet, **guard, "on_violation": reaction}
            engine = tiny_engine(tiny_params(max_steps=2, temperature=0.1, kl_estimator="k3", guards=guards))
            for _ in range(2):
                engine.step()

        with pytest.raises(DoNotRetryError, match="ppo\\.guards\\.on_violation"):
            run("stop")
        run("warn")
        assert [record.message.split(":")[0] for record in caplog.records] == [f"guard {name}"]

    def test_a_cut_graph_is_found(self) -> None:
        engine = tiny_engine()
        for parameter in engine.backbone.parameters_of(Role.POLICY).values():
            parameter.register_hook(torch.zeros_like)
        with pytest.raises(DoNotRetryError, match="no gradient"):
            engine.step()


def test_a_step_holds_one_backbone_and_no_logits_of_the_whole_batch() -> None:
    params = tiny_params(
        rollout_batch_size=2, per_device_rollout_batch_size=2, per_device_train_batch_size=1, max_new_tokens=32,
        logprob_chunk_size=4, gradient_checkpointing=True,
    )  # fmt: skip
    engine = tiny_engine(params, backbone=tiny_backbone(params, vocabulary=2048))
    backbone_bytes = storage_bytes(list(engine.backbone.model.parameters()))
    whole_logits_bytes = params.rollout_batch_size * params.max_new_tokens * 2048 * 4
    engine.step()
    gc.collect()
    with LiveTensors() as live:
        engine.step()
    assert live.largest_bytes < whole_logits_bytes / 8
    assert live.peak_bytes < backbone_bytes
    with LiveTensors() as copied:
        second = [parameter.detach().clone() for parameter in engine.backbone.model.parameters()]
    assert copied.peak_bytes >= backbone_bytes
    del second


def test_memory_is_accounted_per_role_and_phase() -> None:
    engine = tiny_engine(tiny_params(value={"adapter": True}))
    engine.step()
    table = engine.memory_table()
    policy = sum(p.numel() * 4 for p in engine.backbone.parameters_of(Role.POLICY).values())
    assert table["adapter/policy"] == table["adapter/value"] == policy
    assert table["gradients"] == 2 * policy + table["value_head"]
    states = [state[key] for state in engine.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert table["optimizer"] == sum(moment.nbytes for moment in states)
    everything = sum(p.numel() * p.element_size() for p in engine.backbone.model.parameters())
    assert table["backbone"] >= everything - 2 * policy
    assert set(engine.memory.peaks) == {"rollout", "scoring", "update"}
    assert math.isfinite(engine.memory.largest)
    assert EOS == 2
