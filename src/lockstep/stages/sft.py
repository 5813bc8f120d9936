"""Stage `sft`: ranks → data → model → trainer → train → export → outputs."""

from __future__ import annotations

from typing import Any

from lockstep.checkpoints.store import CheckpointStore
from lockstep.data.collator import RowCollator
from lockstep.data.store import TokenStore
from lockstep.foundation.errors import StoppedAfterSave
from lockstep.foundation.files import write_json
from lockstep.models.export import export_adapter, export_model
from lockstep.models.loading import load_tokenizer
from lockstep.models.weights import MANIFEST
from lockstep.runs.job import Job
from lockstep.stages._attempt import checkpoint_to_go_on_from, open_store
from lockstep.stages._outputs import Outputs
from lockstep.stages._worker import main
from lockstep.tracking.spool import curve
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import FlopsModel, peak_memory_bytes
from lockstep.training.sft.arguments import num_steps
from lockstep.training.sft.evaluation import HeldOut
from lockstep.training.sft.progress import Progress
from lockstep.training.sft.run import build_model, build_trainer, train
from lockstep.training.sft.trainer import ResumableSFTTrainer, Session


def run(job: Job) -> None:
    """Fine-tunes the model, or goes on where the last attempt stopped.

    Raises StoppedAfterSave when asked to stop, UsageError for what is missing or does not fit, DoNotRetryError when
    training diverged.
    """
    outputs = Outputs(job)
    if not job.params.sft.enabled:
        outputs.skip("curves", "weights")
        return
    make_deterministic()
    base_sha256 = job.input_hashes["model"] if job.params.sft.peft else None
    with (
        joined_ranks(job.params.run.collective_timeout_s) as ranks,
        open_store(job, base_sha256=base_sha256) as store,
    ):
        trainer = _trainer(job, ranks, store)
        try:
            train(trainer)
            held_out = trainer.finished()
        except StoppedAfterSave:
            _write_outcome(job, trainer, "stopped")
            raise
        manifest = _export(job, outputs, trainer)
        if manifest is not None:
            _write_outputs(job, outputs, trainer, held_out, manifest)
        _write_outcome(job, trainer, "complete")


def _trainer(job: Job, ranks: Ranks, store: CheckpointStore) -> ResumableSFTTrainer:
    params = job.params
    rows, held_out = (TokenStore.open(job.inputs["tokens"] / split) for split in ("train", "eval"))
    tokenizer = load_tokenizer(job.inputs["model"])
    model = build_model(job.inputs["model"], params, ranks)
    progress = Progress(
        ranks=ranks,
        max_steps=num_steps(params.sft, len(rows)),
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
        found=checkpoint_to_go_on_from(job, store),
        elastic=bool(job.options.get("elastic") or job.options.get("continue_from")),
        until_step=job.options.get("until_step"),
    )
    if session.found is not None:
        progress.note(f"going on from step {session.start_step} ({session.found.path})")
    collate = RowCollator(tokenizer.pad_token_id, params.model.attn_implementation)
    return build_trainer(model, tokenizer, rows, held_out, collate, session, job.directory.scratch)


def _export(job: Job, outputs: Outputs, trainer: ResumableSFTTrainer) -> dict[str, Any] | None:
    """Writes the weights, an adapter among the outputs or a full model beside them; their manifest on rank 0."""
    if job.params.sft.peft is not None:
        return export_adapter(trainer.model, outputs.weights, base=job.params.model.path) if job.is_main else None
    template = TokenStore.open(job.inputs["tokens"] / "train").chat_template
    manifest = export_model(trainer.model, job.inputs["model"], job.directory.model, chat_template=template)
    if manifest is not None:
        write_json(outputs.weights / MANIFEST, manifest)
    return manifest


def _write_outputs(
    job: Job, outputs: Outputs, trainer: ResumableSFTTrainer, held_out: HeldOut, manifest: dict[str, Any]
) -> None:
    outputs.curves(("loss", "learning_rate", "grad_norm", "num_tokens", "eval_loss"))
    outputs.json(
        "metrics.json",
        {
            "num_steps": trainer.args.max_steps,
            "num_tokens": trainer.counts.num_tokens,
            "num_supervised_tokens": trainer.counts.num_supervised_tokens,
            "train_loss": curve(job.directory.metrics, "loss")[-1][1],
            "eval_loss": held_out.loss,
            "eval_perplexity": held_out.perplexity,
            "num_eval_tokens": held_out.num_tokens,
        },
    )
    outputs.publish({"weights_sha256": manifest["weights_sha256"]})


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


if __name__ == "__main__":
    main(run)
