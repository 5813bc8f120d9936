"""The typed parameters as TRL's SFTConfig, with everything that we do ourselves turned off."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from trl import SFTConfig

from lockstep.params.sft import SftParams
from lockstep.training.sft.adamw8bit import AdamW8bit


def training_arguments(
    sft: SftParams, *, seed: int, max_steps: int, num_accumulation_steps: int, device: torch.device, folder: Path
) -> SFTConfig:
    """What the trainer is told. Precision is the model's affair, so bf16 and fp16 (which mean autocast) are off.

    The NaN filter is off, because it reads the loss back at every step, and hides what it finds.
    """
    _silence_what_is_meant_to_be()
    return SFTConfig(
        output_dir=str(folder),
        seed=seed,
        max_steps=max_steps,
        per_device_train_batch_size=sft.per_device_train_batch_size,
        per_device_eval_batch_size=sft.per_device_eval_batch_size,
        gradient_accumulation_steps=num_accumulation_steps,
        learning_rate=sft.learning_rate,
        lr_scheduler_type=sft.lr_scheduler_type,
        warmup_steps=sft.warmup_steps,
        weight_decay=sft.weight_decay,
        adam_beta1=sft.adam_beta1,
        adam_beta2=sft.adam_beta2,
        adam_epsilon=sft.adam_epsilon,
        max_grad_norm=sft.max_grad_norm,
        optim="adamw_torch" if sft.optim == "adamw_8bit" else sft.optim,  # ours, see `optimizer_class`
        activation_checkpointing=sft.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": True},
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
        # Otherwise the whole model's gradients lie unsharded on every rank between micro-batches (257 GiB at 70B).
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        average_tokens_across_devices=True,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        dataloader_num_workers=sft.dataloader_num_workers,
    )


def optimizer_class(sft: SftParams) -> tuple[type[torch.optim.Optimizer], dict[str, Any]] | None:
    """An optimiser that Transformers does not make itself, and its options; None where it does."""
    if sft.optim != "adamw_8bit":
        return None
    betas = (sft.adam_beta1, sft.adam_beta2)
    return AdamW8bit, {"lr": sft.learning_rate, "betas": betas, "eps": sft.adam_epsilon}


def _silence_what_is_meant_to_be() -> None:
    """Warnings about a group of one process (the checkpoint store's) and about names inside TRL."""
    logging.getLogger("transformers.training_args").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)


def num_steps(sft: SftParams, num_rows: int) -> int:
    """Optimiser steps of the whole run: `max_steps`, or as many whole batches as cover `num_train_epochs`."""
    if sft.max_steps is not None:
        return sft.max_steps
    return max(1, -int(-sft.num_train_epochs * num_rows // sft.global_batch_size))
