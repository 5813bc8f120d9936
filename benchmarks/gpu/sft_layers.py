"""Layers of Llama-70B at their real width, trained with FSDP2 on one GPU: tokens/s, MFU, and the peak against the plan.

    python benchmarks/gpu/sft_layers.py [--num-layers 2 4] [--rehearse]

Also the plan against the measured peak for three sizes (Llama-70B layers, Llama-3.1-8B layers, GPT-NeoX layers).
"""

from __future__ import annotations

import statistics

import torch
from _gpu import GIB, architecture, arguments, device, say
from _sft import attempt, experiment, model_folder
from transformers import PretrainedConfig

from lockstep.params.experiment import Experiment
from lockstep.planning.sft import sample_sft

_WARM_UP = 2


def main() -> None:
    """Each size in turn: plan it, train it, compare."""
    parser = arguments("FSDP2 on real-width layers: speed, and plan against measured peak")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    where = device(options.rehearse)
    length = 64 if options.rehearse else 2048
    for name, num_layers in (("llama-2-70b", 2), ("llama-2-70b", 3), ("llama-3.1-8b", 4), ("gpt-neox-20b", 4)):
        config = architecture(name, num_layers=num_layers, rehearse=options.rehearse)
        sft = {"max_steps": options.steps, "per_device_train_batch_size": 1, "activation_checkpointing": True}
        params = experiment(sft, compute="bf16", max_length=length)
        planned = plan_peak(config, params, where)
        with model_folder(config) as folder:
            trained = attempt(folder, "speed", params)
        steady = [values for step, values in trained.steps.items() if step > _WARM_UP and "tokens_per_s" in values]
        measured = trained.allocated_peak_bytes
        say(
            "sft_layers",
            {
                "model": name,
                "num_layers": config.num_hidden_layers,
                "tokens_per_s": statistics.median(values["tokens_per_s"] for values in steady),
                "mfu": statistics.median([values["mfu"] for values in steady if "mfu" in values] or [0.0]),
                "planned_peak_bytes": planned,
                "allocated_peak_bytes": measured,
                "plan_over_measured": planned / measured if measured else None,
            },
        )


def plan_peak(config: PretrainedConfig, params: Experiment, where: torch.device) -> int:
    """The planned tensor bytes at the fullest moment of a step."""
    sample = sample_sft(config, params, "cuda" if where.type == "cuda" else "cpu")
    return max(sum(kinds.values()) for moment, kinds in sample.peaks.items() if moment.phase != "export")


if __name__ == "__main__":
    print(f"(GiB = {GIB} bytes)")
    main()
