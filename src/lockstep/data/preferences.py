"""Preference pairs: as somebody wrote them down, or made from labelled texts that begin alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from lockstep.data.documents import Document, content_key
from lockstep.data.reading import UNLABELLED, labelled_text, text_field
from lockstep.data.sources import Record
from lockstep.data.tally import Tally
from lockstep.foundation.errors import UsageError
from lockstep.params.data import PreferenceDataParams, SourceParams


def pair_or_labelled(record: Record, source: SourceParams) -> Document:
    """A record with the texts `prompt`, `chosen` and `rejected`, or a labelled text.

    All pairs of one prompt form a group, so none of them is held out while others are trained on.
    """
    if "chosen" not in record.data:
        return labelled_text(record, source)
    for key in ("chosen", "rejected"):
        text_field(record, key)
    prompt, chosen, rejected = record.data.get("prompt", ""), record.data["chosen"], record.data["rejected"]
    if not isinstance(prompt, str):
        raise UsageError(f"{record.where}: prompt must be text, found {type(prompt).__name__}.")
    if chosen == rejected:
        raise UsageError(f"{record.where}: chosen and rejected are the same text.")
    return _pair(prompt, chosen, rejected, source.source, record.where, group=prompt or chosen)


def make_pairs(documents: Iterable[Document], params: PreferenceDataParams, tally: Tally) -> Iterator[Document]:
    """Passes pairs on, and pairs each positive text with a negative one that begins with the same words.

    The shared words (`common_words`) are the prompt; the next `max_words` words of the positive text are chosen, those
    of the negative one rejected. Nobody compared the two texts: the preference is that a positive continuation is
    preferred. Every text is used once, in reading order, so adding texts at the end changes no earlier pair.
    """
    waiting: dict[tuple[str, int], deque[Document]] = {}
    seen: set[str] = set()
    for document in documents:
        if "chosen" in document.payload:
            yield document
            continue
        text = _first_words(document, params.common_words + params.max_words)
        if text is None or document.key in seen:
            tally.drop(document.source, "duplicate" if text else "too_short_to_pair", document.where)
            continue
        seen.add(document.key)
        start, label = " ".join(text.split()[: params.common_words]), document.payload["label"]
        short = replace(document, payload={"text": text})
        if partners := waiting.get((start, 1 - label)):
            partner = partners.popleft()
            yield _join(start, *((short, partner) if label else (partner, short)))
        else:
            waiting.setdefault((start, label), deque()).append(short)
    for document in (left for partners in waiting.values() for left in partners):
        tally.drop(document.source, "no_partner", document.where)


def _first_words(document: Document, num_words: int) -> str | None:
    words = document.payload["text"].split()
    return " ".join(words[:num_words]) if len(words) >= num_words else None


def _join(prompt: str, positive: Document, negative: Document) -> Document:
    chosen, rejected = (document.payload["text"].removeprefix(prompt) for document in (positive, negative))
    where = f"{positive.where} and {negative.where}"
    return _pair(prompt, chosen, rejected, positive.source, where, group=f"{prompt}{chosen}{rejected}")


def _pair(prompt: str, chosen: str, rejected: str, source: str, where: str, group: str) -> Document:
    payload = {"prompt": prompt, "chosen": chosen, "rejected": rejected, "text": f"{prompt}{chosen}"}
    key = content_key(f"{prompt}\n{chosen}\n{rejected}")
    return Document(payload, key, content_key(group), source, UNLABELLED, where)
