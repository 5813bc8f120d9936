"""What `prepare` leaves for the other stages, and how they read it: the token store, prompts, preferences, reviews."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, disable_progress_bars

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json

ARROW_FILE = "rows.arrow"
MANIFEST_FILE = "manifest.json"
TEMPLATE_FILE = "chat_template.jinja"
IGNORED = -100
"""The label that carries no loss, as in torch.nn.functional.cross_entropy."""


@dataclass(frozen=True)
class TokenStore:
    """Rows of token ids on disk, memory-mapped and addressed by index: going to row N reads nothing before it.

    `dataset` has three int32 list columns. `input_ids` and `labels` have one entry per token of the row, `labels` being
    -100 where no loss is taken (the first token of every sample included, which nothing predicts). `seq_lengths` has
    one entry per sample in the row and sums to the row's length.
    """

    path: Path
    dataset: Dataset
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Maps the store in folder `path`. Raises UsageError when it is absent or not whole."""
        if not (path / MANIFEST_FILE).exists():
            raise UsageError(f"There is no token store in {path}.\nMake it with: ./lockstep run prepare")
        manifest = read_json(path / MANIFEST_FILE)
        arrow = path / ARROW_FILE
        if not arrow.exists() or arrow.stat().st_size != manifest["bytes"]:
            raise UsageError(f"{arrow} is not the file that its manifest describes.\nRestore it with: dvc checkout")
        disable_progress_bars()
        return cls(path, Dataset.from_file(str(arrow)).with_format("numpy"), manifest)

    def __len__(self) -> int:
        return len(self.dataset)

    def row(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        """One row: int arrays `input_ids` (T,), `labels` (T,) and `seq_lengths` (S,) that sum to T."""
        return dict(self.dataset[index])

    @property
    def num_tokens(self) -> int:
        """Tokens in all rows."""
        return int(self.manifest["num_tokens"])

    @property
    def num_supervised_tokens(self) -> int:
        """Tokens that carry loss; what a mean over the whole store divides by."""
        return int(self.manifest["num_supervised_tokens"])

    @property
    def chat_template(self) -> str | None:
        """The Jinja template that rendered the chats; None where the store holds plain texts only."""
        template = self.path / TEMPLATE_FILE
        return template.read_text(encoding="utf-8") if template.exists() else None


@dataclass(frozen=True)
class Prompt:
    """An opening for PPO to complete."""

    id: str
    text: str
    source: str
    label: int | None
    """Sentiment of the whole text it was cut from: 1, 0, or None where nobody labelled it."""


@dataclass(frozen=True)
class Preference:
    """Two continuations of one prompt: `prompt + chosen` was preferred to `prompt + rejected`."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    source: str


@dataclass(frozen=True)
class Review:
    """A text labelled 1 (positive) or 0 (negative)."""

    id: str
    text: str
    label: int
    source: str


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of one split (`prompts/train.jsonl`), in the order of their content hash. Raises UsageError if absent."""
    return [Prompt(**record) for record in _records(path)]


def read_preferences(path: Path) -> list[Preference]:
    """Preference pairs of one split (`preferences/train.jsonl`). Raises UsageError if absent."""
    return [Preference(**record) for record in _records(path)]


def read_reviews(path: Path) -> list[Review]:
    """Labelled texts of one split (`reviews/train.jsonl`). Raises UsageError if absent."""
    return [Review(**record) for record in _records(path)]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise UsageError(f"{path} is not here.\nMake it with: ./lockstep run prepare")
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
