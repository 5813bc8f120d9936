"""Supervised fine-tuning: how long, how large the batches, which optimiser, sharded over how many processes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lockstep.params.base import Strict, operational
from lockstep.params.model import LoraParams, ModelParams


class SftParams(Strict):
    """Parameters of the `sft` stage. Names as in trl.SFTConfig and transformers.TrainingArguments."""

    enabled: bool = True
    num_processes: int = Field(2, ge=1, description="ranks; a full-precision model is sharded over them (FSDP2)")
    dp_replicate_size: int = Field(1, ge=1, description="HSDP: this many replicas, each sharded over the other ranks")
    peft: LoraParams | None = Field(None, description="none: all parameters are trained")
    max_steps: int | None = Field(None, ge=1, description="optimiser steps; none: follows from num_train_epochs")
    num_train_epochs: float = Field(1.0, gt=0, description="passes over the data, where max_steps is none")
    per_device_train_batch_size: int = Field(4, ge=1, description="sequences per forward pass on each rank")
    per_device_eval_batch_size: int = Field(4, ge=1, description="sequences per forward pass in evaluation")
    gradient_accumulation_steps: int = Field(1, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    lr_scheduler_type: Literal["cosine", "linear", "constant_with_warmup", "constant"] = "cosine"
    warmup_steps: int | float = Field(0.1, ge=0, description="steps, or below 1 the fraction of all steps")
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, ge=0, description="clip the global gradient norm to this; 0: never")
    optim: Literal["adamw_torch_fused", "adamw_torch", "adamw_8bit"] = Field(
        "adamw_torch_fused", description="fused needs no temporary copies; 8bit keeps Adam's moments in a byte each"
    )
    activation_checkpointing: bool = Field(False, description="recompute activations in backward: less memory, slower")
    attention_dropout: float | None = Field(None, ge=0, lt=1, description="none: as the model's own config says")
    eval_steps: int = Field(0, ge=0, description="held-out perplexity every N steps; 0: only at the end")
    dataloader_num_workers: int = operational(0, ge=0, description="processes that read ahead")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_processes % self.dp_replicate_size:
            raise ValueError(
                f"dp_replicate_size ({self.dp_replicate_size}) must divide num_processes ({self.num_processes})"
            )
        if isinstance(self.warmup_steps, float) and self.warmup_steps >= 1 and self.warmup_steps % 1:
            raise ValueError("warmup_steps is a whole number of steps, or a fraction below 1")
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) exceed max_steps ({self.max_steps})")
        return self

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimiser step over all ranks and accumulation steps."""
        return self.num_processes * self.per_device_train_batch_size * self.gradient_accumulation_steps


def check_trainable(sft: SftParams, model: ModelParams) -> None:
    """Refuses what cannot be trained. Raises ValueError that says how to mend it; for the experiment's cross-checks."""
    if not sft.enabled:
        return
    if sft.peft is None and model.quantization is not None:
        raise ValueError(
            "a quantised base is frozen, so sft needs an adapter: add sft.peft (r, lora_alpha), "
            "or leave model.quantization out to train all parameters"
        )
    if sft.dp_replicate_size > 1 and model.quantization is not None:
        raise ValueError("a quantised base is not sharded, each rank holds it whole: write sft.dp_replicate_size: 1")
