"""Every recipe with its model shrunk to a few narrow layers and its texts to a few rows, all else equal, really run.

Usage: torchrun --nproc_per_node 2 recipe_cases.py FOLDER RECIPE...   (or plain python, for recipes of one process)
Leaves FOLDER/RECIPE.json with what each stage found.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.collator import RowCollator
from lockstep.foundation.files import read_json
from lockstep.models.adapters import adapter_parameters
from lockstep.models.export import export_adapter
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.params.experiment import Experiment, parse_experiment, read_yaml
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel
from lockstep.training.ppo.build import frozen
from lockstep.training.ppo.roles import Adapters, Role, build_backbone
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model, build_trainer, train
from lockstep.training.sft.trainer import Session
from ppo_cases import tiny_engine
from tiny_llama import VOCABULARY, token_store, write_tokenizer

PROJECT = Path(__file__).parents[1]
_NUM_STEPS = 2
_SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": VOCABULARY}


def big_recipes() -> list[str]:
    """The recipes for GPUs; the two for CPUs are run whole by the end-to-end tests."""
    return [path.stem for path in sorted((PROJECT / "recipes").glob("*.yaml")) if "-cpu" not in path.stem]


def shrunk(name: str) -> tuple[Experiment, dict[str, Any]]:
    """The recipe with fewer steps, rows and ranks, and its architecture with few and narrow layers."""
    raw = read_yaml(PROJECT / "recipes" / f"{name}.yaml")
    raw["data"]["sft"]["max_length"] = 48
    sft, ppo = raw["sft"], raw["ppo"]
    sft.update(max_steps=_NUM_STEPS, warmup_steps=1, eval_steps=0)
    sft["num_processes"] = min(2, sft["num_processes"])
    sft["gradient_accumulation_steps"] = min(2, sft.get("gradient_accumulation_steps", 1))
    if ppo.get("enabled", True):
        ppo.update(max_steps=1, max_prompt_length=8, max_new_tokens=6, rollout_batch_size=16)
        ppo.update(per_device_rollout_batch_size=8, per_device_train_batch_size=2)
        ppo["reward"] = {"kind": "lexicon"}  # the reward stage has tests of its own
        ppo["guards"] = {**ppo["guards"], "min_distinct": None, "min_length": None}
    architecture = read_json(PROJECT / raw["model"]["architecture"])
    small = _SMALL | {"intermediate_size": 128, "max_position_embeddings": 256}
    if "num_key_value_heads" in architecture:
        small["num_key_value_heads"] = 2
    return parse_experiment(raw, where=name), {**architecture, **small, "eos_token_id": 2, "bos_token_id": 1}


def run(folder: Path, name: str, ranks: Ranks) -> dict[str, Any]:
    """SFT, and PPO where the recipe has it."""
    params, architecture = shrunk(name)
    base, root = folder / f"{name}-model", folder / f"{name}-run"
    if ranks.is_main and not base.exists():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture)).save_pretrained(base)
        write_tokenizer(base)
    torch.distributed.barrier()
    trainer, curves = _fine_tune(params, base, root, ranks)
    found: dict[str, Any] = dict(curves)
    if params.sft.peft is not None:
        found["adapters_that_moved"] = _moved(trainer.model)
    if params.ppo.enabled:
        export_adapter(trainer.model, root / "adapter", base="base")
        found["ppo"] = _reinforce(params, base, root / "adapter")
    return found


def _fine_tune(params: Experiment, base: Path, root: Path, ranks: Ranks) -> tuple[Any, dict[str, list[float]]]:
    curves: dict[str, list[float]] = {"loss": [], "grad_norm": []}

    def keep(step: int, values: dict[str, float]) -> None:
        for key, points in curves.items():
            points.extend([values[key]] if key in values else [])

    model = build_model(base, params, ranks)
    with CheckpointStore(root / "checkpoints", run_id="r") as store:
        session = Session(
            ranks=ranks,
            store=store,
            stop=StopFlag(root / "control", 1),
            progress=Progress(
                ranks,
                _NUM_STEPS,
                1000,
                params.sft.global_batch_size,
                FlopsModel.of(model),
                params.model.precision.compute,
                keep,
            ),
            sft=params.sft,
            run=params.run,
            seed=params.seed,
        )
        rows = token_store(16, seed=1, max_length=params.data.sft.max_length)
        trainer = build_trainer(model, load_tokenizer(base), rows, rows, RowCollator(0), session, root)
        train(trainer)
    return trainer, curves


def _moved(model: Any) -> float:
    """The share of LoRA's B matrices that are not zero, as all of them were before the first step."""
    moved = [bool((p != 0).any()) for name, p in adapter_parameters(model).items() if "lora_B" in name]
    return sum(moved) / len(moved)


def _reinforce(params: Experiment, base: Path, adapter: Path) -> dict[str, float]:
    quantization = params.ppo.backbone_quantization(params.model)
    model = load_model(base, frozen(params.model, quantization), device=torch.device("cpu"))
    backbone = build_backbone(model, Adapters(sft=adapter), params.ppo.lora, params.seed)
    engine = tiny_engine(params.ppo, backbone=backbone)
    before = {name: p.detach().clone() for name, p in backbone.parameters_of(Role.POLICY).items()}
    metrics = engine.step().metrics
    after = backbone.parameters_of(Role.POLICY)
    moved = sum(1 for name in before if not torch.equal(before[name], after[name]))
    return {"kl": metrics["objective/kl_per_token"], "moved": moved, "num": len(before)}


def main() -> None:
    folder = Path(sys.argv[1])
    make_deterministic()
    with joined_ranks(120) as ranks:
        for name in sys.argv[2:]:
            found = run(folder, name, ranks)
            assert all(math.isfinite(loss) for loss in found["loss"])
            if ranks.is_main:
                (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
