"""Which texts are used follows from their content: not from file order, and not from what is added later."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from lockstep.data.documents import Document, content_key
from lockstep.data.selection import HashBuckets, Selection
from lockstep.data.tally import Tally
from lockstep.params.data import SectionParams

_FOLDERS = count()


def document(text: str, source: str = "jsonl:a", label: str = "unlabelled", group: str | None = None) -> Document:
    return Document({"text": text}, content_key(text), content_key(group or text), source, label, f"at {text}")


def select(
    tmp_path: Path, documents: list[Document], balance: bool = False, expected_bytes: int = 0, **params: Any
) -> tuple[list[tuple[str, str]], Tally]:
    """The chosen (split, text) in their order."""
    tally = Tally()
    section = SectionParams.model_validate({"sources": [{"source": "jsonl:a"}], "eval_fraction": 0.2, **params})
    buckets = HashBuckets(tmp_path / f"buckets-{next(_FOLDERS)}", expected_bytes)
    buckets.fill(documents)
    chosen = Selection(buckets, section, tally, balance).documents()
    return [(split, one.payload["text"]) for split, one in chosen], tally


def texts(num: int, start: int = 0) -> list[Document]:
    return [document(f"text {number}") for number in range(start, start + num)]


def test_order_and_split_do_not_depend_on_the_order_of_files_or_on_buckets(tmp_path: Path):
    forwards, _ = select(tmp_path, texts(500))
    backwards, _ = select(tmp_path, texts(500)[::-1], expected_bytes=1 << 30)
    assert forwards == backwards
    assert len(forwards) == 500


def test_about_the_wanted_share_is_held_out(tmp_path: Path):
    chosen, _ = select(tmp_path, texts(2000))
    assert 330 < Counter(split for split, _ in chosen)["eval"] < 470


def test_more_data_moves_no_text_to_the_other_side(tmp_path: Path):
    before, _ = select(tmp_path, texts(300))
    after, _ = select(tmp_path, texts(900))
    assert set(before) <= set(after)


def test_texts_of_one_group_stay_together(tmp_path: Path):
    parts = [document(f"part {part} of {group}", group=f"group {group}") for group in range(100) for part in range(3)]
    chosen, _ = select(tmp_path, parts)
    sides: dict[str, set[str]] = {}
    for split, text in chosen:
        sides.setdefault(text.rpartition(" ")[2], set()).add(split)
    assert all(len(side) == 1 for side in sides.values())
    assert {"train"} in sides.values()
    assert {"eval"} in sides.values()


def test_duplicates_are_counted_and_only_the_first_stays(tmp_path: Path):
    twice = [*texts(50), document("TEXT  7"), document("text 7", source="jsonl:a")]
    chosen, tally = select(tmp_path, twice)
    assert len(chosen) == 50
    assert tally.dropped == {("jsonl:a", "duplicate"): 2}
    assert "text 7" in [text for _, text in chosen]


def test_weights_thin_out_and_repeat(tmp_path: Path):
    documents = [document(f"{name} {number}", f"jsonl:{name}") for name in "ab" for number in range(1000)]
    sources = [{"source": "jsonl:a", "weight": 0.25}, {"source": "jsonl:b", "weight": 2.5}]
    chosen, tally = select(tmp_path, documents, sources=sources, eval_fraction=0.1)
    train = [text for split, text in chosen if split == "train"]
    times = Counter(train)
    of_a, of_b = ([n for text, n in times.items() if text[0] == name] for name in "ab")
    assert set(of_a) == {1}
    assert 180 < len(of_a) < 280
    assert set(of_b) == {2, 3}
    assert 2.4 < sum(of_b) / len(of_b) < 2.6
    assert len(of_a) + tally.num_dropped("below_weight") + sum(t[0] == "a" for s, t in chosen if s == "eval") == 1000
    assert train[: len(of_a) + len(of_b)] == list(dict.fromkeys(train)), "copies come in later rounds"


def test_caps_keep_the_first_by_hash_and_balance_keeps_labels_even(tmp_path: Path):
    documents = [document(f"text {n}", label="positive" if n % 4 else "negative") for n in range(1000)]
    sources = [{"source": "jsonl:a", "max_samples": 400}]
    chosen, tally = select(tmp_path, documents, balance=True, sources=sources, max_eval_samples=50)
    labels = Counter((split, int(text.split()[1]) % 4 > 0) for split, text in chosen)
    assert labels["train", True] == labels["train", False]
    assert labels["eval", True] == labels["eval", False]
    assert tally.num_dropped("beyond_train_cap") > 300
    assert len(chosen) + tally.dropped.total() == 1000


def test_places_of_the_first_few_dropped_texts_are_named(tmp_path: Path):
    _, tally = select(tmp_path, [*texts(20), *texts(20)])
    assert len(tally.places["duplicate"]) == 5
