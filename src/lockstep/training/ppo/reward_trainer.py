"""TRL's RewardTrainer with our head beside the backbone, our data order, checkpoints and stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase
from trl import RewardConfig, RewardTrainer

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.store import CheckpointStore, Found
from lockstep.foundation.errors import DoNotRetryError
from lockstep.params.reward import RewardParams
from lockstep.params.run import RunParams
from lockstep.training.common import random_state
from lockstep.training.common.batches import StepSampler
from lockstep.training.common.determinism import derived_seed, seed_global_generators
from lockstep.training.common.ranks import Ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.parallel import Replicas


@dataclass(frozen=True)
class RewardSession:
    """What surrounds the training of one attempt."""

    ranks: Ranks
    store: CheckpointStore
    stop: StopFlag
    run: RunParams
    seed: int
    log_metrics: Callable[[int, dict[str, float]], None]
    found: Found | None = None
    elastic: bool = False
    until_step: int | None = None

    @property
    def start_step(self) -> int:
        """Steps that were done before this attempt."""
        return 0 if self.found is None else self.found.step


def reward_arguments(
    reward: RewardParams, *, seed: int, max_steps: int, num_accumulation_steps: int, device: torch.device, folder: Path
) -> Any:
    """What TRL is told; precision is the model's affair, and everything that we do ourselves is off."""
    return RewardConfig(
        output_dir=str(folder),
        seed=seed,
        max_steps=max_steps,
        per_device_train_batch_size=reward.per_device_train_batch_size,
        gradient_accumulation_steps=num_accumulation_steps,
        max_length=None,
        learning_rate=reward.learning_rate,
        lr_scheduler_type=reward.lr_scheduler_type,
        warmup_steps=reward.warmup_steps,
        weight_decay=reward.weight_decay,
        max_grad_norm=reward.max_grad_norm,
        center_rewards_coefficient=reward.center_rewards_coefficient,
        activation_checkpointing=reward.gradient_checkpointing,
        bf16=False,
        fp16=False,
        use_cpu=device.type == "cpu",
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        ignore_data_skip=True,
        remove_unused_columns=False,
    )


