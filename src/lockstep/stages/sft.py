"""Stage `sft`: ranks → data → model → trainer → train → export → outputs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lockstep.checkpoints.store import CheckpointStore, Retention
from lockstep.data.collator import RowCollator
from lockstep.data.store import TokenStore
from lockstep.foundation.errors import StoppedAfterSave
from lockstep.foundation.files import replace_tree, sha256_file, write_atomic, write_json
from lockstep.models.export import export_adapter, export_model
from lockstep.models.loading import load_tokenizer
from lockstep.models.weights import MANIFEST
from lockstep.runs.job import Job
from lockstep.stages._worker import main
from lockstep.tracking.spool import curves
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel, peak_memory_bytes
from lockstep.training.sft.arguments import num_steps
from lockstep.training.sft.evaluation import HeldOut
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model, build_trainer, newest_checkpoint, train
from lockstep.training.sft.trainer import ResumableSFTTrainer, Session

_CURVES = ("loss", "learning_rate", "grad_norm", "num_tokens", "eval_loss")


def run(job: Job) -> None:
    """Fine-tunes the model, or goes on where the last attempt stopped.

    Raises StoppedAfterSave when asked to stop, UsageError for what is missing or does not fit.
    """
    if not job.params.sft.enabled:
        _write_skipped(job)
        return
    make_deterministic()
    with joined_ranks(job.params.run.collective_timeout_s) as ranks, _store(job) as store:
        trainer = _trainer(job, ranks, store)
        try:
            train(trainer)
            held_out = trainer.finished()
        except StoppedAfterSave:
            _write_outcome(job, trainer, "stopped")
            raise
        manifest = _export(job, trainer)
        if job.is_main:
            _write_outputs(job, trainer, held_out, manifest)
        _write_outcome(job, trainer, "complete")


def _store(job: Job) -> CheckpointStore:
    run_params = job.params.run
    return CheckpointStore(
        job.directory.checkpoints,
        run_id=job.run_id,
        retention=Retention(
            run_params.save_total_limit, run_params.save_every, "min" if run_params.keep_best else None
        ),
        asynchronous=run_params.asynchronous_save,
        on_failure=run_params.on_save_failure,
        base_sha256=job.input_hashes["model"] if job.params.sft.peft else None,
    )


def _trainer(job: Job, ranks: Ranks, store: CheckpointStore) -> ResumableSFTTrainer:
    params = job.params
    data, held_out = (TokenStore.open(job.inputs["tokens"] / split) for split in ("train", "eval"))
    tokenizer = load_tokenizer(job.inputs["model"])
    model = build_model(job.inputs["model"], params, ranks)
    progress = Progress(
        ranks=ranks,
        max_steps=num_steps(params.sft, len(data)),
        logging_steps=params.run.logging_steps,
        global_batch_size=params.sft.global_batch_size,
        flops=FlopsModel.of(model),
        compute=params.model.precision.compute,
        log_metrics=job.log_metrics,
    )
    session = Session(
        ranks=ranks,
        store=store,
        stop=StopFlag(job.directory.control, job.attempt),
        progress=progress,
        sft=params.sft,
        run=params.run,
        seed=params.seed,
        found=newest_checkpoint(store, params.run.verify, _other_run(job)),
        elastic=bool(job.options.get("elastic") or job.options.get("continue_from")),
        until_step=job.options.get("until_step"),
    )
    if session.found is not None:
        progress.note(f"going on from step {session.start_step} ({session.found.path})")
    collate = RowCollator(pad_token_id=tokenizer.pad_token_id)
    return build_trainer(model, tokenizer, data, held_out, collate, session, job.directory.scratch)


def _staging(job: Job) -> Path:
    return job.directory.scratch / "outputs"


def _other_run(job: Job) -> Path | None:
    """The folder of the run named by --continue-from, of the same stage."""
    other = job.options.get("continue_from")
    return None if other is None else job.directory.root.parent / Path(other).name


def _export(job: Job, trainer: ResumableSFTTrainer) -> dict[str, Any] | None:
    """The weights and their manifest (rank 0's to write): an adapter among the outputs, a full model in the run."""
    weights = _staging(job) / "weights"
    if job.is_main:
        shutil.rmtree(_staging(job), ignore_errors=True)
    if job.params.sft.peft is not None:
        return export_adapter(trainer.model, weights, base=job.params.model.path) if job.is_main else None
    template = TokenStore.open(job.inputs["tokens"] / "train").chat_template
    manifest = export_model(trainer.model, job.inputs["model"], job.directory.model, chat_template=template)
    if manifest is not None:
        write_json(weights / MANIFEST, manifest)
    return manifest


def _write_outputs(job: Job, trainer: ResumableSFTTrainer, held_out: HeldOut, manifest: dict[str, Any] | None) -> None:
    assert manifest is not None
    staging = _staging(job)
    found = curves(job.directory.metrics)
    write_atomic(staging / "curves" / "train.tsv", _table(found))
    write_json(
        staging / "metrics.json",
        {
            "num_steps": trainer.args.max_steps,
            "num_tokens": trainer.counts.num_tokens,
            "num_supervised_tokens": trainer.counts.num_supervised_tokens,
            "train_loss": found["loss"][-1][1],
            "eval_loss": held_out.loss,
            "eval_perplexity": held_out.perplexity,
            "num_eval_tokens": held_out.num_tokens,
        },
    )
    write_json(
        staging / "result.json",
        {
            "stage": job.stage,
            "run_id": job.run_id,
            "inputs": job.input_hashes,
            "weights_sha256": manifest["weights_sha256"],
            "manifest_sha256": sha256_file(staging / "weights" / MANIFEST),
        },
    )
    replace_tree(staging, job.directory.outputs)


def _table(found: dict[str, list[tuple[int, float]]]) -> str:
    """Tab-separated curves, one row per step; only what the locks decide (no speed, no memory)."""
    by_name = {name: dict(found.get(name, [])) for name in _CURVES}
    steps = sorted({step for points in by_name.values() for step in points})
    rows = ["\t".join(("step", *_CURVES))]
    for step in steps:
        cells = [by_name[name].get(step) for name in _CURVES]
        rows.append("\t".join([str(step), *("" if value is None else repr(value) for value in cells)]))
    return "\n".join(rows) + "\n"


def _write_outcome(job: Job, trainer: ResumableSFTTrainer, reason: str) -> None:
    session = trainer.session
    job.write_outcome(
        {
            "reason": reason,
            "start_step": session.start_step,
            "end_step": max(session.start_step, trainer.state.global_step),
            "step_s": session.progress.step_s,
            "peak_memory_bytes": peak_memory_bytes(session.ranks.device),
        }
    )


def _write_skipped(job: Job) -> None:
    """What every stage that is turned off leaves, so that the names in dvc.yaml exist and readers can tell."""
    if not job.is_main:
        return
    staging = _staging(job)
    write_json(staging / "result.json", {"skipped": True, "stage": job.stage})
    write_json(staging / "metrics.json", {})
    write_json(staging / "weights" / MANIFEST, {"kind": "none", "files": {}, "weights_sha256": None})
    write_atomic(staging / "curves" / "train.tsv", _table({}))
    replace_tree(staging, job.directory.outputs)


if __name__ == "__main__":
    main(run)
