"""Openings for PPO: the first tokens of a text, cut where a word ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from lockstep.data.documents import Document, content_key
from lockstep.data.tally import Tally
from lockstep.params.data import PromptDataParams

_BATCH = 512
_MAX_CHARS_PER_TOKEN = 32


def cut_openings(
    documents: Iterable[Document], tokenizer: Any, params: PromptDataParams, tally: Tally
) -> Iterator[Document]:
    """Replaces each document's `text` by its opening; what has none of the wanted length is counted.

    An opening is the longest prefix that ends where a word ends and has min to max prompt tokens. Encoded by itself it
    gives the very tokens it has inside the text, so that a policy sees what the text's reader saw. A record that is a
    whole prompt already is not cut, but its length is checked.
    """
    stream = iter(documents)
    while batch := list(islice(stream, _BATCH)):
        heads = [_head(document, params) for document in batch]
        encoded = tokenizer(heads, add_special_tokens=False, return_offsets_mapping=True)
        for document, head, offsets in zip(batch, heads, encoded["offset_mapping"], strict=True):
            text = _opening(head, offsets, params, document.payload["whole"])
            if text is None:
                tally.drop(document.source, "no_opening_of_that_length", document.where)
            else:
                yield replace(
                    document, payload={"text": text, "label": document.payload["label"]}, key=content_key(text)
                )


def _head(document: Document, params: PromptDataParams) -> str:
    """Enough of a text to hold the opening; all of it, where it is the prompt."""
    text: str = document.payload["text"]
    return text if document.payload["whole"] else text[: params.max_prompt_tokens * _MAX_CHARS_PER_TOKEN]


def _opening(head: str, offsets: list[tuple[int, int]], params: PromptDataParams, whole: bool) -> str | None:
    if whole:
        fits = params.min_prompt_tokens <= len(offsets) <= params.max_prompt_tokens
        return head if fits else None
    for num_tokens in range(min(params.max_prompt_tokens, len(offsets) - 1), params.min_prompt_tokens - 1, -1):
        end = offsets[num_tokens - 1][1]
        if head[end - 1].isalnum() and head[end : end + 1].isspace():
            return head[:end]
    return None