class PairTrainer(RewardTrainer):
    """Trains from `session.start_step` to `args.max_steps`, or until a stop is agreed; then `stopped` is True.

    TRL's own pooling looks for the last token that is not the pad id; where pad and end-of-text are one token it would
    read the reward one token early. Here the mask says where a text ends, and the head is ours, in fp32.
    """

    def __init__(
        self,
        model: PeftModel,
        args: RewardConfig,
        *,
        tokenizer: PreTrainedTokenizerBase,
        pairs: Dataset,
        sampler: StepSampler,
        session: RewardSession,
    ) -> None:
        model.config.num_labels = 1
        self.head = ScalarHead(int(model.config.get_text_config().hidden_size)).to(session.ranks.device)
        super().__init__(model=model, args=args, processing_class=tokenizer, train_dataset=pairs)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                # TRL turns adapters on a quantised base to bf16, in which small updates vanish.
                parameter.data = parameter.data.float()
        self.session = session
        self.stopped = False
        self._sampler = sampler
        self._replicas = Replicas.current()
        self._handled_step = session.start_step

    # What Transformers asks for

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro-batches of this rank, from the first step that is still to do."""
        return DataLoader(
            self.train_dataset,
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            generator=torch.Generator(),
        )

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """TRL's, with a group for the head (its rate is the adapters' over sqrt(hidden size), as PPO's critic's)."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        head = list(self.head.parameters())
        if not any(head[0] is parameter for group in optimizer.param_groups for parameter in group["params"]):
            rate = self.args.learning_rate / math.sqrt(self.head.weight.numel())
            optimizer.add_param_group({"params": head, "lr": rate, "weight_decay": 0.0})
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Minus the log-likelihood that the chosen text wins: Ouyang et al. (2022), arXiv:2203.02155, eq. 1.

        Plus c · mean((r_chosen + r_rejected)²), which centres rewards: Eisenstein et al. (2023), arXiv:2312.09244,
        eq. 2.
        """
        chosen, rejected = self.rewards(model, inputs["input_ids"], inputs["attention_mask"]).chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        if self.args.center_rewards_coefficient is not None:
            loss = loss + self.args.center_rewards_coefficient * ((chosen + rejected) ** 2).mean()
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of a micro-batch; behind the last one the head's gradients are averaged over ranks.

        DDP does that for the adapter. The head is no part of the wrapped model, so it is done here, in the open.
        """
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            parameters = list(self.head.parameters())
            self._replicas.sum_gradients(parameters)
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad /= self._replicas.world_size
            if self.args.max_grad_norm:
                nn.utils.clip_grad_norm_(parameters, self.args.max_grad_norm)
        return loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: it would walk the whole model for every micro-batch."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Nothing: `_maybe_log_save_evaluate` reports every step itself."""

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        position = super()._init_training_state(*args, **kwargs)
        self.state.global_step = self.session.start_step
        return position

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple[nn.Module, DataLoader[Any]]:
        prepared: tuple[nn.Module, DataLoader[Any]] = super()._prepare_for_training(*args, **kwargs)
        seed_global_generators(derived_seed(self.session.seed, "reward", self.session.ranks.rank))
        if self.session.found is not None:
            self.restore(self.session.found)
        return prepared

    def _maybe_log_save_evaluate(
        self, tr_loss: Tensor, grad_norm: Any, *_: Any, learning_rate: float | None = None, **__: Any
    ) -> None:
        """The step boundary: report, ask for a stop, save."""
        step = self.state.global_step
        if step == self._handled_step:
            return
        self._handled_step = step
        # The trainer empties the gradients of its model, of which the head is no part.
        self.head.zero_grad()
        self._report(step, tr_loss, float(grad_norm), learning_rate or 0.0)
        stop = self.session.stop.poll() or step == self.session.until_step
        if stop or step % self.session.run.save_steps == 0 or step == self.args.max_steps:
            self._save_state(step)
        if stop:
            self.stopped = True
            self.control.should_training_stop = True

    # Our parts of a step

    def rewards(self, model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
        """The head's number at the last real token of each right-padded row, (rows,), in fp32."""
        captured: list[Tensor] = []
        body = self.accelerator.unwrap_model(model).get_base_model().base_model
        handle = body.register_forward_hook(lambda _module, _inputs, output: captured.append(output.last_hidden_state))
        try:
            # Through the whole wrapped model, so that DDP sees the forward; of its logits only one position is made.
            model(input_ids=tokens, attention_mask=mask, use_cache=False, logits_to_keep=1)
        finally:
            handle.remove()
        last = mask.sum(dim=1) - 1
        return self.head(captured[0][torch.arange(len(last), device=last.device), last])

    def restore(self, found: Found) -> None:
        """Goes back to the state of `found`; on another number of ranks with new random state (collective)."""
        facts, ranks = found.manifest.facts, self.session.ranks
        if found.manifest.world_size != ranks.world_size and not self.session.elastic:
            raise DoNotRetryError(
                f"{found.path} was saved by {found.manifest.world_size} ranks and this attempt has "
                f"{ranks.world_size}. Go on with --elastic (losses agree, bits do not), or with as many ranks."
            )
        optimizer = self._optimizer_state()
        slots = optimizer.allocate(found.manifest.holds, facts["optimizer"])
        loaded = self.session.store.load(found, {**self._weights(), **slots})
        self.lr_scheduler.load_state_dict(facts["scheduler"])
        if loaded.per_rank is not None:
            random_state.restore(loaded.per_rank["random"])
        else:
            seed_global_generators(derived_seed(self.session.seed, "elastic", found.step, ranks.rank))

    def _save_state(self, step: int) -> None:
        optimizer = self._optimizer_state()
        self.session.store.save(
            step,
            {**self._weights(), **optimizer.tensors()},
            per_rank={"random": random_state.capture()},
            facts={"optimizer": optimizer.facts(), "scheduler": self.lr_scheduler.state_dict()},
        )

    def _optimizer_state(self) -> OptimizerState:
        return OptimizerState(self.optimizer.optimizer, self._trained().items())

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._trained().items()}

    def _trained(self) -> dict[str, nn.Parameter]:
        adapter = {f"adapter/{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
        return adapter | {f"head/{name}": parameter for name, parameter in self.head.named_parameters()}

    def _report(self, step: int, tr_loss: Tensor, grad_norm: float, learning_rate: float) -> None:
        loss = float(self._replicas.sum(tr_loss.detach().float())) / self._replicas.world_size
        tr_loss.zero_()
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            raise DoNotRetryError(
                f"step {step}: loss {loss}, gradient norm {grad_norm}. Lower reward.learning_rate, or check the pairs."
            )
        self.session.log_metrics(step, {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate})
        if self.session.ranks.is_main and (step % self.session.run.logging_steps == 0 or step == self.args.max_steps):
            print(f"step {step}/{self.args.max_steps}  loss {loss:.4f}  grad {grad_norm:.3f}", flush=True)
