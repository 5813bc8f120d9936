"""Openings end where a word ends, and mean the same tokens alone as inside their text."""

from __future__ import annotations

from data_worlds import tiny_tokenizer
from lockstep.data.documents import Document
from lockstep.data.prompts import cut_openings
from lockstep.data.reading import opening
from lockstep.data.sources import Record
from lockstep.data.tally import Tally
from lockstep.params.data import PromptDataParams, SourceParams

SOURCE = SourceParams(source="jsonl:prompts.jsonl")
TEXT = "Before dinner the old museum near my house was unbelievably wonderful and kind."


def cut(*records: dict[str, object], least: int, most: int) -> tuple[list[Document], Tally]:
    tally = Tally()
    documents = [opening(Record(f"prompts.jsonl:{n}", record), SOURCE) for n, record in enumerate(records, start=1)]
    params = PromptDataParams(min_prompt_tokens=least, max_prompt_tokens=most)
    return list(cut_openings(documents, tiny_tokenizer(), params, tally)), tally


def test_an_opening_is_the_longest_prefix_of_whole_words_with_the_same_tokens():
    whole = tiny_tokenizer()(TEXT)["input_ids"]
    for most in range(1, len(whole)):
        for document in cut({"text": TEXT, "label": 1}, least=1, most=most)[0]:
            text = document.payload["text"]
            tokens = tiny_tokenizer()(text)["input_ids"]
            assert tokens == whole[: len(tokens)]
            assert len(tokens) <= most
            assert TEXT[len(text)] == " "
            assert text[-1].isalpha()


def test_every_cut_lies_between_words_so_long_words_shorten_the_opening():
    (document,), _ = cut({"text": TEXT}, least=2, most=12)
    assert document.payload == {"text": "Before dinner the old museum near my house was", "label": None}


def test_too_short_texts_and_texts_without_a_fitting_cut_are_named():
    none, tally = cut({"text": "Today"}, {"text": TEXT}, least=11, most=12)
    assert none == []
    assert tally.places == {"no_opening_of_that_length": ["prompts.jsonl:1", "prompts.jsonl:2"]}


def test_whole_prompts_are_kept_as_they_are_or_dropped():
    kept, tally = cut({"prompt": "The film was"}, {"prompt": TEXT}, least=1, most=8)
    assert [document.payload["text"] for document in kept] == ["The film was"]
    assert tally.num_dropped("no_opening_of_that_length") == 1
