"""Low-rank adapters (PEFT) on a frozen base, which may be sharded or quantised; always in fp32, equal on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.foundation.errors import UsageError
from lockstep.params.model import LoraParams

WEIGHTS = "adapter_model.safetensors"


def lora_config(lora: LoraParams) -> LoraConfig:
    """The parameters as PEFT takes them."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        use_rslora=lora.use_rslora,
    )


def add_lora(
    model: PreTrainedModel | PeftModel, lora: LoraParams, *, seed: int, adapter_name: str = "default"
) -> PeftModel:
    """Freezes the base and adds a fresh, trainable adapter, initialised from `seed` alone (so alike on every rank).

    Raises UsageError when no module of the model matches `target_modules`.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            if isinstance(model, PeftModel):
                model.add_adapter(adapter_name, lora_config(lora))
            else:
                model = get_peft_model(model, lora_config(lora), adapter_name=adapter_name)
        except ValueError as error:
            raise UsageError(f"The adapter does not fit the model: {error}") from None
    _to_fp32(model, adapter_name)
    return model


def load_adapter(
    model: PreTrainedModel | PeftModel, folder: Path, *, adapter_name: str, is_trainable: bool = False
) -> PeftModel:
    """Adds the adapter saved in `folder`. Raises UsageError when it is not there or does not fit the model."""
    if not (folder / WEIGHTS).is_file():
        raise UsageError(f"There is no adapter in {folder} (no {WEIGHTS}).")
    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = not is_trainable
    # The name in the file is machine-independent on purpose; PEFT would warn that the model's folder has another one.
    config.base_model_name_or_path = None
    if isinstance(model, PeftModel):
        model.add_adapter(adapter_name, config)
    else:
        model = get_peft_model(model, config, adapter_name=adapter_name)
    _to_fp32(model, adapter_name)
    _fill(model, adapter_name, load_file(folder / WEIGHTS), folder)
    return model


def adapter_parameters(model: PeftModel, adapter_name: str = "default") -> dict[str, torch.nn.Parameter]:
    """The adapter's parameters by full name, whether trainable at the moment or not."""
    part = f".{adapter_name}."
    return {name: p for name, p in model.named_parameters() if "lora_" in name and part in name}


def adapter_tensors(model: PeftModel, adapter_name: str = "default") -> dict[str, Tensor]:
    """The adapter as PEFT saves it: whole CPU tensors by the names of an adapter file.

    PEFT's own `get_peft_model_state_dict` gathers the whole sharded base on every rank to find them.
    """
    parameters = adapter_parameters(model, adapter_name).items()
    return {_name_in_file(name, adapter_name): p.detach().cpu().contiguous() for name, p in parameters}


def adapter_config(model: PeftModel, adapter_name: str, base: str) -> dict[str, Any]:
    """The content of adapter_config.json with `base` as the base model's name; equal for equal adapters."""
    config = model.peft_config[adapter_name].to_dict()
    config.update(base_model_name_or_path=base, inference_mode=True)
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}


def _to_fp32(model: PeftModel, adapter_name: str) -> None:
    """Small updates vanish in 16-bit adapters, and a resumed run would go on in another dtype than it started in."""
    for parameter in adapter_parameters(model, adapter_name).values():
        parameter.data = parameter.data.float()


def _name_in_file(name: str, adapter_name: str) -> str:
    return name.replace(f".{adapter_name}.", ".")


def _fill(model: PeftModel, adapter_name: str, saved: dict[str, Tensor], folder: Path) -> None:
    parameters = {_name_in_file(n, adapter_name): p for n, p in adapter_parameters(model, adapter_name).items()}
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    saved_shapes = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    if differing := sorted(set(shapes.items()) ^ set(saved_shapes.items())):
        raise UsageError(f"The adapter in {folder} does not fit this model, first at {differing[0][0]}.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])
