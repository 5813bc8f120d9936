"""SFT on a 4-bit base that two ranks share, beside one that each rank holds whole.

Usage: torchrun --nproc_per_node 2 sharded_4bit_cases.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from torch.distributed.tensor import DTensor

from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import joined_ranks
from sft_cases import Bench

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
NF4 = {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}


def trained(bench: Bench, name: str, storage: str) -> dict[str, Any]:
    """Six steps; what they logged, what lies where, and which adapters moved."""
    quantization = {**NF4, "bnb_4bit_quant_storage": storage}
    sft = {"peft": LORA, "activation_checkpointing": True, "eval_steps": 2}
    params = bench.experiment(model={"quantization": quantization}, sft=sft)
    trainer, facts = bench.attempt(name, params, model_folder="untied")
    layers = [module for module in trainer.model.modules() if isinstance(module, bnb.nn.Linear4bit)]
    weights = [layer.weight for layer in layers]
    adapters = {n: p for n, p in trainer.model.named_parameters() if "lora_B" in n}
    return {
        **facts,
        "num_sharded": sum(isinstance(weight, DTensor) for weight in weights),
        "num_layers": len(layers),
        "packed": sum(weight.numel() * weight.element_size() for weight in weights),
        "local": sum(local.numel() * local.element_size() for weight in weights for local in [_local(weight)]),
        "moved": [bool((parameter != 0).any()) for parameter in adapters.values()],
    }


def resumed(bench: Bench) -> str:
    """The adapter's hash after a stop at step 3 and a second attempt."""
    params = bench.experiment(
        model={"quantization": {**NF4, "bnb_4bit_quant_storage": "bfloat16"}},
        sft={"peft": LORA, "activation_checkpointing": True, "eval_steps": 2},
    )
    bench.attempt("resumed", params, model_folder="untied", until_step=3)
    return str(bench.attempt("resumed", params, model_folder="untied", attempt=2)[1]["sha"])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    folder = Path(sys.argv[1])
    make_deterministic()
    with joined_ranks(120) as ranks:
        bench = Bench(folder, ranks)
        found = {
            "sharded": trained(bench, "sharded", "bfloat16"),
            "whole": trained(bench, "whole", "uint8"),
            "resumed": resumed(bench),
        }
        (folder / f"found.{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
