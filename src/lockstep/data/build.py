"""Builds what the other stages read, section by section: read, select, encode or cut, write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from lockstep.data.documents import Document
from lockstep.data.encode import Encoder
from lockstep.data.packing import RowBuilder
from lockstep.data.preferences import make_pairs, pair_or_labelled
from lockstep.data.prompts import cut_openings
from lockstep.data.reading import Section, chat_or_text, labelled_text, opening, read_section
from lockstep.data.samples import show_sample
from lockstep.data.selection import HashBuckets, Selection
from lockstep.data.sources import source_bytes
from lockstep.data.template import choose_template
from lockstep.data.writer import TokenStoreWriter
from lockstep.foundation.errors import UsageError
from lockstep.params.data import PreferenceDataParams, PromptDataParams, ReviewDataParams, SftDataParams

SPLITS = ("train", "eval")
_ID_DIGITS = 16
_T = TypeVar("_T")


def build_token_stores(section: Section, tokenizer: Any, outputs: Path, scratch: Path) -> list[dict[str, Any]]:
    """Writes `train/` and `eval/` token stores below `outputs` and returns one readable sample of each split.

    Raises UsageError for bad records, and for a split that is left empty.
    """
    params = section.params
    assert isinstance(params, SftDataParams)
    chosen = section.folder / params.chat_template_path if params.chat_template_path else None
    template = choose_template(tokenizer, chosen)
    selection = _select(section, read_section(section, chat_or_text), scratch)
    encoder = Encoder(tokenizer, params, template, section.tally)
    shown: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        sinks = {}
        for split in SPLITS:
            packing = params.packing if split == "train" or params.eval_packing is None else params.eval_packing
            writer = stack.enter_context(TokenStoreWriter(outputs / split, params.max_length, template))
            sinks[split] = RowBuilder(writer.add, params.max_length if packing else None)
        for split, document, sample in _progress(encoder.encode(selection.documents()), "prepare sft: tokenised"):
            section.tally.keep(document.source, document.label, split)
            if split not in shown:
                shown[split] = show_sample(tokenizer, document, sample)
            sinks[split].add(sample)
        for sink in sinks.values():
            sink.finish()
        _refuse_empty(section)
    return [{"split": split, **shown[split]} for split in SPLITS]


def build_prompts(section: Section, tokenizer: Any, outputs: Path, scratch: Path) -> None:
    """Writes `train.jsonl` and `eval.jsonl` with id, text, source and label of each opening."""
    params = section.params
    assert isinstance(params, PromptDataParams)
    documents = cut_openings(read_section(section, opening), tokenizer, params, section.tally)
    _write_records(section, _select(section, documents, scratch), outputs, ("text", "label"))


def build_preferences(section: Section, outputs: Path, scratch: Path) -> None:
    """Writes `train.jsonl` and `eval.jsonl` with id, prompt, chosen, rejected and source of each pair."""
    params = section.params
    assert isinstance(params, PreferenceDataParams)
    documents = make_pairs(read_section(section, pair_or_labelled), params, section.tally)
    _write_records(section, _select(section, documents, scratch), outputs, ("prompt", "chosen", "rejected"))


def build_reviews(section: Section, outputs: Path, scratch: Path) -> None:
    """Writes `train.jsonl` and `eval.jsonl` with id, text, label and source of each labelled text."""
    params = section.params
    assert isinstance(params, ReviewDataParams)
    selection = _select(section, read_section(section, labelled_text), scratch, params.balance_labels)
    _write_records(section, selection, outputs, ("text", "label"))


def _select(section: Section, documents: Iterable[Document], scratch: Path, balance_labels: bool = False) -> Selection:
    """Reads everything once into hash buckets on disk, then chooses."""
    params = section.params
    expected_bytes = sum(source_bytes(source, section.folder) for source in params.sources)
    buckets = HashBuckets(scratch / section.name, expected_bytes)
    buckets.fill(_progress(documents, f"prepare {section.name}: read"))
    return Selection(buckets, params, section.tally, balance_labels)


def _write_records(section: Section, selection: Selection, outputs: Path, keys: tuple[str, ...]) -> None:
    outputs.mkdir(parents=True)
    with ExitStack() as stack:
        files = {
            split: stack.enter_context((outputs / f"{split}.jsonl").open("w", encoding="utf-8")) for split in SPLITS
        }
        for split, document in selection.documents():
            section.tally.keep(document.source, document.label, split)
            record = {"id": document.key[:_ID_DIGITS], **{key: document.payload[key] for key in keys}}
            line = json.dumps({**record, "source": document.source}, ensure_ascii=False)
            files[split].write(line + "\n")
    if section.params.sources:
        _refuse_empty(section)


def _refuse_empty(section: Section) -> None:
    for split in SPLITS:
        if not section.tally.num_kept(split):
            raise UsageError(_why_empty(section, split))


def _why_empty(section: Section, split: str) -> str:
    """Says what became of the texts: an empty split has a cause in the filters, the sizes or the sources."""
    tally = section.tally
    reasons = sorted({reason for _, reason in tally.dropped}, key=lambda reason: -tally.num_dropped(reason))
    dropped = "".join(
        f"\n  {tally.num_dropped(reason)} {reason} (first: {tally.places[reason][0]})" for reason in reasons
    )
    mend = (
        "Give it more data, or raise data.{0}.eval_fraction." if split == "eval" else "Look at data.{0} in params.yaml."
    )
    if tally.num_dropped("no_supervised_token"):
        mend = "Samples were cut before the assistant speaks: raise data.{0}.max_length, or write overflow: turns."
    return (
        f"data.{section.name}: the {split} split is empty. Of {tally.read.total()} texts read, "
        f"{tally.num_kept('train')} are for training and {tally.num_kept('eval')} held out."
        f"{' Dropped:' if dropped else ''}{dropped}\n{mend.format(section.name)}"
    )


def _progress(items: Iterable[_T], what: str) -> Iterator[_T]:
    return iter(tqdm(items, desc=what, unit=" texts", mininterval=1.0, dynamic_ncols=True, leave=True))
