"""Small data projects for tests: a tokenizer trained on the tiny recipe's chats, files of records, a `prepare` job."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.data.reading import Section
from lockstep.data.tally import Tally
from lockstep.data.vocabulary import texts_of, train_tokenizer
from lockstep.params.data import SftDataParams
from lockstep.params.experiment import Experiment, load_experiment, parse_experiment
from lockstep.runs.directory import RunDirectory
from lockstep.runs.job import Job

PROJECT = Path(__file__).resolve().parents[1]
RECIPE = PROJECT / "recipes" / "tiny-cpu.yaml"
SECTIONS = ("sft", "prompts", "preferences", "reviews")


@cache
def tiny_tokenizer() -> Any:
    """The tokenizer of the tiny recipe: 512 tokens, ChatML."""
    return train_tokenizer(texts_of(tiny_section()), 512)


def tiny_section() -> Section:
    """The chats of the tiny recipe."""
    params = load_experiment(RECIPE).data.sft
    return Section("sft", params, PROJECT / params.path, Tally())


def sft_params(**changes: Any) -> SftDataParams:
    """Parameters of the sft section with one JSONL source, changed at will."""
    return SftDataParams.model_validate({"sources": [{"source": "jsonl:chats.jsonl"}], **changes})


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    """One JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def chat(*turns: str) -> dict[str, Any]:
    """A chat that the user begins."""
    roles = ["user", "assistant"] * len(turns)
    return {"messages": [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]}


def experiment_with(**data: dict[str, Any]) -> Experiment:
    """The tiny recipe with other keys in some data sections."""
    raw = load_experiment(RECIPE).model_dump()
    for name, changes in data.items():
        raw["data"][name].update(changes)
    return parse_experiment(raw)


def prepare_job(
    run_dir: Path, experiment: Experiment, folders: dict[str, Path] | None = None, model: Path | None = None
) -> Job:
    """A job of `prepare` on the tiny recipe's files, or on `folders` for some sections; makes its tokenizer folder."""
    model = model or run_dir.parent / "tokenizer"
    tiny_tokenizer().save_pretrained(model)
    inputs = {name: PROJECT / getattr(experiment.data, name).path for name in SECTIONS} | (folders or {})
    inputs["model"] = model
    return Job("prepare", "run", 1, experiment, PROJECT, inputs, dict.fromkeys(inputs, "sha"), RunDirectory(run_dir))
