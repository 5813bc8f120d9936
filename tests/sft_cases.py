"""Many small trainings behind one launch: each case trains the tiny model and leaves what it found as JSON.

Usage: torchrun --nproc_per_node N sft_cases.py FOLDER CASE...   (or plain python, for one rank)
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor

import tiny_llama as tiny
from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.collator import RowCollator
from lockstep.foundation.errors import DoNotRetryError, StoppedAfterSave
from lockstep.models.adapters import adapter_tensors
from lockstep.models.export import export_adapter, export_model
from lockstep.models.loading import load_tokenizer
from lockstep.models.weights import named_weights, weights_sha256, whole
from lockstep.params.experiment import Experiment
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model, build_trainer, train
from lockstep.training.sft.trainer import ResumableSFTTrainer, Session

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]}
FULL_OF_CHANCE = {"gradient_accumulation_steps": 2, "attention_dropout": 0.1, "eval_steps": 2}


COLLATE = RowCollator(pad_token_id=0)


class StopsAtFirstEvaluation:
    """A collator that asks for a stop when it is given the first held-out row (rows of 1 are only evaluated here)."""

    def __init__(self, control: Path) -> None:
        self._file = control / "stop.1"

    def __call__(self, rows: Any) -> Any:
        if len(rows) == 1:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch()
        return COLLATE(rows)


class Bench:
    """One rank's workplace: trains a case, possibly in several attempts, and says how it went."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self.folder = folder
        self.ranks = ranks
        self.train_store = tiny.token_store(21, seed=1)
        self.eval_store = tiny.token_store(7, seed=2)

    def attempt(
        self,
        name: str,
        params: Experiment,
        *,
        until_step: int | None = None,
        elastic: bool = False,
        attempt: int = 1,
        model_folder: str = "tied",
        collate: Callable[..., Any] | None = None,
    ) -> tuple[ResumableSFTTrainer, dict[str, Any]]:
        """Trains from the newest checkpoint of `name` on; returns the trainer and what it reported."""
        root = self.folder / name
        reported: dict[int, dict[str, float]] = {}
        model = build_model(self.folder / model_folder, params, self.ranks)
        tokenizer = load_tokenizer(self.folder / model_folder)
        with CheckpointStore(root / "checkpoints", run_id=name) as store:
            session = Session(
                ranks=self.ranks,
                store=store,
                stop=StopFlag(root / "control", attempt),
                progress=Progress(
                    self.ranks,
                    params.sft.max_steps or 0,
                    1000,
                    params.sft.global_batch_size,
                    FlopsModel.of(model),
                    params.model.precision.compute,
                    lambda step, values: reported.setdefault(step, {}).update(values),
                ),
                sft=params.sft,
                run=params.run,
                seed=params.seed,
                found=store.newest(),
                elastic=elastic,
                until_step=until_step,
            )
            collate = collate or COLLATE
            trainer = build_trainer(model, tokenizer, self.train_store, self.eval_store, collate, session, root)
            stopped = False
            try:
                train(trainer)
            except StoppedAfterSave:
                stopped = True
        return trainer, {"stopped": stopped, "start_step": session.start_step, **self._facts(trainer, reported)}

    def experiment(self, **sections: dict[str, Any]) -> Experiment:
        """A tiny experiment for as many processes as there are here."""
        sft = {"num_processes": self.ranks.world_size, **sections.pop("sft", {})}
        return tiny.experiment(sft=sft, **sections)

    def _facts(self, trainer: ResumableSFTTrainer, reported: dict[int, dict[str, float]]) -> dict[str, Any]:
        keys = ("loss", "grad_norm", "learning_rate", "num_tokens", "eval_loss")
        curves = {key: {step: v[key] for step, v in sorted(reported.items()) if key in v} for key in keys}
        return {"sha": self.sha(trainer.model), "curves": curves, "num_tokens": trainer.counts.num_tokens}

    def sha(self, model: Any) -> str:
        return weights_sha256((n, whole(p)) for n, p in model.named_parameters() if p.requires_grad)


def sharded(bench: Bench) -> dict[str, Any]:
    """What lies where after a full-parameter run."""
    trainer, facts = bench.attempt("sharded", bench.experiment())
    parameters = dict(trainer.model.named_parameters())
    local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters.values())
    return {
        **facts,
        "num_parameters": len(parameters),
        "num_dtensors": sum(isinstance(p, DTensor) for p in parameters.values()),
        "numel": sum(p.numel() for p in parameters.values()),
        "local_numel": local,
    }


def repeated(bench: Bench) -> dict[str, Any]:
    return bench.attempt("repeated", bench.experiment())[1]


def other_seed(bench: Bench) -> dict[str, Any]:
    return bench.attempt("other_seed", bench.experiment().model_copy(update={"seed": 8}))[1]


