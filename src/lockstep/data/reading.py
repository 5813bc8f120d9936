"""From the records of a section's sources to documents: what each section expects of a record, and what it drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.data.chat import has_assistant, identity_of, normalise_chat, text_of
from lockstep.data.documents import Document, content_key, fraction
from lockstep.data.filters import reason_to_drop
from lockstep.data.sources import Record, read_source
from lockstep.data.tally import Tally
from lockstep.foundation.errors import UsageError
from lockstep.params.data import SectionParams, SourceParams

UNLABELLED = "unlabelled"
_LABELS = {1: "positive", 0: "negative"}


@dataclass(frozen=True)
class Section:
    """One data section with its folder and its counts."""

    name: str
    params: SectionParams
    folder: Path
    tally: Tally


def read_section(section: Section, convert: Callable[[Record, SourceParams], Document | None]) -> Iterator[Document]:
    """The documents of all sources that `convert` accepts, that lie in the content range and pass the filters.

    Raises UsageError as `read_source` does.
    """
    for source in section.params.sources:
        for record in read_source(source, section.folder):
            section.tally.read[source.source] += 1
            document = convert(record, source)
            reason = "no_assistant_turn" if document is None else _reason(section.params, document)
            if reason:
                section.tally.drop(source.source, reason, record.where)
            elif document is not None:
                yield document


def _reason(params: SectionParams, document: Document) -> str | None:
    low, high = params.content_range
    if not low <= fraction(document.group, "range") < high:
        return "outside_content_range"
    chat = document.payload.get("messages")
    return reason_to_drop(text_of(chat) if chat else document.payload["text"], params.filters)


def chat_or_text(record: Record, source: SourceParams) -> Document | None:
    """A chat (`messages`, `conversations`, or `prompt` with `completion`) or a plain `text` for supervised fine-tuning.

    None for a chat in which no assistant speaks. Raises UsageError for such a chat in a JSONL file, which was made
    for learning, and for a record that is neither chat nor text.
    """
    data, where = record.data, record.where
    if "text" in data:
        text = text_field(record, "text")
        return _document({"text": text}, text, record, source, UNLABELLED)
    messages = normalise_chat(_raw_chat(data, where), where)
    if not has_assistant(messages):
        if source.kind == "jsonl":
            raise UsageError(f"{where}: a chat without an assistant turn; there is nothing to learn from it.")
        return None
    return _document({"messages": messages}, identity_of(messages), record, source, UNLABELLED)


def labelled_text(record: Record, source: SourceParams) -> Document:
    """A `text` with a `label`, 1 (positive) or 0 (negative). Raises UsageError for anything else."""
    label = record.data.get("label")
    if label not in _LABELS or isinstance(label, bool):
        raise UsageError(f"{record.where}: label must be 1 (positive) or 0 (negative), found {label!r}.")
    text = text_field(record, "text")
    return _document({"text": text, "label": label}, text, record, source, _LABELS[label])


def opening(record: Record, source: SourceParams) -> Document:
    """A whole `prompt`, or a `text` (with or without a label) from which one is cut."""
    key = "prompt" if "prompt" in record.data else "text"
    text = text_field(record, key)
    label = record.data.get("label")
    if label is not None and (label not in _LABELS or isinstance(label, bool)):
        raise UsageError(f"{record.where}: label must be 1 (positive), 0 (negative) or absent, found {label!r}.")
    payload = {"text": text, "label": label, "whole": key == "prompt"}
    named = UNLABELLED if label is None else _LABELS[label]
    return _document(payload, text, record, source, named)


def text_field(record: Record, key: str) -> str:
    """A field that must be there and hold text. Raises UsageError naming the place and what is there instead."""
    value = record.data.get(key)
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value is None else "empty text" if isinstance(value, str) else type(value).__name__
        keys = ", ".join(sorted(record.data)) or "none"
        raise UsageError(f"{record.where}: expected text under '{key}', found {found}. Keys here: {keys}.")
    return value.strip()


def _document(payload: dict[str, Any], content: str, record: Record, source: SourceParams, label: str) -> Document:
    key = content_key(content)
    return Document(payload, key, key, source.source, label, record.where)


def _raw_chat(data: dict[str, Any], where: str) -> Any:
    if isinstance(data.get("prompt"), str) and isinstance(data.get("completion"), str):
        return [{"role": "user", "content": data["prompt"]}, {"role": "assistant", "content": data["completion"]}]
    for key in ("messages", "conversations"):
        if key in data:
            return data[key]
    keys = ", ".join(sorted(data)) or "none"
    raise UsageError(f"{where}: neither a chat (messages, or prompt and completion) nor a text. Keys here: {keys}.")
