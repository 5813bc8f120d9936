"""Each filter rule drops what it says and nothing else."""

from __future__ import annotations

import pytest

from lockstep.data.filters import looks_english, reason_to_drop, repetition
from lockstep.params.data import FilterParams

LOOP = "the same three words " * 8
GERMAN = (
    "Dieser lange Satz besteht aus vielen deutschen Wörtern und sollte deshalb nicht als englischer Text gelten, "
    "denn er enthält fast keine der häufigen kleinen Wörter, nach denen geschaut wird."
)


@pytest.mark.parametrize(
    ("text", "filters", "reason"),
    [
        ("short", {"min_chars": 6}, "too_short"),
        ("too long", {"max_chars": 7}, "too_many_chars"),
        (LOOP, {"max_repetition": 0.5}, "repetitive"),
        ("Это русский текст", {"language": "en"}, "not_english"),
        (GERMAN, {"language": "en"}, "not_english"),
        ("Is this one fine? It is, and that is all there is to say about it, so we can go on to the next.", {}, None),
        (LOOP, {"language": "any"}, None),
    ],
)
def test_the_first_failing_rule_is_named(text: str, filters: dict[str, object], reason: str | None):
    assert reason_to_drop(text, FilterParams.model_validate(filters)) == reason


def test_repetition_is_the_share_of_repeated_trigrams():
    assert repetition("one two") == 0
    assert repetition("a b c d e") == 0
    assert repetition("a b c a b c") == pytest.approx(1 / 4)


def test_short_english_with_an_accent_passes():
    assert looks_english("A café by the sea")