def untied(bench: Bench) -> dict[str, Any]:
    return bench.attempt("untied", bench.experiment(), model_folder="untied")[1]


def checkpointing(bench: Bench) -> dict[str, Any]:
    """Dropout with and without recomputation of activations."""
    found = {}
    for name, on in (("plain", False), ("recomputed", True)):
        params = bench.experiment(sft={"attention_dropout": 0.1, "activation_checkpointing": on})
        found[name] = bench.attempt(f"checkpointing_{name}", params)[1]
    return found


def checkpointing_lora(bench: Bench) -> dict[str, Any]:
    """The same for adapters on a frozen base."""
    found = {}
    for name, on in (("plain", False), ("recomputed", True)):
        params = bench.experiment(sft={"peft": LORA, "activation_checkpointing": on})
        found[name] = bench.attempt(f"checkpointing_lora_{name}", params)[1]
    return found


def replicas(bench: Bench) -> dict[str, Any]:
    """HSDP: every rank holds a replica; with a break, and with accumulation, in fp32 and with bf16 sums."""
    shape = {"dp_replicate_size": bench.ranks.world_size, "gradient_accumulation_steps": 2, "eval_steps": 2}
    _, reference = bench.attempt("replicas_none", bench.experiment(sft={**shape, "dp_replicate_size": 1}))
    _, whole_run = bench.attempt("replicas", bench.experiment(sft=shape))
    bench.attempt("replicas_broken", bench.experiment(sft=shape), until_step=3)
    _, second = bench.attempt("replicas_broken", bench.experiment(sft=shape), attempt=2)
    coarse = {"source": "path:here", "precision": {"compute": "bf16", "reduce": "bf16"}}
    _, mixed = bench.attempt("replicas_mixed", bench.experiment(sft=shape, model=coarse))
    return {"reference": reference, "whole": whole_run, "second": second, "mixed": mixed}


def accumulation(bench: Bench) -> dict[str, Any]:
    """One global batch of 8 sequences, in one piece and in four."""
    found = {}
    for name, per_device, steps in (("whole", 8, 1), ("parts", 2, 4)):
        rows = per_device // bench.ranks.world_size
        shape = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": steps}
        found[name] = bench.attempt(f"accumulation_{name}", bench.experiment(sft=shape))[1]
    return found


def same_global_batch(bench: Bench) -> dict[str, Any]:
    """Eight sequences per step however many ranks there are."""
    shape = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2 // bench.ranks.world_size}
    _, full = bench.attempt("same_full", bench.experiment(sft={**shape, "eval_steps": 2}))
    _, lora_only = bench.attempt("same_lora", bench.experiment(sft={**shape, "peft": {**LORA, "lora_dropout": 0.0}}))
    return {"full": full, "lora": lora_only}


def resumed(bench: Bench) -> dict[str, Any]:
    """Without a break, and with one in the middle of accumulation, dropout, evaluation and an epoch."""
    found: dict[str, Any] = {}
    for kind, extra in (("full", {}), ("lora", {"peft": LORA})):
        params = bench.experiment(sft={**FULL_OF_CHANCE, **extra})
        _, whole_run = bench.attempt(f"whole_{kind}", params)
        _, first = bench.attempt(f"broken_{kind}", params, until_step=3)
        _, second = bench.attempt(f"broken_{kind}", params, attempt=2)
        found[kind] = {"whole": whole_run, "first": first, "second": second}
    return found


def resumed_when_done(bench: Bench) -> dict[str, Any]:
    """A run that was killed between its last step and its export."""
    _, first = bench.attempt("done", bench.experiment())
    trainer, second = bench.attempt("done", bench.experiment(), attempt=2)
    return {"first": first, "second": second, "held_out": trainer.finished().loss}


def stopped_in_evaluation(bench: Bench) -> dict[str, Any]:
    """A stop file that appears while the held-out loss of step 2 is being measured."""
    params = bench.experiment(sft={"eval_steps": 2, "per_device_eval_batch_size": 1})
    reference = bench.attempt("not_stopped_in_evaluation", params)[1]
    control = bench.folder / "stopped_in_evaluation" / "control"
    _, first = bench.attempt("stopped_in_evaluation", params, collate=StopsAtFirstEvaluation(control))
    _, second = bench.attempt("stopped_in_evaluation", params, attempt=2)
    return {"reference": reference, "first": first, "second": second}


def lora(bench: Bench) -> dict[str, Any]:
    """Adapters on a sharded base, and the folder they are exported to."""
    params = bench.experiment(sft={"peft": LORA})
    trainer, facts = bench.attempt("lora", params)
    model = trainer.model
    assert isinstance(model, PeftModel)
    tensors = adapter_tensors(model)
    if bench.ranks.is_main:
        export_adapter(model, bench.folder / "lora_export", base="models/base")
    return {
        **facts,
        "local_sha": weights_sha256(tensors.items()),
        "dtypes": sorted({str(t.dtype) for t in tensors.values()}),
        "lora_b_norms": {n: float(t.norm()) for n, t in tensors.items() if "lora_B" in n},
        "frozen_dtensors": sum(isinstance(p, DTensor) for p in model.parameters() if not p.requires_grad),
        "logits": probe_logits(model),
    }


