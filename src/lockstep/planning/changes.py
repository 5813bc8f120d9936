"""What could be changed to make a stage fit, smallest change first, and what each change does to the experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockstep.params.experiment import Experiment
from lockstep.params.model import LoraParams, QuantizationParams
from lockstep.planning.hardware import Hardware
from lockstep.planning.plan import Subject, plan_stage
from lockstep.planning.results import StagePlan, Suggestion

_MOST_GPUS = 1024


@dataclass(frozen=True)
class Change:
    """One way to need less."""

    text: str
    apply: Callable[[Experiment], Experiment]


def suggestions(stage: str, subject: Subject, *, limit: int = 4) -> list[Suggestion]:
    """The changes that help a stage that does not fit: each alone, then together, until the plan fits.

    At most `limit` simulations. The last suggestion fits, unless none was found within the limit.
    """
    found: list[Suggestion] = []
    together = subject
    texts: list[str] = []
    for change in changes(stage, subject.experiment, subject.hardware):
        if len(found) == limit:
            break
        together = replace(together, experiment=change.apply(together.experiment))
        texts.append(change.text)
        plan = plan_stage(stage, together)
        found.append(Suggestion("; ".join(texts), plan.peak_bytes, plan.verdict))
        if plan.verdict != "no":
            break
    return found


def changes(stage: str, experiment: Experiment, hardware: Hardware) -> Iterator[Change]:
    """All changes that apply, smallest first."""
    return _sft_changes(experiment, hardware) if stage == "sft" else _ppo_changes(experiment)


def _sft_changes(experiment: Experiment, hardware: Hardware) -> Iterator[Change]:
    sft = experiment.sft
    if not sft.activation_checkpointing:
        yield _set("sft", "sft.activation_checkpointing: true", activation_checkpointing=True)
    if hardware.device == "cuda" and sft.optim == "adamw_torch":
        yield _set("sft", "sft.optim: adamw_torch_fused", optim="adamw_torch_fused")
    if sft.per_device_train_batch_size > 1:
        micro = sft.per_device_train_batch_size
        text = f"sft.per_device_train_batch_size: 1 with gradient_accumulation_steps × {micro}"
        steps = sft.gradient_accumulation_steps * micro
        yield _set("sft", text, per_device_train_batch_size=1, gradient_accumulation_steps=steps)
    if sft.num_processes < _MOST_GPUS and experiment.model.quantization is None:
        for factor in (2, 4):
            total = sft.num_processes * factor
            yield _set("sft", f"sft.num_processes: {total} (more GPUs)", num_processes=total)
    if sft.peft is None:
        yield _set("sft", "sft.peft: an adapter (LoRA) instead of all parameters", peft=LoraParams(r=16, lora_alpha=32))


def _ppo_changes(experiment: Experiment) -> Iterator[Change]:
    ppo = experiment.ppo
    if not ppo.gradient_checkpointing:
        yield _set("ppo", "ppo.gradient_checkpointing: true", gradient_checkpointing=True)
    if ppo.per_device_train_batch_size > 1:
        yield _set("ppo", "ppo.per_device_train_batch_size: 1", per_device_train_batch_size=1)
    if ppo.per_device_rollout_batch_size > 1:
        rows = max(1, ppo.per_device_rollout_batch_size // 4)
        yield _set("ppo", f"ppo.per_device_rollout_batch_size: {rows}", per_device_rollout_batch_size=rows)
    quantization = ppo.backbone_quantization(experiment.model)
    if quantization is None or quantization.load_in_8bit:
        four_bit = QuantizationParams(load_in_4bit=True, bnb_4bit_use_double_quant=True)
        yield _set("ppo", "ppo.quantization: load_in_4bit with bnb_4bit_use_double_quant", quantization=four_bit)


def _set(section: str, text: str, **values: Any) -> Change:
    def apply(experiment: Experiment) -> Experiment:
        return experiment.model_copy(update={section: getattr(experiment, section).model_copy(update=values)})

    return Change(text, apply)


def with_suggestions(plan: StagePlan, subject: Subject) -> StagePlan:
    """The plan, with changes that help where it does not fit."""
    return replace(plan, suggestions=suggestions(plan.stage, subject)) if plan.verdict == "no" else plan
