"""One text on its way to a split, and the content hashes that decide where it goes."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import dataclass
from typing import Any

_HASH_BYTES = 16


@dataclass(frozen=True)
class Document:
    """A text (or chat, or pair) with what is needed to choose among documents without looking inside."""

    payload: dict[str, Any]
    """What becomes the output, as JSON data."""
    key: str
    """`content_key` of what is learned from it: documents with equal keys are duplicates."""
    group: str
    """`content_key` of the text it was made from: documents of one group never end up on two sides of a split."""
    source: str
    label: str
    """The class it is counted under; `unlabelled` where it has none."""
    where: str
    """File and line, for messages."""

    def as_line(self) -> str:
        """The document as one JSON line."""
        return json.dumps(vars(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Document:
        """The inverse of `as_line`."""
        return cls(**json.loads(line))


def content_key(text: str) -> str:
    """32 hex digits that are equal for texts which differ only in case, spacing or Unicode composition."""
    normalised = " ".join(unicodedata.normalize("NFC", text).casefold().split())
    return hashlib.blake2b(normalised.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


def fraction(key: str, purpose: str) -> float:
    """A number in [0, 1) that depends on a content key alone; independent for each `purpose` (range, split, weight)."""
    digest = hashlib.blake2b(bytes.fromhex(key), digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64
