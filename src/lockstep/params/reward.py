"""The reward model: a LoRA adapter and a scalar head on the same backbone, trained on preference pairs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lockstep.params.base import Strict
from lockstep.params.model import LoraParams


class RewardParams(Strict):
    """Parameters of the `reward` stage. Names as in trl.RewardConfig and transformers.TrainingArguments."""

    enabled: bool = True
    num_processes: int = Field(1, ge=1, description="data-parallel ranks")
    lora: LoraParams = LoraParams(r=16, lora_alpha=32)
    max_steps: int | None = Field(None, ge=1, description="optimiser steps; none: follows from num_train_epochs")
    num_train_epochs: float = Field(1.0, gt=0, description="passes over the pairs, where max_steps is none")
    per_device_train_batch_size: int = Field(4, ge=1, description="pairs per forward pass on each rank")
    per_device_eval_batch_size: int = Field(4, ge=1, description="pairs per forward pass in evaluation")
    gradient_accumulation_steps: int = Field(1, ge=1)
    max_length: int = Field(256, ge=8, description="tokens; pairs with a longer text are left out and counted")
    learning_rate: float = Field(1e-4, gt=0)
    lr_scheduler_type: Literal["cosine", "linear", "constant_with_warmup", "constant"] = "cosine"
    warmup_steps: int | float = Field(0.1, ge=0, description="steps, or below 1 the fraction of all steps")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0, description="clip the global gradient norm to this; 0: never")
    center_rewards_coefficient: float | None = Field(
        0.01, gt=0, description="pulls rewards towards mean zero (arXiv:2312.09244, eq. 2); none: not at all"
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations in backward: less memory, slower")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.warmup_steps, float) and self.warmup_steps >= 1 and self.warmup_steps % 1:
            raise ValueError("warmup_steps is a whole number of steps, or a fraction below 1")
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) exceed max_steps ({self.max_steps})")
        return self

    @property
    def global_batch_size(self) -> int:
        """Pairs per optimiser step over all ranks and accumulation steps."""
        return self.num_processes * self.per_device_train_batch_size * self.gradient_accumulation_steps
