"""Stage `ppo`: ranks → roles on one backbone → resume → train → export → outputs."""

from __future__ import annotations

from typing import Any

from lockstep.foundation.errors import StoppedAfterSave
from lockstep.runs.job import Job
from lockstep.stages._attempt import checkpoint_to_go_on_from, open_store
from lockstep.stages._outputs import Outputs
from lockstep.stages._worker import main
from lockstep.tracking.spool import curves
from lockstep.training.common.determinism import make_deterministic
from lockstep.training.common.ranks import joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.ppo.build import Folders, build_engine
from lockstep.training.ppo.export import export_policy
from lockstep.training.ppo.memory import memory_report
from lockstep.training.ppo.metrics import DETERMINISTIC
from lockstep.training.ppo.samples import side_by_side
from lockstep.training.ppo.trainer import PpoTrainer, Session


def run(job: Job) -> None:
    """Aligns the fine-tuned model with the reward, or goes on where the last attempt stopped.

    Raises StoppedAfterSave when asked to stop, UsageError for what is missing or does not fit, DoNotRetryError when a
    guard is violated.
    """
    outputs = Outputs(job)
    if not job.params.ppo.enabled:
        outputs.skip("samples.json", "curves", "weights")
        return
    make_deterministic()
    folders = folders_of(job)
    with (
        joined_ranks(job.params.run.collective_timeout_s) as ranks,
        open_store(job, base_sha256=_base_sha256(job, folders)) as store,
    ):
        session = Session(
            ranks=ranks,
            store=store,
            stop=StopFlag(job.directory.control, job.attempt),
            run=job.params.run,
            seed=job.params.seed,
            log_metrics=job.log_metrics,
            samples_file=job.directory.root / "samples.jsonl",
            found=checkpoint_to_go_on_from(job, store),
            elastic=bool(job.options.get("elastic") or job.options.get("continue_from")),
            until_step=job.options.get("until_step"),
        )
        trainer = PpoTrainer(build_engine(folders, job.params, ranks), session)
        try:
            trainer.train()
        except StoppedAfterSave:
            _write_outcome(job, trainer, "stopped")
            raise
        if job.is_main:
            _write_outputs(job, outputs, trainer)
        _write_outcome(job, trainer, "complete")


def folders_of(job: Job) -> Folders:
    """The inputs of PPO and of what generates with its result."""
    inputs = job.inputs
    return Folders(
        model=inputs["model"],
        sft=inputs["sft"],
        prompts=inputs["prompts"],
        reviews=inputs["reviews"],
        reward=inputs["reward"],
        project=job.project,
    )


def _base_sha256(job: Job, folders: Folders) -> str:
    """The hash of what the frozen backbone was loaded from."""
    return job.input_hashes["sft" if folders.backbone == folders.sft else "model"]


def _write_outputs(job: Job, outputs: Outputs, trainer: PpoTrainer) -> None:
    engine = trainer.engine
    manifest = export_policy(engine.backbone, engine.value_head, outputs.weights, base=job.params.model.path)
    outputs.curves(DETERMINISTIC)
    outputs.json("samples.json", side_by_side(engine))
    outputs.json("metrics.json", _final_metrics(job, trainer))
    outputs.publish({"weights_sha256": manifest["weights_sha256"]})


def _final_metrics(job: Job, trainer: PpoTrainer) -> dict[str, float]:
    """The last step's deterministic numbers."""
    found = curves(job.directory.metrics)
    last = {name: found[name][-1][1] for name in DETERMINISTIC if name in found}
    return {"num_steps": trainer.engine.state.progress.step, **last}


def _write_outcome(job: Job, trainer: PpoTrainer, reason: str) -> None:
    engine, found = trainer.engine, trainer.session.found
    outcome: dict[str, Any] = {
        "reason": reason,
        "start_step": 0 if found is None else found.step,
        "end_step": engine.state.progress.step,
        "step_s": trainer.step_s,
        "peak_memory_bytes": engine.memory.largest,
        "memory": memory_report(engine.memory_table(), engine.memory.peaks),
    }
    job.write_outcome(outcome)


if __name__ == "__main__":
    main(run)
