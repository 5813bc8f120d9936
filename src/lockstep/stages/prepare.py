"""`prepare`: from the sources in local folders to what the other stages read. Downloads nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from lockstep.data.build import SPLITS, build_preferences, build_prompts, build_reviews, build_token_stores
from lockstep.data.disk import whole_folder
from lockstep.data.reading import Section
from lockstep.data.samples import first_records
from lockstep.data.store import TokenStore
from lockstep.data.tally import Tally
from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import sha256_tree, write_json
from lockstep.runs.job import Job
from lockstep.stages._worker import main

_RECORDS = ("prompts", "preferences", "reviews")


def run(job: Job) -> None:
    """Writes the token stores, prompts, preference pairs and reviews, with what was kept and dropped, and samples."""
    tokenizer = load_tokenizer(job.inputs["model"])
    sections = {name: _section(job, name) for name in ("sft", *_RECORDS)}
    scratch = job.directory.scratch / "prepare"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with whole_folder(job.directory.outputs) as outputs:
            shown = build_token_stores(sections["sft"], tokenizer, outputs / "sft", scratch)
            build_prompts(sections["prompts"], tokenizer, outputs / "prompts", scratch)
            build_preferences(sections["preferences"], outputs / "preferences", scratch)
            build_reviews(sections["reviews"], outputs / "reviews", scratch)
            write_json(outputs / "samples.json", _samples(shown, sections, outputs))
            write_json(outputs / "metrics.json", _metrics(sections, outputs))
            write_json(outputs / "result.json", _result(job, outputs))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_tokenizer(model: Path) -> Any:
    """The tokenizer of a local model folder. Raises UsageError when there is none, or none with character offsets."""
    if not (model / "tokenizer_config.json").exists():
        raise UsageError(f"{model} holds no tokenizer.\nGet the model with: ./lockstep fetch")
    tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise UsageError(f"{model}: its tokenizer has no fast form (tokenizer.json), which the loss masks need.")
    return tokenizer


def _section(job: Job, name: str) -> Section:
    return Section(name, getattr(job.params.data, name), job.inputs[name], Tally())


def _metrics(sections: dict[str, Section], outputs: Path) -> dict[str, Any]:
    """Counts per section and source, and the sizes of the token stores; numbers only."""
    stores = {split: TokenStore.open(outputs / "sft" / split).manifest for split in SPLITS}
    sizes = {
        split: {name: value for name, value in facts.items() if name.startswith("num_")}
        | {"fill": round(facts["num_tokens"] / (facts["num_rows"] * facts["max_length"]), 4)}
        for split, facts in stores.items()
    }
    counts = {name: section.tally.as_metrics() for name, section in sections.items()}
    return {"tokens": sizes, "counts": counts}


def _samples(shown: list[dict[str, Any]], sections: dict[str, Section], outputs: Path) -> dict[str, Any]:
    """For the report: a masked sample of each split, the first records, and where dropped texts were found."""
    records = {name: first_records(outputs / name / "train.jsonl") for name in _RECORDS}
    return {"sft": shown, **records, "dropped": {name: section.tally.places for name, section in sections.items()}}


def _result(job: Job, outputs: Path) -> dict[str, Any]:
    return {
        "stage": job.stage,
        "run_id": job.run_id,
        "inputs": job.input_hashes,
        "outputs": {name: sha256_tree(outputs / name) for name in ("sft", *_RECORDS)},
    }


if __name__ == "__main__":
    main(run)
