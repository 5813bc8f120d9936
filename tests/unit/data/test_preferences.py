"""Preference pairs: written ones are passed on, labelled texts that begin alike are paired once each."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.data.documents import Document
from lockstep.data.preferences import make_pairs, pair_or_labelled
from lockstep.data.sources import Record
from lockstep.data.tally import Tally
from lockstep.foundation.errors import UsageError
from lockstep.params.data import PreferenceDataParams, SourceParams

SOURCE = SourceParams(source="jsonl:pairs.jsonl")
PARAMS = PreferenceDataParams(common_words=2, max_words=3)


def pairs(*records: dict[str, Any]) -> tuple[list[Document], Tally]:
    tally = Tally()
    documents = [pair_or_labelled(Record(f"pairs.jsonl:{n}", record), SOURCE) for n, record in enumerate(records, 1)]
    return list(make_pairs(documents, PARAMS, tally)), tally


def labelled(text: str, label: int) -> dict[str, Any]:
    return {"text": text, "label": label}


def test_a_positive_and_a_negative_text_with_one_beginning_become_a_pair():
    made, tally = pairs(
        labelled("This film is dull and slow", 0),
        labelled("My soup is warm and good", 1),
        labelled("This film is bright and fun today", 1),
    )
    (pair,) = made
    assert pair.payload["prompt"] == "This film"
    assert pair.payload["chosen"] == " is bright and"
    assert pair.payload["rejected"] == " is dull and"
    assert pair.where == "pairs.jsonl:3 and pairs.jsonl:1"
    assert tally.places == {"no_partner": ["pairs.jsonl:2"]}


def test_no_text_is_used_twice_and_short_ones_are_counted():
    made, tally = pairs(
        labelled("This film is dull and slow", 0),
        labelled("This film is bright and fun", 1),
        labelled("This film is bright and fun", 1),
        labelled("This film is bad and long", 0),
        labelled("This film", 1),
    )
    assert len(made) == 1
    assert {reason: tally.num_dropped(reason) for reason in tally.places} == {
        "duplicate": 1,
        "no_partner": 1,
        "too_short_to_pair": 1,
    }


def test_later_texts_change_no_earlier_pair():
    first = [labelled("This film is dull and slow", 0), labelled("This film is bright and fun", 1)]
    later = [labelled("This film is great and short", 1), labelled("This film is sad and loud", 0)]
    before, after = pairs(*first)[0], pairs(*first, *later)[0]
    assert after[0] == before[0]
    assert len(after) == 2


def test_written_pairs_are_passed_on_and_grouped_by_prompt():
    made, _ = pairs(
        {"prompt": "Say ", "chosen": "yes", "rejected": "no"}, {"prompt": "Say ", "chosen": "ja", "rejected": "nein"}
    )
    assert [pair.payload["chosen"] for pair in made] == ["yes", "ja"]
    assert made[0].group == made[1].group
    assert made[0].key != made[1].key


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, "expected text under 'rejected', found nothing"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "the same text"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "prompt must be text, found int"),
        ({"chosen": [{"role": "user"}], "rejected": "c"}, "expected text under 'chosen', found list"),
    ],
)
def test_bad_pairs_are_named(record: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=f"pairs.jsonl:1: .*{said}"):
        pairs(record)
