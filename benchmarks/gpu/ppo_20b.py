"""One full PPO step of GPT-NeoX-20B (random weights) under a cap of a 24 GB card, by the device's own counter.

    python benchmarks/gpu/ppo_20b.py --quantization int8 [--cap-gib 23.5] [--rehearse]

16 prompts × 48 new tokens, scoring under every role, 4 epochs of updates: the recipe gpt-neox-20b-ppo-24g. The cap is
on everything: CUDA's context, the allocator's cache, fragments. A run with --cap-gib 22.5 tells how much is left.
"""

from __future__ import annotations

import time

import torch
from _gpu import (
    GIB,
    architecture,
    arguments,
    cap_memory,
    context_bytes,
    device,
    device_counter,
    quantised,
    random_model,
    say,
    word_tokenizer,
)

from lockstep.params.model import LoraParams
from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.prompts import Prompts
from lockstep.training.ppo.roles import Adapters, build_backbone

LORA = LoraParams(r=16, lora_alpha=32, target_modules=["query_key_value"])


def ppo_params(micro: int) -> PpoParams:
    """The recipe's shapes, at the size of the check."""
    return PpoParams.model_validate(
        {
            "lora": LORA.model_dump(),
            "reward": {"kind": "lexicon"},
            "max_steps": 1,
            "rollout_batch_size": 16,
            "per_device_rollout_batch_size": 16,
            "per_device_train_batch_size": micro,
            "num_ppo_epochs": 4,
            "num_mini_batches": 1,
            "max_prompt_length": 16,
            "max_new_tokens": 48,
            "logprob_chunk_size": 128,
            "gradient_checkpointing": True,
            "learning_rate": 1.41e-5,
            "guards": {"on_violation": "warn"},
        }
    )


class Length:
    """A reward that costs nothing."""

    def score(self, texts: list[str]) -> list[float]:
        """The number of words of each text."""
        return [float(len(text.split())) for text in texts]


def main() -> None:
    """Builds the model under the cap, runs the step, says what it took."""
    parser = arguments("PPO of a 20B model in 24 GB")
    parser.add_argument("--quantization", choices=("int8", "nf4"), default="int8")
    parser.add_argument("--cap-gib", type=float, default=23.5)
    parser.add_argument("--micro-batch", type=int, default=4)
    options = parser.parse_args()
    where = device(options.rehearse)
    config = architecture("gpt-neox-20b", num_layers=None, rehearse=options.rehearse)
    context = context_bytes(where)
    cap_memory(where, int(options.cap_gib * GIB), context)
    params = ppo_params(options.micro_batch)
    with device_counter(where) as used:
        started = time.perf_counter()
        model = random_model(config, quantised(options.quantization, "bf16"), where)
        model.generation_config.eos_token_id = (
            config.vocab_size
        )  # never drawn: every completion is as long as it may be
        backbone = build_backbone(model, Adapters(), params.lora, 0)
        loaded = time.perf_counter()
        prompts = Prompts([[5] * params.max_prompt_length] * 16, 0)
        tokenizer = word_tokenizer(config.vocab_size)
        engine = PpoEngine(backbone, Length(), tokenizer, prompts, params, 0, Replicas())
        metrics = engine.step().metrics
    found = {
        "quantization": options.quantization,
        "cap_bytes": int(options.cap_gib * GIB),
        "context_bytes": context,
        "device_peak_bytes": used.peak_bytes,
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(where) if where.type == "cuda" else 0,
        "load_s": loaded - started,
        "step_s": metrics["time/step_s"],
        "policy_loss": metrics["policy/loss"],
        "num_tokens": int(metrics["num_tokens"]),
        "fits": used.peak_bytes <= options.cap_gib * GIB,
    }
    say("ppo_20b", found)


if __name__ == "__main__":
    main()
