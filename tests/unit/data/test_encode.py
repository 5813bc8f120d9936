"""From chats to tokens and labels: what is supervised, what happens to long chats, what is counted and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_worlds import chat, sft_params, tiny_tokenizer
from lockstep.data.encode import Encoder, Sample
from lockstep.data.reading import chat_or_text
from lockstep.data.sources import Record
from lockstep.data.store import IGNORED
from lockstep.data.tally import Tally
from lockstep.data.template import CHATML
from lockstep.params.data import SourceParams

SOURCE = SourceParams(source="jsonl:chats.jsonl")
LONG = chat("How was the film?", "It was great.", "And the soup?", "The soup was wonderful, too. I loved it.")


def encode(record: dict[str, Any], tokenizer: Any = None, **changes: Any) -> tuple[list[Sample], Tally]:
    tally = Tally()
    document = chat_or_text(Record("chats.jsonl:3", record), SOURCE)
    assert document is not None
    encoder = Encoder(tokenizer or tiny_tokenizer(), sft_params(**changes), CHATML, tally)
    return [sample for _, _, sample in encoder.encode([("train", document)])], tally


def supervised_text(sample: Sample) -> str:
    return str(tiny_tokenizer().decode(sample.input_ids[sample.labels != IGNORED]))


def test_the_mask_is_the_answers_with_their_end_tokens():
    (sample,), _ = encode(LONG)
    assert supervised_text(sample) == "It was great.<|im_end|>The soup was wonderful, too. I loved it.<|im_end|>"
    kept = sample.labels[sample.labels != IGNORED]
    assert np.array_equal(kept, sample.input_ids[sample.labels != IGNORED])
    assert (kept == tiny_tokenizer().eos_token_id).sum() == 2


def test_the_tokens_are_those_of_the_template():
    (sample,), _ = encode(LONG)
    whole = tiny_tokenizer().apply_chat_template(LONG["messages"])["input_ids"]
    assert sample.input_ids.tolist() == whole[:-1]  # all but the line break behind the last turn


def test_all_tokens_but_the_first_are_supervised_without_assistant_only_loss():
    (sample,), _ = encode(LONG, assistant_only_loss=False)
    assert sample.num_supervised == len(sample) - 1


def test_an_end_token_that_is_also_the_padding_token_stays_supervised():
    tokenizer = type(tiny_tokenizer())(tokenizer_object=tiny_tokenizer().backend_tokenizer, eos_token="<|im_end|>")
    tokenizer.pad_token = tokenizer.eos_token
    (sample,), _ = encode(LONG, tokenizer)
    assert sample.labels[-1] == tokenizer.pad_token_id == tokenizer.eos_token_id


def test_a_long_chat_keeps_the_turns_that_fit():
    (whole,), _ = encode(LONG)
    (cut,), tally = encode(LONG, max_length=len(whole) - 1)
    assert supervised_text(cut) == "It was great.<|im_end|>"
    assert cut.input_ids[-1] == tiny_tokenizer().eos_token_id
    assert tally.changed[SOURCE.source, "shortened"] == 1


def test_a_long_chat_can_be_cut_or_dropped_instead():
    (whole,), _ = encode(LONG)
    (cut,), _ = encode(LONG, max_length=len(whole) - 1, overflow="truncate")
    assert cut.input_ids.tolist() == whole.input_ids[:-1].tolist()
    none, tally = encode(LONG, max_length=len(whole) - 1, overflow="drop")
    assert none == []
    assert tally.places == {"too_long": ["chats.jsonl:3"]}


def test_a_first_exchange_that_does_not_fit_is_dropped_and_named():
    none, tally = encode(LONG, max_length=12)
    assert none == []
    assert tally.places == {"too_long": ["chats.jsonl:3"]}


def test_a_sample_cut_before_the_assistant_speaks_is_counted_and_named():
    none, tally = encode(LONG, max_length=8, overflow="truncate")
    assert none == []
    assert tally.num_dropped("no_supervised_token") == 1
    assert tally.places == {"no_supervised_token": ["chats.jsonl:3"]}


def test_early_stopping_of_the_rendering_changes_nothing():
    turns = [
        f"This is the {word} film by the river and I loved it."
        for word in ["old", "new", "long", "green", "second"] * 4
    ]
    for overflow in ("turns", "truncate"):
        (sample,), _ = encode(chat(*turns), max_length=64, overflow=overflow)
        (whole,), _ = encode(chat(*turns), max_length=4096)
        assert sample.input_ids.tolist() == whole.input_ids[: len(sample)].tolist()
        assert sample.labels.tolist() == whole.labels[: len(sample)].tolist()


def test_a_plain_text_is_learnt_whole_with_its_end():
    (sample,), _ = encode({"text": "The film was great."})
    assert tiny_tokenizer().decode(sample.input_ids) == "The film was great.<|im_end|>"
    assert sample.labels.tolist() == [IGNORED, *sample.input_ids[1:].tolist()]


@pytest.mark.parametrize("text", ["Zoë 😀 said “hi”\tand\nleft", "日本語 café"])
def test_characters_of_many_bytes_are_inside_or_outside_as_a_whole(text: str):
    (sample,), _ = encode(chat("Hi 😀", text))
    assert supervised_text(sample) == f"{text}<|im_end|>"
