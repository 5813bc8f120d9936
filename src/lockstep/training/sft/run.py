"""One attempt of supervised fine-tuning, from loaded parts to trained weights."""

from __future__ import annotations

from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lockstep.data.order import EpochOrder
from lockstep.data.store import TokenStore
from lockstep.foundation.errors import StoppedAfterSave, UsageError
from lockstep.models.adapters import add_lora
from lockstep.models.loading import load_model
from lockstep.models.sharding import Layout
from lockstep.params.experiment import Experiment
from lockstep.training.common.batches import BatchShape, StepSampler
from lockstep.training.common.determinism import derived_seed
from lockstep.training.common.ranks import Ranks
from lockstep.training.sft.arguments import num_steps, training_arguments
from lockstep.training.sft.batches import Collate
from lockstep.training.sft.resume import restore_weights
from lockstep.training.sft.trainer import ResumableSFTTrainer, Session


def build_model(folder: Path, experiment: Experiment, ranks: Ranks) -> PreTrainedModel | PeftModel:
    """The model of this run as training begins: sharded over the ranks unless quantised, with fresh adapters if asked.

    Raises UsageError as `load_model` and `add_lora` do.
    """
    sft = experiment.sft
    if ranks.world_size % sft.dp_replicate_size:
        raise UsageError(f"{ranks.world_size} ranks do not divide into sft.dp_replicate_size {sft.dp_replicate_size}.")
    model = load_model(
        folder,
        experiment.model,
        device=ranks.device,
        layout=Layout(ranks.world_size, sft.dp_replicate_size),
        attention_dropout=sft.attention_dropout,
    )
    if sft.peft is None:
        return model
    return add_lora(model, sft.peft, seed=derived_seed(experiment.seed, "adapter"))


def build_trainer(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    train: TokenStore,
    held_out: TokenStore,
    collate: Collate,
    session: Session,
    folder: Path,
) -> ResumableSFTTrainer:
    """The trainer, with the data seen from this rank. Raises UsageError for an empty store."""
    sft, ranks = session.sft, session.ranks
    for store in (train, held_out):
        if not len(store):
            raise UsageError(f"{store.path} holds no rows, so there is nothing to train or measure on.")
    max_steps = num_steps(sft, len(train))
    shape = BatchShape.of_global_size(
        sft.global_batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        per_device=sft.per_device_train_batch_size,
    )
    order = EpochOrder(len(train), derived_seed(session.seed, "order"))
    return ResumableSFTTrainer(
        model,
        training_arguments(
            sft,
            seed=session.seed,
            max_steps=max_steps,
            num_accumulation_steps=shape.num_accumulation_steps,
            device=ranks.device,
            folder=folder,
        ),
        tokenizer=tokenizer,
        train_dataset=train.dataset,
        eval_dataset=held_out.dataset,
        sampler=StepSampler(order, shape, start_step=session.start_step, max_steps=max_steps),
        global_batch_size=shape.global_size,
        collate=collate,
        session=session,
    )


def train(trainer: ResumableSFTTrainer) -> None:
    """Runs the steps that are still to do; a run whose last step is saved only gets its weights back. Collective.

    Raises StoppedAfterSave when a stop was agreed and the state is saved, LockstepError when saving failed.
    """
    session = trainer.session
    if session.found is not None and session.found.step >= trainer.args.max_steps:
        trainer.counts = restore_weights(trainer.model, session.store, session.found)
        return
    trainer.train()
    session.store.wait()
    if trainer.stopped:
        session.store.confirm(trainer.state.global_step)
        raise StoppedAfterSave(f"Saved at step {trainer.state.global_step} of {trainer.args.max_steps}.")
