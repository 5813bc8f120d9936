"""Numbers and times as people read them."""

from __future__ import annotations

import math

import pytest

from lockstep.reporting.html import tag
from lockstep.reporting.words import duration, number, percent, seconds_between, signed, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.061, "0.061"),
        (31.6249, "31.62"),
        (-0.104, "−0.104"),
        (1533, "1\u202f533"),
        (1234.5678, "1\u202f235"),
        (5e-5, "5.00e−05"),
        (math.nan, "nan"),
        (999_999.7, "1\u202f000\u202f000"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_signs_shares_sizes_and_times() -> None:
    assert (signed(0.1944), signed(-10.75)) == ("+0.194", "−10.8")
    assert percent(0.66 - 1) == "−34\u202f%"
    assert (size(0), size(1023), size(2.1e9)) == ("0\u202fB", "1023\u202fB", "2.0\u202fGiB")
    assert [duration(s) for s in (0.42, 59.4, 61, 7325)] == [
        "0.4\u202fs",
        "59\u202fs",
        "1\u202fmin 01\u202fs",
        "2\u202fh 02\u202fmin",
    ]
    assert seconds_between("2026-11-30T10:00:00+00:00", "2026-11-30T12:00:30+01:00") == 3630


def test_text_never_becomes_markup() -> None:
    assert tag("p", "<script>", tag("b", "&"), title='"') == '<p title="&quot;">&lt;script&gt;<b>&amp;</b></p>'
