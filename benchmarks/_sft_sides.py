"""One side of benchmarks/sft_vs_trl.py in a process of its own: `_sft_sides.py SIDE JOB FOLDER`; prints one JSON line.

Every side trains on the same samples with fused AdamW and a constant learning rate, each in its own batches: rows of
128 tokens where samples are packed, as many samples as make up the same number of tokens where they are padded.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback

from lockstep.models.loading import load_tokenizer

IGNORED = -100
LEARNING_RATE = 1e-5


def samples(job: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Chats of random words, enough for every step of every side; the second half of each carries loss."""
    dice = random.Random(0)
    vocabulary = json.loads((Path(job["model"]) / "config.json").read_text())["vocab_size"]
    tokens_wanted = job["steps"] * job["rows"] * job["length"] * 2
    made: list[dict[str, list[int]]] = []
    while sum(len(sample["input_ids"]) for sample in made) < tokens_wanted:
        length = dice.randint(24, job["length"])
        made.append(
            {
                "input_ids": [dice.randrange(1000, vocabulary) for _ in range(length)],
                "completion_mask": [int(position >= length // 2) for position in range(length)],
            }
        )
    return made


def lockstep(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The stage's own trainer on one process."""
    from _sft import attempt, experiment

    from lockstep.data.packing import best_fit_decreasing
    from lockstep.data.store import TokenStore

    made = samples(job)
    rows: dict[str, list[Any]] = {"input_ids": [], "labels": [], "seq_lengths": []}
    for row in best_fit_decreasing([len(sample["input_ids"]) for sample in made], job["length"]):
        rows["input_ids"].append([token for index in row for token in made[index]["input_ids"]])
        rows["labels"].append([label for index in row for label in _labels(made[index])])
        rows["seq_lengths"].append([len(made[index]["input_ids"]) for index in row])
    (folder / "model").symlink_to(job["model"])
    params = experiment(
        {
            "max_steps": job["steps"],
            "per_device_train_batch_size": job["rows"],
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
        },
        compute="fp32",
        max_length=job["length"],
        master_dtype="fp32",
    )
    store = TokenStore(Path("memory"), Dataset.from_dict(rows).with_format("numpy"), {})
    trained = attempt(folder, "speed", params, rows=store)
    counts = [
        trained.steps[step]["num_tokens"] for step in sorted(trained.steps) if "num_tokens" in trained.steps[step]
    ]
    return _summary(trained.ends, counts)


def trl(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """TRL's SFTTrainer, packing by best fit, loss on the completions only."""
    from trl import SFTConfig, SFTTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    counts: list[int] = []

    class Counting(SFTTrainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: dict[str, Any], *words: Any, **named: Any) -> Any:
            padding = inputs["attention_mask"].eq(0).sum() if "attention_mask" in inputs else 0
            counts.append(inputs["input_ids"].numel() - int(padding))
            return super().training_step(model, inputs, *words, **named)

    trainer = Counting(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, local_files_only=True),
        args=SFTConfig(
            output_dir=str(folder), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            per_device_train_batch_size=job["rows"], max_steps=job["steps"], max_length=job["length"], packing=True,
            completion_only_loss=True, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", warmup_steps=0,
            optim="adamw_torch_fused", save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0,
        ),
        processing_class=load_tokenizer(Path(job["model"])),
        train_dataset=Dataset.from_list(samples(job)),
        callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    return _summary(ends, _running(counts))


def plain_loop(job: dict[str, Any], _: Path) -> dict[str, float]:
    """The loop that everybody writes first: pad a batch, `model(...).loss.backward()`, step."""
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, local_files_only=True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    waiting, ends, counts = samples(job), [], []
    for _step in range(job["steps"]):
        batch: list[dict[str, list[int]]] = []
        while sum(len(sample["input_ids"]) for sample in batch) < 0.95 * job["rows"] * job["length"]:
            batch.append(waiting.pop())
        longest = max(len(sample["input_ids"]) for sample in batch)
        gaps = [longest - len(sample["input_ids"]) for sample in batch]
        inputs = {
            "input_ids": torch.tensor([s["input_ids"] + [0] * gap for s, gap in zip(batch, gaps, strict=True)]),
            "attention_mask": torch.tensor([[1] * (longest - gap) + [0] * gap for gap in gaps]),
            "labels": torch.tensor([_labels(s) + [IGNORED] * gap for s, gap in zip(batch, gaps, strict=True)]),
        }
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
        counts.append(int(inputs["attention_mask"].sum()))
    return _summary(ends, _running(counts))


def _labels(sample: dict[str, list[int]]) -> list[int]:
    pairs = zip(sample["input_ids"], sample["completion_mask"], strict=True)
    return [token if learned else IGNORED for token, learned in pairs]


def _running(counts: list[int]) -> list[int]:
    return [sum(counts[: number + 1]) for number in range(len(counts))]


def _summary(ends: list[float], counts: list[float] | list[int]) -> dict[str, float]:
    """From the end of the first step to the end of the last."""
    return {
        "tokens per second": (counts[-1] - counts[0]) / (ends[-1] - ends[0]),
        "peak resident bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


if __name__ == "__main__":
    side, description, place = sys.argv[1:]
    facts = json.loads(description)
    torch.set_num_threads(facts["threads"])
    result = {"lockstep": lockstep, "trl": trl, "plain loop": plain_loop}[side](facts, Path(place))
    print("RESULT " + json.dumps(result), flush=True)
