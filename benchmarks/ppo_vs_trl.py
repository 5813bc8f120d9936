"""PPO side by side with the last TRL that had it (1.12.0): same model, prompts, reward, batch shapes, machine and run.

    python benchmarks/ppo_vs_trl.py [--model tiny|FOLDER] [--rounds 3] [--steps 6] [--trl DIR] [--threads 2]

FOLDER is a local Hugging Face model (data/smollm2-135m/model after `lockstep fetch`); `tiny` is made on the spot.
TRL 1.12.0 is installed into a folder of its own (pip, no dependencies), where only its own process sees it. Speed is
measured in turns; live tensor bytes, by a tracer that slows both sides, in one process more for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _runner import interleaved, printed_result, report, summarise

HERE = Path(__file__).resolve().parent
TRL = "trl==1.12.0"
_TRACED_STEPS = 2
"""Every step needs the same memory, and the tracer takes its time."""


def main() -> None:
    """Measures both sides and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--trl", type=Path, default=HERE.parent / ".lockstep" / "trl-1.12.0")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    _install_trl(options.trl)
    with tempfile.TemporaryDirectory() as folder:
        job = _job(options, Path(folder))
        _compare(options, job, Path(folder) / "job.json")


def _compare(options: argparse.Namespace, job: dict[str, Any], job_file: Path) -> None:
    job_file.write_text(json.dumps(job))
    measure = partial(_measure, job_file=job_file, trl=options.trl, threads=options.threads)
    sides = ("trl", "lockstep")
    setup = {name: job[name] for name in ("batch_size", "prompt_length", "response_length", "num_steps", "num_threads")}
    speed = interleaved({side: partial(measure, side, "speed") for side in sides}, rounds=options.rounds, warmup=0)
    report(f"PPO on {options.model}: speed", setup, summarise(speed, baseline="trl"))
    job_file.write_text(json.dumps({**job, "num_steps": _TRACED_STEPS}))
    memory = interleaved({side: partial(measure, side, "memory") for side in sides}, rounds=1, warmup=0)
    live = {side: {"peak live tensor bytes": values["peak live tensor bytes"]} for side, values in memory.items()}
    report(f"PPO on {options.model}: memory", {**setup, "num_steps": _TRACED_STEPS}, summarise(live, baseline="trl"))


def _measure(side: str, mode: str, *, job_file: Path, trl: Path, threads: int) -> dict[str, float]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    paths = [str(HERE.parent / "src"), *([str(trl)] if side == "trl" else [])]
    environment["PYTHONPATH"] = os.pathsep.join(reversed(paths))
    command = [sys.executable, "-W", "ignore", str(HERE / "_ppo_sides.py"), side, mode, str(job_file)]
    return printed_result(side, command, environment)


def _job(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Batch 8, 24 + 24 tokens. Prompts are random words of the tokenizer, without special tokens."""
    is_tiny = options.model == "tiny"
    model = _tiny_model(folder / "model") if is_tiny else Path(options.model).resolve()
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    dice = random.Random(0)
    first = 3 if is_tiny else 1000
    return {
        "model": str(model),
        "folder": str(folder / "trl"),
        "prompts": [[dice.randrange(first, vocabulary) for _ in range(24)] for _ in range(512)],
        "reward": "even words" if is_tiny else "lexicon",
        "batch_size": 8,
        "prompt_length": 24,
        "response_length": 24,
        "num_steps": options.steps,
        "learning_rate": 1e-2 if is_tiny else 3e-4,
        "num_threads": options.threads,
        "seed": 0,
    }


def _tiny_model(folder: Path) -> Path:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from ppo_cases import tiny_model, tiny_tokenizer

    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _install_trl(folder: Path) -> None:
    if not (folder / "trl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), TRL]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
