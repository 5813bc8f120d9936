"""Resume on CUDA in deterministic mode: six steps at once, and three, a save, and three more, give the same bits.

python benchmarks/gpu/resume.py [--rehearse]
"""

from __future__ import annotations

from _gpu import architecture, arguments, device, say
from _sft import attempt, experiment, model_folder

from lockstep.foundation.errors import StoppedAfterSave


def main() -> None:
    """Trains twice, once with a stop in between, and compares hashes."""
    options = arguments("bit-exact resume on CUDA").parse_args()
    device(options.rehearse)
    config = architecture("llama-3.1-8b", num_layers=2, rehearse=options.rehearse)
    sft = {"max_steps": 6, "per_device_train_batch_size": 2, "activation_checkpointing": True, "attention_dropout": 0.1}
    params = experiment(sft, compute="bf16", max_length=64 if options.rehearse else 512)
    with model_folder(config) as folder:
        whole = attempt(folder, "whole", params)
        again = attempt(folder, "again", params)
        try:
            attempt(folder, "parts", params, until_step=3)
        except StoppedAfterSave as stopped:
            print(stopped)
        resumed = attempt(folder, "parts", params)
    say(
        "resume",
        {
            "repeatable": whole.sha == again.sha,
            "bit_exact": whole.sha == resumed.sha,
            "first_resumed_step": min(resumed.steps),
        },
    )


if __name__ == "__main__":
    main()