def exported(bench: Bench) -> dict[str, Any]:
    """The trained model written out in small files."""
    trainer, facts = bench.attempt("exported", bench.experiment())
    logits = probe_logits(trainer.model)
    manifest = export_model(
        trainer.model, bench.folder / "tied", bench.folder / "export", chat_template="{{ 1 }}", max_shard_bytes=60_000
    )
    sha = weights_sha256(named_weights(trainer.model))
    return {**facts, "logits": logits, "manifest": manifest, "weights_sha": sha}


def perplexity(bench: Bench) -> dict[str, Any]:
    """The held-out loss of an untrained model for several batch sizes."""
    found = {}
    for size in (1, 2, 5):
        untrained = {"max_steps": 1, "warmup_steps": 0, "learning_rate": 1e-30, "per_device_eval_batch_size": size}
        trainer, _ = bench.attempt(f"perplexity_{size}", bench.experiment(sft=untrained))
        held_out = trainer.finished()
        found[size] = {"loss": held_out.loss, "perplexity": held_out.perplexity, "num_tokens": held_out.num_tokens}
    return found


def mixed_precision(bench: Bench) -> dict[str, Any]:
    """bf16 compute on fp32 master weights, with both reductions."""
    found = {}
    for reduce in ("fp32", "bf16"):
        params = bench.experiment(model={"source": "path:here", "precision": {"compute": "bf16", "reduce": reduce}})
        trainer, facts = bench.attempt(f"mixed_{reduce}", params)
        found[reduce] = {**facts, "dtypes": sorted({str(p.dtype) for p in trainer.model.parameters()})}
    return found


def quantised(bench: Bench) -> dict[str, Any]:
    """Adapters on a base in 8 and in 4 bits, evaluated in between, without a break and with one."""
    found: dict[str, Any] = {}
    for kind in ("load_in_8bit", "load_in_4bit"):
        params = bench.experiment(
            model={"source": "path:here", "quantization": {kind: True}}, sft={"peft": LORA, "eval_steps": 2}
        )
        trainer, whole_run = bench.attempt(f"whole_{kind}", params)
        bench.attempt(f"broken_{kind}", params, until_step=3)
        _, second = bench.attempt(f"broken_{kind}", params, attempt=2)
        norms = [float(p.norm()) for n, p in trainer.model.named_parameters() if "lora_B" in n]
        found[kind] = {"whole": whole_run, "second": second, "lora_b_norms": norms}
    return found


def elastic_first(bench: Bench) -> dict[str, Any]:
    """Three steps on as many ranks as there are, of a run for two."""
    return bench.attempt(f"from_{bench.ranks.world_size}", bench.experiment(sft={"num_processes": 2}), until_step=3)[1]


def elastic_rest(bench: Bench) -> dict[str, Any]:
    """The other three of what two ranks began on one, or one on two: not asked for, and asked for."""
    began = 3 - bench.ranks.world_size
    name = f"from_{began}"
    if bench.ranks.is_main:
        shutil.copytree(bench.folder.parent / f"{began}-ranks" / name, bench.folder / name)
    torch.distributed.barrier()
    params = bench.experiment(sft={"num_processes": 2})
    try:
        bench.attempt(name, params)
        refused = ""
    except DoNotRetryError as error:
        refused = str(error)
    return {"refused": refused, **bench.attempt(name, params, elastic=True)[1]}


def probe_logits(model: Any) -> list[float]:
    """Logits of one fixed sequence, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(3, 19)[None]).logits
    return [float(value) for value in np.asarray(logits[0, -1, :8].float())]


CASES = {
    case.__name__: case
    for case in (
        sharded,
        repeated,
        other_seed,
        untied,
        checkpointing,
        checkpointing_lora,
        replicas,
        accumulation,
        same_global_batch,
        resumed,
        resumed_when_done,
        stopped_in_evaluation,
        lora,
        exported,
        perplexity,
        mixed_precision,
        quantised,
        elastic_first,
        elastic_rest,
    )
}


def main() -> None:
    folder = Path(sys.argv[1])
    make_deterministic()
    with joined_ranks(120) as ranks:
        work = folder / f"{ranks.world_size}-ranks"
        work.mkdir(exist_ok=True)
        for name in ("tied", "untied"):
            if not (work / name).exists() and ranks.is_main:
                (work / name).symlink_to(folder / name)
        torch.distributed.barrier()
        bench = Bench(work, ranks)
        for name in sys.argv[2:]:
            result = CASES[name](bench)
            (work / f"{name}.{ranks.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
