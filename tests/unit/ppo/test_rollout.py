"""Rollouts: draws do not depend on the split, ends are lengths, and scoring sees the distribution drawn from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from live_tensors import LiveTensors
from lockstep.foundation.errors import LockstepError
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import POLL_EVERY, Completions, generate
from lockstep.training.ppo.sampling import Stream, draw, uniforms
from lockstep.training.ppo.scoring import LogitsConfig, completion_states, score_completions, token_logprobs
from ppo_cases import EOS, VOCABULARY, tiny_backbone, tiny_prompts

PROMPTS = tiny_prompts(8)
CONFIG = LogitsConfig(temperature=0.8, chunk_size=5)


@pytest.fixture
def backbone() -> Backbone:
    """A backbone whose policy differs from its reference."""
    backbone = tiny_backbone()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in backbone.parameters_of(Role.POLICY).items():
        if "lora_B" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return backbone


def complete(backbone: Backbone, *, batch_size: int = 8, num_new_tokens: int = 24, ids: list[int] | None = None,
             prompts: list[list[int]] | None = None, eos: list[int] | None = None) -> Completions:  # fmt: skip
    noise = uniforms(0, Stream.ROLLOUT, 0, ids or list(range(8)), num_new_tokens)
    return generate(
        backbone, Role.POLICY, prompts or PROMPTS, noise, eos_token_ids=[EOS] if eos is None else eos,
        pad_token_id=EOS, temperature=0.8, batch_size=batch_size,
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_the_split_into_micro_batches_does_not_change_what_is_drawn(backbone: Backbone, batch_size: int) -> None:
    whole, split = complete(backbone), complete(backbone, batch_size=batch_size)
    assert torch.equal(whole.tokens, split.tokens)
    assert torch.equal(whole.lengths, split.lengths)


def test_a_prompt_alone_is_completed_as_it_is_among_others(backbone: Backbone) -> None:
    whole = complete(backbone)
    alone = complete(backbone, prompts=[PROMPTS[3]], ids=[3], batch_size=1)
    assert alone.token_lists()[0] == whole.token_lists()[3]


def test_cached_generation_draws_what_full_forwards_would(backbone: Backbone) -> None:
    found = complete(backbone, num_new_tokens=6, eos=[])
    noise = uniforms(0, Stream.ROLLOUT, 0, list(range(8)), 6)
    with torch.no_grad(), backbone.role(Role.POLICY):
        for row, (prompt, new) in enumerate(found.token_lists()):
            for t, token in enumerate(new):
                logits = backbone.model(torch.tensor([prompt + new[:t]])).logits[:, -1]
                assert int(draw(logits, noise[row : row + 1, t], 0.8)) == token


def test_a_completion_ends_at_its_end_of_text_token_and_keeps_it(backbone: Backbone) -> None:
    free = complete(backbone, eos=[])
    end = int(free.targets[0, 4])
    found = complete(backbone, eos=[end, EOS])
    prompt, new = found.token_lists()[0]
    first = free.targets[0].tolist().index(end)
    assert prompt == PROMPTS[0]
    assert new == free.targets[0, : first + 1].tolist()
    assert bool(found.finished[0])
    assert found.mask[0].sum() == first + 1
    unfinished = ~found.finished
    assert (found.lengths[unfinished] == 24).all()


def test_masks_follow_lengths_although_padding_is_the_end_of_text_token(backbone: Backbone) -> None:
    found = complete(backbone)
    for row, (prompt, new) in enumerate(found.token_lists()):
        assert int(found.attention_mask[row].sum()) == len(prompt) + len(new)
        real = found.attention_mask[row].bool()
        assert found.position_ids[row][real].tolist() == list(range(len(prompt) + len(new)))
        assert found.tokens[row][real].tolist() == prompt + new


def test_rollout_polls_equally_often_wherever_completions_end(backbone: Backbone) -> None:
    def polls(eos: list[int]) -> int:
        count = 0

        def poll() -> None:
            nonlocal count
            count += 1

        noise = uniforms(0, Stream.ROLLOUT, 0, list(range(8)), 2 * POLL_EVERY + 1)
        generate(
            backbone, Role.POLICY, PROMPTS, noise, eos_token_ids=eos, pad_token_id=EOS, temperature=0.8,
            batch_size=4, poll=poll,
        )  # fmt: skip
        return count

    assert polls([]) == polls(list(range(VOCABULARY))) == 6


def test_scored_logprobs_are_those_of_the_model_at_the_sampling_temperature(backbone: Backbone) -> None:
    found = complete(backbone)
    scored = score_completions(backbone, Role.POLICY, found, CONFIG, batch_size=4, with_entropy=True)
    with torch.no_grad(), backbone.role(Role.POLICY):
        for row, (prompt, new) in enumerate(found.token_lists()):
            logits = backbone.model(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1] / 0.8
            expected = F.log_softmax(logits, -1)
            chosen = expected[torch.arange(len(new)), new]
            torch.testing.assert_close(scored.logprobs[row, : len(new)], chosen, rtol=0, atol=2e-5)
            entropy = -(expected.exp() * expected).sum(-1)
            torch.testing.assert_close(scored.entropies[row, : len(new)], entropy, rtol=0, atol=2e-5)
            assert not scored.logprobs[row, len(new) :].any()


def test_gradients_through_chunks_equal_those_through_all_logits(backbone: Backbone) -> None:
    found = complete(backbone)
    weights = torch.randn(8, 24, generator=torch.Generator().manual_seed(1))

    def gradients(chunk_size: int) -> list[torch.Tensor]:
        states = completion_states(backbone, found)
        config = LogitsConfig(0.8, chunk_size)
        logprobs, entropies = token_logprobs(backbone, states, found, config, with_entropy=True)
        loss = (weights * (logprobs + 0.1 * entropies)).sum()
        return list(torch.autograd.grad(loss, list(backbone.parameters_of(Role.POLICY).values())))

    for chunked, whole in zip(gradients(7), gradients(10_000), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)


def test_no_buffer_over_batch_length_and_vocabulary_exists_in_scoring_or_its_backward() -> None:
    backbone = tiny_backbone(vocabulary=2048)
    found = complete(backbone, num_new_tokens=48, eos=[])
    whole_bytes = 8 * 48 * 2048 * 4

    def largest_bytes(chunk_size: int) -> int:
        with LiveTensors() as live:
            states = completion_states(backbone, found)
            token_logprobs(backbone, states, found, LogitsConfig(1.0, chunk_size))[0].sum().backward()
        return live.largest_bytes

    assert largest_bytes(10_000) >= whole_bytes
    assert largest_bytes(16) < whole_bytes / 4


def test_a_bad_number_is_traced_to_the_first_layer_that_made_it(backbone: Backbone) -> None:
    found = complete(backbone)
    backbone.model.model.layers[1].mlp.up_proj.base_layer.weight.data[3, 3] = float("inf")
    with pytest.raises(LockstepError, match=r"model\.layers\.1\.mlp\.up_proj\.base_layer"):
        score_completions(backbone, Role.POLICY, found, CONFIG, batch_size=8)
