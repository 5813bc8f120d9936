"""SFT as the stage runs it, on a model of random weights written to a folder of its own."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _gpu import word_tokenizer
from datasets import Dataset
from transformers import PretrainedConfig

from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.collator import RowCollator
from lockstep.data.store import TokenStore
from lockstep.models.loading import load_tokenizer
from lockstep.models.sharding import build_model
from lockstep.models.weights import weights_sha256, whole
from lockstep.params.experiment import Experiment, parse_experiment
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model as build_for_training
from lockstep.training.sft.run import build_trainer, train
from lockstep.training.sft.trainer import Session


@dataclass(frozen=True)
class Trained:
    """One attempt: what it logged by step, the hash of its weights, the most that was allocated on the GPU."""

    steps: dict[int, dict[str, float]]
    ends: list[float]
    """When each step was reported, seconds of a monotonic clock."""
    sha: str
    allocated_peak_bytes: int
    wall_s: float


def experiment(sft: dict[str, Any], *, compute: str, max_length: int, **model: Any) -> Experiment:
    """A one-process experiment; `sft` and `model` as in params.yaml."""
    return parse_experiment(
        {
            "seed": 7,
            "environment": {},
            "model": {"source": "path:random", "precision": {"compute": compute}, **model},
            "data": {"sft": {"sources": [{"source": "jsonl:none.jsonl"}], "max_length": max_length}},
            "sft": {"num_processes": 1, "learning_rate": 1e-5, "warmup_steps": 1, **sft},
            "reward": {"enabled": False},
            "ppo": {"enabled": False},
            "evaluate": {},
            "run": {"save_steps": 10_000, "logging_steps": 1},
        }
    )


@contextmanager
def model_folder(config: PretrainedConfig) -> Iterator[Path]:
    """A folder with random bf16 weights and a tokenizer; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        torch.manual_seed(0)
        build_model(config, torch.bfloat16).save_pretrained(folder / "model")
        word_tokenizer(config.vocab_size).save_pretrained(folder / "model")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attempt(
    folder: Path, name: str, params: Experiment, *, until_step: int | None = None, rows: TokenStore | None = None
) -> Trained:
    """Trains from the newest checkpoint of `name` on, deterministically; on full rows of random tokens by default."""
    make_deterministic()
    steps: dict[int, dict[str, float]] = {}
    ends: dict[int, float] = {}

    def log(step: int, values: dict[str, float]) -> None:
        steps.setdefault(step, {}).update(values)
        ends.setdefault(step, time.perf_counter())

    root = folder / name
    with joined_ranks(600) as ranks:
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(ranks.device)
        model = build_for_training(folder / "model", params, ranks)
        with CheckpointStore(root / "checkpoints", run_id=name) as store:
            session = Session(
                ranks=ranks,
                store=store,
                stop=StopFlag(root / "control", 1),
                progress=Progress(
                    ranks,
                    params.sft.max_steps or 0,
                    1,
                    params.sft.global_batch_size,
                    FlopsModel.of(model),
                    params.model.precision.compute,
                    log,
                ),
                sft=params.sft,
                run=params.run,
                seed=params.seed,
                found=store.newest(),
                until_step=until_step,
            )
            rows = rows or full_rows(16, params.data.sft.max_length, model.config.vocab_size)
            tokenizer = load_tokenizer(folder / "model")
            trainer = build_trainer(model, tokenizer, rows, rows, RowCollator(0), session, root)
            started = time.perf_counter()
            try:
                train(trainer)
            finally:
                wall_s = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else 0
        sha = weights_sha256((name, whole(p)) for name, p in trainer.model.named_parameters() if p.requires_grad)
    return Trained(steps, [ends[step] for step in sorted(ends)], sha, peak, wall_s)


def full_rows(count: int, length: int, vocabulary: int) -> TokenStore:
    """Rows of full length; every token but the first carries loss."""
    tokens = torch.randint(3, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[:, 0] = -100
    rows = {"input_ids": tokens.tolist(), "labels": labels.tolist(), "seq_lengths": [[length]] * count}
    return TokenStore(Path("memory"), Dataset.from_dict(rows).with_format("numpy"), {})
