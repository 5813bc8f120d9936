"""Samples of what was made, for people to look at: text, with what the model learns marked."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from lockstep.data.documents import Document
from lockstep.data.encode import Sample
from lockstep.data.sources import read_jsonl
from lockstep.data.store import IGNORED

_NUM_SHOWN = 4


def show_sample(tokenizer: Any, document: Document, sample: Sample) -> dict[str, Any]:
    """One sample as consecutive pieces of text, each with whether the model learns to say it."""
    marked = zip(sample.input_ids.tolist(), (sample.labels != IGNORED).tolist(), strict=True)
    segments = [
        {"text": tokenizer.decode([token for token, _ in piece]), "supervised": supervised}
        for supervised, piece in groupby(marked, key=lambda pair: pair[1])
    ]
    return {
        "source": document.source,
        "where": document.where,
        "num_tokens": len(sample),
        "num_supervised_tokens": sample.num_supervised,
        "segments": segments,
    }


def first_records(path: Path) -> list[dict[str, Any]]:
    """The first few records of a JSON-lines file."""
    return [record.data for _, record in zip(range(_NUM_SHOWN), read_jsonl(path), strict=False)]
