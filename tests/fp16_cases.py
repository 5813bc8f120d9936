"""SFT in fp16 on two ranks: what it learns, what an overflow does, and what a resume brings back.

Usage: torchrun --nproc_per_node 2 fp16_cases.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch.amp import GradScaler

from lockstep.params.experiment import Experiment
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import joined_ranks
from lockstep.training.sft import trainer as sft_trainer
from sft_cases import Bench

TOO_LARGE = 2.0**38
"""A scale at which gradients overflow fp16 for a few steps, until it was halved often enough."""


def params(bench: Bench, compute: str) -> Experiment:
    """Six steps in a compute dtype."""
    return bench.experiment(model={"precision": {"compute": compute}})


def overflowing(bench: Bench) -> dict[str, Any]:
    """A run that starts with a scale that is too large: the weights' hash and the scale after every step."""
    hashes: list[str] = []
    scales: list[float] = []
    report = sft_trainer.ResumableSFTTrainer._report

    def watched(trainer: Any, *args: Any) -> None:
        report(trainer, *args)
        hashes.append(bench.sha(trainer.model))
        scales.append(trainer.scaler.get_scale())

    def large(compute: str, device: Any) -> GradScaler:
        return GradScaler(device.type, init_scale=TOO_LARGE)

    made, sft_trainer.loss_scaler = sft_trainer.loss_scaler, large
    sft_trainer.ResumableSFTTrainer._report = watched  # type: ignore[method-assign]
    try:
        _, facts = bench.attempt("overflowing", params(bench, "fp16"))
    finally:
        sft_trainer.loss_scaler = made
        sft_trainer.ResumableSFTTrainer._report = report  # type: ignore[method-assign]
    return {**facts, "hashes": hashes, "scales": scales}


def main() -> None:
    folder = Path(sys.argv[1])
    make_deterministic()
    with joined_ranks(120) as ranks:
        bench = Bench(folder, ranks)
        bench.attempt("stopped", params(bench, "fp16"), model_folder="tied", until_step=3)
        found = {
            "fp32": bench.attempt("fp32", params(bench, "fp32"))[1],
            "fp16": bench.attempt("fp16", params(bench, "fp16"))[1],
            "resumed": bench.attempt("stopped", params(bench, "fp16"), attempt=2)[1],
            "overflowing": overflowing(bench),
        }
        (folder / f"found.{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
