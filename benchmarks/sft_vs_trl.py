"""SFT beside TRL's own `SFTTrainer` (packing on) and a plain loop over Transformers: same samples, same model.

    python benchmarks/sft_vs_trl.py [--model FOLDER] [--rounds 3] [--steps 6] [--threads 2]

FOLDER is a local Hugging Face model (default: data/smollm2-135m/model after `lockstep fetch`). Full-parameter training
in fp32 in one process; chats of 24 to 128 tokens of which the second half carries loss, packed into rows of 128 where a
side packs. Speed counts the samples' own tokens, never padding, from the second step on. Measured in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from _runner import interleaved, printed_result, report, summarise

HERE = Path(__file__).resolve().parent
SIDES = ("trl", "plain loop", "lockstep")


def main() -> None:
    """Measures all sides and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=HERE.parent / "data" / "smollm2-135m" / "model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    job = {
        "model": str(options.model.resolve()),
        "steps": options.steps,
        "rows": 8,
        "length": 128,
        "threads": options.threads,
    }
    variants = {side: partial(_measure, side, job) for side in SIDES}
    report(
        "SFT of all parameters", job, summarise(interleaved(variants, rounds=options.rounds, warmup=0), baseline="trl")
    )


def _measure(side: str, job: dict[str, object]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), str(HERE / "gpu")])
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        command = [sys.executable, "-W", "ignore", str(HERE / "_sft_sides.py"), side, json.dumps(job), folder]
        return printed_result(side, command, environment)


if __name__ == "__main__":
    main()
