"""What each technique saves on every GPU: sharding, LoRA, 8 and 4 bits, shared roles, checkpointing."""

from __future__ import annotations

from dataclasses import replace

from lockstep.params.experiment import Experiment
from lockstep.planning.plan import Subject, plan_stage
from lockstep.planning.results import Saving, StagePlan

_ADAM_STATES = 2
_FP32, _BF16, _INT8, _NF4 = 4.0, 2.0, 1.0, 0.5 + 4 / 64
"""Bytes per weight; NF4 with one fp32 scale for 64 weights."""


def with_savings(plan: StagePlan, subject: Subject) -> StagePlan:
    """The plan with a table of savings. Checkpointing is simulated both ways, the rest is arithmetic on what stays."""
    savings = _sft(plan, subject.experiment) if plan.stage == "sft" else _ppo(plan, subject)
    return replace(plan, savings=[*savings, _checkpointing(plan, subject)])


def _sft(plan: StagePlan, experiment: Experiment) -> list[Saving]:
    sft, n, ranks = experiment.sft, plan.num_parameters, plan.num_ranks // experiment.sft.dp_replicate_size
    full = n * (_FP32 + _FP32 + _ADAM_STATES * _FP32)
    kept = {"fp32": _FP32, "bf16": _BF16}[experiment.model.master_dtype]
    small = plan.num_trained if sft.peft is not None else _typical_adapter(n)
    adapted = n * kept + small * (1 + 1 + _ADAM_STATES) * _FP32
    return [
        Saving(
            "sharding (FSDP2)",
            ranks > 1,
            int(full / ranks),
            int(full),
            f"parameters, gradients, Adam over {ranks} ranks",
        ),
        Saving("LoRA", sft.peft is not None, int(adapted), int(full), "gradients and Adam of the adapter alone"),
        *_quantisation(experiment.model.quantization, n),
    ]


def _ppo(plan: StagePlan, subject: Subject) -> list[Saving]:
    experiment = subject.experiment
    n, quantization = plan.num_parameters, experiment.ppo.backbone_quantization(experiment.model)
    width = _width(quantization)
    roles = 3 + (1 if experiment.ppo.reward.kind == "model" else 0)
    full = n * (_FP32 + _FP32 + _ADAM_STATES * _FP32)
    adapted = n * _FP32 + plan.num_trained * (1 + 1 + _ADAM_STATES) * _FP32
    copies = f"policy, reference, value{' and reward' if roles == 4 else ''} on one backbone, not {roles}"
    return [
        Saving("shared backbone", True, int(n * width), int(n * width * roles), copies),
        Saving("LoRA", True, int(adapted), int(full), "gradients and Adam of the adapter alone"),
        *_quantisation(quantization, n),
    ]


def _quantisation(quantization: object | None, num_parameters: int) -> list[Saving]:
    in_8bit, in_4bit = (bool(getattr(quantization, name, False)) for name in ("load_in_8bit", "load_in_4bit"))
    how = "all linear layers but the head, against bf16; embeddings and head stay in bf16 and are left out here"
    bf16 = int(num_parameters * _BF16)
    return [
        Saving("8-bit base", in_8bit, int(num_parameters * _INT8), bf16, how),
        Saving("NF4 base", in_4bit, int(num_parameters * _NF4), bf16, how),
    ]


def _checkpointing(plan: StagePlan, subject: Subject) -> Saving:
    stage, experiment = plan.stage, subject.experiment
    name = "activation_checkpointing" if stage == "sft" else "gradient_checkpointing"
    params = getattr(experiment, stage)
    used = bool(getattr(params, name))
    other = experiment.model_copy(update={stage: params.model_copy(update={name: not used})})
    toggled = plan_stage(stage, replace(subject, experiment=other))
    with_it, without = (plan, toggled) if used else (toggled, plan)
    return Saving("activation checkpointing", used, with_it.peak_bytes, without.peak_bytes, "simulated, whole peak")


def _width(quantization: object | None) -> float:
    if getattr(quantization, "load_in_8bit", False):
        return _INT8
    return _NF4 if getattr(quantization, "load_in_4bit", False) else _BF16


def _typical_adapter(num_parameters: int) -> int:
    return num_parameters // 500
