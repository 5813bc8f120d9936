"""From texts and chats to samples: token ids, and labels that say which of them the model learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from lockstep.data.documents import Document
from lockstep.data.store import IGNORED
from lockstep.data.tally import Tally
from lockstep.data.template import Rendered, render
from lockstep.params.data import SftDataParams

_BATCH = 256
_MIN_CHARS_PER_TOKEN = 2
Ids = np.ndarray[Any, np.dtype[np.int32]]
Bounds = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sample:
    """One text of T tokens: `input_ids` (T,) and `labels` (T,), which are -100 where no loss is taken."""

    input_ids: Ids
    labels: Ids

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_supervised(self) -> int:
        """Tokens that carry loss."""
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True)
class Encoder:
    """Turns documents (`messages` or `text`) into samples of at most `max_length` tokens."""

    tokenizer: Any
    params: SftDataParams
    template: str
    tally: Tally

    def encode(self, documents: Iterable[tuple[str, Document]]) -> Iterator[tuple[str, Document, Sample]]:
        """(split, document, sample) in the order of (split, document); what yields no sample is counted and named."""
        stream = iter(documents)
        while batch := list(islice(stream, _BATCH)):
            rendered = [self._render(document) for _, document in batch]
            encoded = self.tokenizer(
                [item.text for item in rendered], add_special_tokens=False, return_offsets_mapping=True
            )
            columns = zip(batch, rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True)
            for (split, document), item, ids, offsets in columns:
                sample = self._sample(document, item, ids, offsets)
                if sample is not None:
                    yield split, document, sample

    def _render(self, document: Document) -> Rendered:
        if "messages" in document.payload:
            messages = document.payload["messages"]
            return render(self.tokenizer, self.template, messages, document.where, enough=self._is_beyond_limit)
        text = document.payload["text"]
        return Rendered(text, [(0, len(text))])

    def _is_beyond_limit(self, text: str) -> bool:
        """Whether what follows cannot matter. Counting tokens is left out while there are too few characters."""
        if len(text) < _MIN_CHARS_PER_TOKEN * self.params.max_length:
            return False
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"]) > self.params.max_length

    def _sample(
        self, document: Document, item: Rendered, ids: list[int], offsets: list[tuple[int, int]]
    ) -> Sample | None:
        bounds = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        input_ids = np.array(ids, dtype=np.int32)
        is_chat = "messages" in document.payload
        if not is_chat and self.tokenizer.eos_token_id is not None:
            input_ids = np.append(input_ids, np.int32(self.tokenizer.eos_token_id))
        supervised = np.ones(len(input_ids), dtype=bool)
        if is_chat and self.params.assistant_only_loss:
            supervised = inside(bounds, item.spans)
        length = self._length(item, bounds, len(input_ids), is_chat)
        if length is None:
            self.tally.drop(document.source, "too_long", document.where)
            return None
        sample = make_sample(input_ids[:length], supervised[:length])
        if not sample.num_supervised:
            self.tally.drop(document.source, "no_supervised_token", document.where)
            return None
        if length < len(input_ids):
            self.tally.changed[document.source, "shortened"] += 1
        return sample

    def _length(self, item: Rendered, bounds: Bounds, full: int, is_chat: bool) -> int | None:
        """How many tokens of the sample are used; None: it does not fit and is dropped."""
        limit = self.params.max_length
        if full <= limit:
            return full
        if self.params.overflow == "drop":
            return None
        if self.params.overflow == "truncate" or not is_chat:
            return limit
        ends = [int(np.searchsorted(bounds[:, 1], end, side="right")) for _, end in item.spans]
        return max((end for end in ends if end <= limit), default=None)


def inside(bounds: Bounds, spans: list[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which tokens lie wholly inside one of the character spans; `bounds` (T, 2) are the tokens' (start, end)."""
    mask = np.zeros(len(bounds), dtype=bool)
    starts, ends = bounds[:, 0], bounds[:, 1]
    for start, end in spans:
        mask |= (starts >= start) & (ends <= end) & (ends > starts)
    return mask


def make_sample(input_ids: Ids, supervised: np.ndarray[Any, np.dtype[np.bool_]]) -> Sample:
    """Labels from a mask. The first token gets none: nothing before it predicts it, least of all another sample."""
    labels = np.where(supervised, input_ids, np.int32(IGNORED)).astype(np.int32)
    labels[:1] = IGNORED
    return Sample(input_ids, labels)
