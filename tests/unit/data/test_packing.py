"""Packing: nothing is cut or lost, rows are full, and what shares a row does not see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.data.collator import RowCollator, position_ids
from lockstep.data.encode import Sample
from lockstep.data.packing import RowBuilder, best_fit_decreasing
from lockstep.data.store import IGNORED

VOCABULARY = 64


@given(st.lists(st.integers(1, 32), max_size=200))
def test_every_sample_is_in_one_row_and_no_row_overflows(lengths: list[int]):
    rows = best_fit_decreasing(lengths, 32)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    fill = sorted(sum(lengths[index] for index in row) for row in rows)
    assert all(tokens <= 32 for tokens in fill)
    assert sum(fill[:2]) > 32 or len(rows) < 2, "two rows would fit into one"


def test_each_sample_goes_into_the_fullest_row_that_takes_it():
    assert best_fit_decreasing([6, 7, 3, 4], 10) == [[0, 3], [1, 2]]
    assert best_fit_decreasing([5, 5, 5, 5], 10) == [[0, 1], [2, 3]]
    assert best_fit_decreasing([], 10) == []


def test_a_sample_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="sample 1 has 11 tokens, a row 10"):
        best_fit_decreasing([3, 11], 10)


def sample(length: int, seed: int = 0) -> Sample:
    ids = np.random.Generator(np.random.PCG64(seed)).integers(1, VOCABULARY, length).astype(np.int32)
    labels = ids.copy()
    labels[0] = IGNORED
    return Sample(ids, labels)


def test_without_packing_each_sample_is_a_row_in_its_order():
    rows: list[list[Sample]] = []
    builder = RowBuilder(rows.append, None)
    samples = [sample(length) for length in (5, 3, 9)]
    for one in samples:
        builder.add(one)
    builder.finish()
    assert rows == [[one] for one in samples]


def test_position_ids_restart_with_every_sample():
    assert position_ids([3, 1, 2]).tolist() == [0, 1, 2, 0, 0, 1]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


def as_row(*samples: Sample) -> dict[str, np.ndarray]:
    return {
        "input_ids": np.concatenate([one.input_ids for one in samples]),
        "labels": np.concatenate([one.labels for one in samples]),
        "seq_lengths": np.array([len(one) for one in samples]),
    }


@torch.no_grad()
def test_packed_logits_equal_those_of_each_sample_alone(model: LlamaForCausalLM):
    rows = [[sample(7, 1), sample(4, 2), sample(5, 3)], [sample(9, 4), sample(1, 5)], [sample(12, 6)]]
    batch = RowCollator(pad_token_id=0)([as_row(*row) for row in rows])
    assert batch["input_ids"].shape == (3, 16)
    packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    for number, row in enumerate(rows):
        start = 0
        for one in row:
            alone = model(input_ids=torch.from_numpy(one.input_ids.astype(np.int64))[None]).logits[0]
            torch.testing.assert_close(packed[number, start : start + len(one)], alone, rtol=1e-5, atol=1e-6)
            start += len(one)


@torch.no_grad()
def test_the_same_rows_without_position_ids_would_see_each_other(model: LlamaForCausalLM):
    first, second = sample(7, 1), sample(4, 2)
    batch = RowCollator(pad_token_id=0)([as_row(first, second)])
    apart = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    mixed = model(input_ids=batch["input_ids"], use_cache=False).logits
    assert not torch.allclose(apart[0, 7:], mixed[0, 7:], atol=1e-3)


def test_attention_masks_grow_with_the_batch_not_with_its_square(model: LlamaForCausalLM):
    from transformers.masking_utils import create_causal_mask

    for num_rows in (1, 4):
        batch = RowCollator(pad_token_id=0)([as_row(sample(7, seed), sample(9, seed)) for seed in range(num_rows)])
        embeds = torch.zeros(num_rows, 16, 32)
        mask = create_causal_mask(model.config, embeds, None, past_key_values=None, position_ids=batch["position_ids"])
        assert mask.shape == (num_rows, 1, 16, 16)


def test_padding_carries_no_loss_and_keeps_every_label():
    long, short = sample(12, 1), sample(5, 2)
    batch = RowCollator(pad_token_id=3)([as_row(long), as_row(short)])
    assert batch["labels"][1, 5:].eq(IGNORED).all()
    assert batch["input_ids"][1, 5:].eq(3).all()
    assert batch["labels"][1, :5].tolist() == short.labels.tolist()
    assert set(batch) == {"input_ids", "labels", "position_ids"}


@torch.no_grad()
def test_rows_joined_for_flash_attention_keep_their_borders(model: LlamaForCausalLM):
    rows = [as_row(sample(7, 1), sample(4, 2)), as_row(sample(5, 3))]
    joined = RowCollator(pad_token_id=0, attn_implementation="flash_attention_2")(rows)
    apart = RowCollator(pad_token_id=0)(rows)
    assert joined["input_ids"].shape == (1, 16)
    assert joined["position_ids"].tolist() == [[*range(7), *range(4), *range(5)]]
    one = model(input_ids=joined["input_ids"], position_ids=joined["position_ids"], use_cache=False).logits[0]
    two = model(input_ids=apart["input_ids"], position_ids=apart["position_ids"], use_cache=False).logits
    torch.testing.assert_close(one[:11], two[0, :11], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one[11:], two[1, :5], rtol=1e-5, atol=1e-6)


def test_a_tokenizer_without_a_padding_token_will_do():
    batch = RowCollator(pad_token_id=None)([as_row(sample(5, 1)), as_row(sample(3, 2))])
    assert batch["labels"][1, 3:].eq(IGNORED).all()
