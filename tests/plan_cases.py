"""Small models, planned and really trained: how many tensor bytes a rank holds at its fullest moment.

Usage: python plan_cases.py plan FOLDER          writes FOLDER/planned.json
       torchrun --nproc_per_node N plan_cases.py run FOLDER     writes FOLDER/held-N.json (or plain python, for N = 1)
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.collator import RowCollator
from lockstep.data.store import TokenStore
from lockstep.models.loading import load_tokenizer
from lockstep.params.experiment import Experiment
from lockstep.planning.layers import Sample
from lockstep.planning.live import LiveMemory
from lockstep.planning.ppo import sample_ppo
from lockstep.planning.sft import sample_sft
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel
from lockstep.training.ppo.roles import Adapters, build_backbone
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model, build_trainer, train
from lockstep.training.sft.trainer import Session
from ppo_cases import tiny_engine
from tiny_llama import VOCABULARY, experiment, write_tokenizer

LORA = {"r": 4, "lora_alpha": 8}
LENGTH = 96
PPO = {
    "rollout_batch_size": 8,
    "per_device_rollout_batch_size": 8,
    "per_device_train_batch_size": 4,
    "num_mini_batches": 2,
    "max_prompt_length": 12,
    "max_new_tokens": 20,
    "logprob_chunk_size": 64,
    "lora": LORA,
    "guards": {"min_distinct": None, "min_length": None},
}


@dataclass(frozen=True)
class Case:
    """One model and one way to train it."""

    hidden_size: int
    num_layers: int
    num_ranks: int = 1
    sft: dict[str, Any] | None = None
    """None: PPO."""
    neox: bool = False
    tied: bool = False

    def experiment(self) -> Experiment:
        """Three steps on full rows."""
        data = {"sft": {"sources": [{"source": "jsonl:x.jsonl"}], "max_length": LENGTH}}
        if self.sft is None:
            prompts = {"sources": [{"source": "jsonl:x.jsonl"}]}
            ppo = {"enabled": True, "reward": {"kind": "lexicon"}, **PPO}
            return experiment(data={**data, "prompts": prompts}, sft={"enabled": False}, ppo=ppo)
        sft = {"num_processes": self.num_ranks, "max_steps": 3, "warmup_steps": 1, **self.sft}
        return experiment(data=data, sft=sft)

    def model(self) -> Any:
        """The model with random weights."""
        torch.manual_seed(0)
        shape = {
            "hidden_size": self.hidden_size,
            "intermediate_size": 3 * self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 256,
            "tie_word_embeddings": self.tied,
        }
        if self.neox:
            return GPTNeoXForCausalLM(GPTNeoXConfig(**shape))
        return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **shape))


CASES = {
    "small": Case(64, 2, sft={"per_device_train_batch_size": 4}, tied=True),
    "deeper, checkpointed": Case(128, 4, sft={"per_device_train_batch_size": 4, "activation_checkpointing": True}),
    "LoRA": Case(128, 2, sft={"per_device_train_batch_size": 2, "peft": LORA}),
    "GPT-NeoX": Case(96, 3, sft={"per_device_train_batch_size": 2}, neox=True),
    "PPO": Case(64, 2, tied=True),
    "two ranks": Case(128, 3, 2, {"per_device_train_batch_size": 2}),
    "two ranks, checkpointed, accumulating": Case(
        128,
        4,
        2,
        {"per_device_train_batch_size": 2, "activation_checkpointing": True, "gradient_accumulation_steps": 2},
    ),
    "two ranks, LoRA": Case(128, 2, 2, {"per_device_train_batch_size": 2, "peft": LORA}),
}


def plan(folder: Path) -> None:
    """The planned peak of every case; models are written to disk on the way."""
    planned = {}
    for name, case in CASES.items():
        place = folder / name
        # 16 bits on disk, as large models have: a weight that needs no cast stays a view of the file it was read from.
        case.model().bfloat16().save_pretrained(place)
        write_tokenizer(place)
        config = AutoConfig.from_pretrained(place, attn_implementation="sdpa")
        config.use_cache = False
        sample = sample_sft if case.sft is not None else sample_ppo
        planned[name] = fullest(sample(config, case.experiment(), "cpu"))
    (folder / "planned.json").write_text(json.dumps(planned))


def fullest(sample: Sample) -> int:
    """Bytes at the fullest moment of a step; a gather for export is not part of a step."""
    return max(sum(kinds.values()) for moment, kinds in sample.peaks.items() if moment.phase != "export")


def run(folder: Path, ranks: Ranks) -> None:
    """What this rank really held in every case for this number of ranks."""
    held = {}
    for name, case in CASES.items():
        if case.num_ranks == ranks.world_size:
            held[name] = held_by_ppo(case) if case.sft is None else held_by_sft(folder, name, case, ranks)
    if ranks.is_main:
        (folder / f"held-{ranks.world_size}.json").write_text(json.dumps(held))


def held_by_sft(folder: Path, name: str, case: Case, ranks: Ranks) -> int:
    """Trains with the real trainer and data whose every token carries loss."""
    params, root = case.experiment(), folder / "runs" / name
    store = full_rows(16)
    with LiveMemory() as live:
        model = build_model(folder / name, params, ranks)
        with CheckpointStore(root / "checkpoints", run_id="r") as checkpoints:
            session = Session(
                ranks=ranks,
                store=checkpoints,
                stop=StopFlag(root / "control", 1),
                progress=Progress(ranks, 3, 1000, params.sft.global_batch_size, FlopsModel.of(model), "fp32",
                                  lambda step, values: None),
                sft=params.sft,
                run=params.run,
                seed=params.seed,
            )  # fmt: skip
            tokenizer = load_tokenizer(folder / name)
            trainer = build_trainer(model, tokenizer, store, store, RowCollator(0), session, root)
            train(trainer)
    return live.peak_bytes


def held_by_ppo(case: Case) -> int:
    """Two steps of the real engine on prompts of full length; no completion ends early."""
    params = case.experiment().ppo
    with LiveMemory() as live:
        backbone = build_backbone(case.model().eval(), Adapters(), params.lora, seed=0)
        backbone.model.generation_config.eos_token_id = VOCABULARY  # a token that is never drawn
        engine = tiny_engine(params, backbone=backbone, prompts=[[5] * params.max_prompt_length] * 40)
        for _ in range(2):
            engine.step()
    return live.peak_bytes


def full_rows(count: int) -> TokenStore:
    """Rows of full length in which every token but the first carries loss."""
    tokens = torch.randint(3, VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[:, [0, LENGTH // 2]] = -100
    rows = {
        "input_ids": tokens.tolist(),
        "labels": labels.tolist(),
        "seq_lengths": [[LENGTH // 2, LENGTH - LENGTH // 2]] * count,
    }
    return TokenStore(Path("memory"), Dataset.from_dict(rows).with_format("numpy"), {})


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "plan":
        plan(folder)
        return
    make_deterministic()
    with joined_ranks(120) as ranks:
        run(folder, ranks)


if __name__ == "__main__":
    main()
