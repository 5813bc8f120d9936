"""Stage `reward`: ranks → pairs → backbone with adapter and head → train → held-out accuracy → outputs."""

from __future__ import annotations

from pathlib import Path

from lockstep.data.order import EpochOrder
from lockstep.foundation.errors import StoppedAfterSave
from lockstep.models.adapters import add_lora
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.models.weights import read_manifest
from lockstep.runs.job import Job
from lockstep.stages._attempt import checkpoint_to_go_on_from, open_store
from lockstep.stages._outputs import Outputs
from lockstep.stages._worker import main
from lockstep.training.common.batches import BatchShape, StepSampler
from lockstep.training.common.determinism import derived_seed, make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.common.throughput import peak_memory_bytes
from lockstep.training.ppo.build import frozen
from lockstep.training.ppo.export import export_reward_model
from lockstep.training.ppo.pairs import num_ranked_right, tokenised_pairs
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.reward_trainer import PairTrainer, RewardSession, reward_arguments
from lockstep.training.ppo.roles import Role


def run(job: Job) -> None:
    """Trains a reward model on preference pairs, or goes on where the last attempt stopped.

    Raises StoppedAfterSave when asked to stop, UsageError for what is missing or does not fit.
    """
    outputs = Outputs(job)
    if not job.params.reward.enabled:
        outputs.skip("weights")
        return
    make_deterministic()
    base = _base(job)
    with (
        joined_ranks(job.params.run.collective_timeout_s) as ranks,
        open_store(job, base_sha256=job.input_hashes["sft" if base == job.inputs["sft"] else "model"]) as store,
    ):
        session = RewardSession(
            ranks=ranks,
            store=store,
            stop=StopFlag(job.directory.control, job.attempt),
            run=job.params.run,
            seed=job.params.seed,
            log_metrics=job.log_metrics,
            found=checkpoint_to_go_on_from(job, store),
            elastic=bool(job.options.get("elastic") or job.options.get("continue_from")),
            until_step=job.options.get("until_step"),
        )
        trainer, num_too_long = _trainer(job, base, session)
        _train(job, trainer)
        metrics = {**_accuracy(job, trainer, ranks), "num_too_long_train": float(num_too_long)}
        if job.is_main:
            _write_outputs(job, outputs, trainer, metrics)
        _write_outcome(job, trainer, "complete")


def _base(job: Job) -> Path:
    """What PPO's backbone will be: the fine-tuned model where SFT trained all parameters, else the base model."""
    return job.inputs["sft"] if read_manifest(job.inputs["sft"])["kind"] == "model" else job.inputs["model"]


def _trainer(job: Job, base: Path, session: RewardSession) -> tuple[PairTrainer, int]:
    reward, ranks = job.params.reward, session.ranks
    tokenizer = load_tokenizer(base)
    pairs, num_too_long = tokenised_pairs(job.inputs["preferences"] / "train.jsonl", tokenizer, reward.max_length)
    shape = BatchShape.of_global_size(
        reward.global_batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        per_device=reward.per_device_train_batch_size,
    )
    max_steps = reward.max_steps or max(1, -int(-reward.num_train_epochs * len(pairs) // shape.global_size))
    order = EpochOrder(len(pairs), derived_seed(job.params.seed, "reward order"))
    model = load_model(base, frozen(job.params.model, job.params.model.quantization), device=ranks.device)
    trainer = PairTrainer(
        add_lora(model, reward.lora, seed=derived_seed(job.params.seed, "reward adapter"), adapter_name=Role.REWARD),
        reward_arguments(
            reward,
            seed=job.params.seed,
            max_steps=max_steps,
            num_accumulation_steps=shape.num_accumulation_steps,
            device=ranks.device,
            folder=job.directory.scratch,
        ),
        tokenizer=tokenizer,
        pairs=pairs,
        sampler=StepSampler(order, shape, start_step=session.start_step, max_steps=max_steps),
        session=session,
    )
    return trainer, num_too_long


def _train(job: Job, trainer: PairTrainer) -> None:
    trainer.train()
    trainer.session.stop.settle()
    trainer.session.store.wait()
    if trainer.stopped:
        _write_outcome(job, trainer, "stopped")
        raise StoppedAfterSave(f"saved at step {trainer.state.global_step}; repeat the command to go on")


def _accuracy(job: Job, trainer: PairTrainer, ranks: Ranks) -> dict[str, float]:
    """How often the chosen text of a held-out pair gets the higher reward, over all ranks."""
    tokenizer = trainer.processing_class
    pairs, num_too_long = tokenised_pairs(
        job.inputs["preferences"] / "eval.jsonl", tokenizer, job.params.reward.max_length
    )
    trainer.model.eval()
    mine = range(ranks.rank, len(pairs), ranks.world_size)
    right = num_ranked_right(
        lambda tokens, mask: trainer.rewards(trainer.model, tokens, mask),
        pairs,
        mine,
        tokenizer.pad_token_id,
        ranks.device,
        batch_size=job.params.reward.per_device_eval_batch_size,
    )
    total = float(Replicas.current().sum(trainer.head.bias.new_tensor(float(right))))
    return {"eval_accuracy": total / len(pairs), "num_eval_pairs": len(pairs), "num_too_long_eval": num_too_long}


def _write_outputs(job: Job, outputs: Outputs, trainer: PairTrainer, metrics: dict[str, float]) -> None:
    manifest = export_reward_model(trainer.model, trainer.head, outputs.weights, base=job.params.model.path)
    outputs.json("metrics.json", {"num_steps": trainer.state.global_step, **metrics})
    outputs.publish({"weights_sha256": manifest["weights_sha256"]})


def _write_outcome(job: Job, trainer: PairTrainer, reason: str) -> None:
    job.write_outcome(
        {
            "reason": reason,
            "start_step": trainer.session.start_step,
            "end_step": max(trainer.session.start_step, trainer.state.global_step),
            "peak_memory_bytes": peak_memory_bytes(trainer.session.ranks.device),
        }
    )


if __name__ == "__main__":
    main(run)
