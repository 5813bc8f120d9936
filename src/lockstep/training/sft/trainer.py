"""TRL's SFTTrainer with our data order, loss, checkpoints and stop. The loop itself stays TRL's and Transformers'."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.data.store import IGNORED
from lockstep.foundation.errors import DoNotRetryError, StoppedAfterSave
from lockstep.params.run import RunParams
from lockstep.params.sft import SftParams
from lockstep.training.common.batches import StepSampler
from lockstep.training.common.determinism import derived_seed, seed_global_generators
from lockstep.training.common.ranks import Ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.sft.arguments import optimizer_class
from lockstep.training.sft.batches import Collate, training_loader
from lockstep.training.sft.evaluation import HeldOut, evaluate
from lockstep.training.sft.loss import head_for
from lockstep.training.sft.progress import Progress, StepReport, summed_over_ranks
from lockstep.training.sft.resume import Counts, TrainingState
from lockstep.training.sft.scaling import leave_skipping_to_the_scaler, loss_scaler


@dataclass(frozen=True)
class Session:
    """What surrounds the training of one attempt."""

    ranks: Ranks
    store: CheckpointStore
    stop: StopFlag
    progress: Progress
    sft: SftParams
    run: RunParams
    seed: int
    found: Found | None = None
    """The checkpoint to go on from."""
    elastic: bool = False
    until_step: int | None = None
    """Save and stop after this step, as if asked to."""

    @property
    def start_step(self) -> int:
        """Steps that were done before this attempt."""
        return 0 if self.found is None else self.found.step


class ResumableSFTTrainer(SFTTrainer):
    """Trains from `session.start_step` to `args.max_steps`, or until a stop is agreed; then `stopped` is True.

    The whole run is one epoch to the trainer; data order, epochs and the position in them belong to the sampler.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: SFTConfig,
        *,
        tokenizer: PreTrainedTokenizerBase,
        train_dataset: Dataset,
        eval_dataset: Dataset,
        sampler: StepSampler,
        global_batch_size: int,
        collate: Collate,
        session: Session,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            data_collator=collate,
            optimizer_cls_and_kwargs=optimizer_class(session.sft),
        )
        _keep_adapters_in_fp32(self.model)
        self.model_accepts_loss_kwargs = True
        self.session = session
        self.counts = Counts()
        self.stopped = False
        self.held_out: HeldOut | None = None
        self._sampler = sampler
        self._global_batch_size = global_batch_size
        self._collate = collate
        self._head = head_for(self.model, session.ranks.device)
        self.accelerator.scaler = loss_scaler(session.progress.compute, session.ranks.device)
        self._handled_step = session.start_step
        self._seen = torch.zeros(2, dtype=torch.int64, device=session.ranks.device)
        """This rank's (tokens, supervised tokens) of the current step."""

    @property
    def scaler(self) -> GradScaler | None:
        """The loss scaler of fp16."""
        return self.accelerator.scaler

    # What Transformers asks for

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro-batches of this rank, from the first step that is still to do."""
        return training_loader(self.train_dataset, self._sampler, self._collate, self.args.dataloader_num_workers)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted here (`Progress` does), because it walks the whole model for every micro-batch."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Nothing: `_maybe_log_save_evaluate` reports every step itself."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Summed loss of this micro-batch over the supervised tokens of the *global* batch.

        FSDP2 and DDP average gradients over ranks, hence the factor. So k accumulation steps equal one k-fold batch.
        """
        num_tokens = inputs.pop("num_tokens")
        nll = self._head(model, inputs)
        self._seen += torch.stack([num_tokens, (inputs["labels"][:, 1:] != IGNORED).sum()])
        num_supervised = torch.as_tensor(num_items_in_batch, device=nll.device).clamp(min=1)
        return nll / num_supervised * self.session.ranks.world_size

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As Transformers makes it; with fp16 the scaler alone decides whether a step is taken."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if self.scaler is not None:
            leave_skipping_to_the_scaler(optimizer)
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Gradients have their true size before they are clipped."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer.optimizer)
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm of gradients of true size, also where nothing is clipped."""
        if grad_norm is None and self.scaler is not None:
            self.scaler.unscale_(self.optimizer.optimizer)
        return super()._get_grad_norm(model, grad_norm=grad_norm)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Begins at the step of the checkpoint; nothing is skipped, the sampler starts there."""
        position = super()._init_training_state(*args, **kwargs)
        self.state.global_step = self.session.start_step
        return position

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple[nn.Module, DataLoader[Any]]:
        """Seeds this rank's generators once model and optimiser stand, or puts everything back to the checkpoint."""
        prepared: tuple[nn.Module, DataLoader[Any]] = super()._prepare_for_training(*args, **kwargs)
        session = self.session
        seed_global_generators(derived_seed(session.seed, "training", session.ranks.rank))
        if session.found is not None:
            self._training_state().restore(session.store, session.found, seed=session.seed, elastic=session.elastic)
            if not self.counts.evaluated:
                self.counts.evaluated = self._evaluate_held_out(session.start_step)
        session.progress.restart_clock()
        return prepared

    def _maybe_log_save_evaluate(
        self, tr_loss: Tensor, grad_norm: Any, *_: Any, learning_rate: float | None = None, **__: Any
    ) -> None:
        """The step boundary: report, ask for a stop, evaluate, save."""
        step = self.state.global_step
        if step == self._handled_step:
            return
        self._handled_step = step
        self._report(step, tr_loss, grad_norm, learning_rate)
        stop = self.session.stop.poll() or step == self.session.until_step
        self.held_out = None
        if self._evaluation_due(step):
            self.counts.evaluated = not stop and self._evaluate_held_out(step)
            stop = stop or not self.counts.evaluated
        if stop or step % self.session.run.save_steps == 0 or step == self.args.max_steps:
            self._save_state(step)
        if stop:
            self.stopped = True
            self.control.should_training_stop = True
        self.session.progress.restart_clock()

    # Our parts of a step

    def _report(self, step: int, tr_loss: Tensor, grad_norm: Any, learning_rate: float | None) -> None:
        loss, tokens, supervised = summed_over_ranks([tr_loss, *self._seen], self.session.ranks)
        loss /= self.session.ranks.world_size
        tr_loss.zero_()
        self._seen.zero_()
        norm = _as_float(grad_norm)
        skipped = bool(self.accelerator.optimizer_step_was_skipped)
        if not (math.isfinite(loss) and (math.isfinite(norm) or skipped)):
            raise DoNotRetryError(
                f"Step {step}: loss {loss}, gradient norm {norm}. Training diverged, and would again from the last "
                "checkpoint. Lower sft.learning_rate, lengthen sft.warmup_steps, or check the data of this step."
            )
        self.counts.num_tokens += int(tokens)
        self.counts.num_supervised_tokens += int(supervised)
        self.session.progress.step(
            StepReport(
                step,
                loss,
                learning_rate or 0.0,
                None if skipped else norm,
                int(tokens),
                int(supervised),
                self.counts.num_tokens,
                None if self.scaler is None else self.scaler.get_scale(),
            )
        )

    def _evaluation_due(self, step: int) -> bool:
        every = self.session.sft.eval_steps
        return step == self.args.max_steps or (every > 0 and step % every == 0)

    def finished(self) -> HeldOut:
        """The held-out loss of the final weights, measured now if this attempt did not yet. Collective.

        Raises StoppedAfterSave if a stop was asked for: every step is done and saved by then.
        """
        if self.held_out is None and not self._evaluate_held_out(self.args.max_steps):
            self.session.store.confirm(self.args.max_steps)
            raise StoppedAfterSave("Stopped in the last evaluation; all steps are done and saved.")
        assert self.held_out is not None
        return self.held_out

    def _evaluate_held_out(self, step: int) -> bool:
        """False where a stop was asked for on the way."""
        session = self.session
        self.held_out = evaluate(
            self.model_wrapped,
            self._head,
            self.eval_dataset,
            self._collate,
            session.ranks,
            session.sft.per_device_eval_batch_size,
            session.stop.poll,
        )
        if self.held_out is None:
            return False
        session.progress.evaluation(step, self.held_out.loss, self.held_out.perplexity)
        return True

    def _save_state(self, step: int) -> None:
        metric = self.held_out.loss if self.held_out is not None else None
        self._training_state().save(self.session.store, step, metric)
        if (saved := self.session.store.last_saved) is not None:
            self.session.progress.last_checkpoint = saved.step

    def _training_state(self) -> TrainingState:
        return TrainingState(
            model=self.model,
            optimizer=self.optimizer.optimizer,
            scheduler=self.lr_scheduler,
            counts=self.counts,
            global_batch_size=self._global_batch_size,
            ranks=self.session.ranks,
            scaler=self.scaler,
        )


def _keep_adapters_in_fp32(model: nn.Module) -> None:
    """TRL turns adapters on a quantised base to bf16, in which small updates vanish."""
    for parameter in model.parameters():
        if parameter.requires_grad and not isinstance(parameter.data, DTensor):
            parameter.data = parameter.data.float()


def _as_float(norm: Any) -> float:
    """The gradient norm as a number; a sharded model's is a DTensor (collective)."""
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return float(norm)
