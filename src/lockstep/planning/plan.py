"""From an experiment and hardware to a plan: each training stage simulated, and arithmetic around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import read_json
from lockstep.models.sharding import check_plan
from lockstep.params.experiment import Experiment
from lockstep.planning.duration import ppo_time, sft_time
from lockstep.planning.hardware import Hardware
from lockstep.planning.layers import Sample
from lockstep.planning.ppo import frozen_base, sample_ppo
from lockstep.planning.results import PHASES, PLANNED, Kind, PhaseUse, Plan, StagePlan
from lockstep.planning.sft import sample_sft
from lockstep.planning.storage import storage_use


@dataclass(frozen=True)
class Subject:
    """What is planned."""

    experiment: Experiment
    config: PretrainedConfig
    hardware: Hardware


def plan_experiment(name: str, subject: Subject, stages: tuple[str, ...] = PLANNED) -> Plan:
    """The plan of each stage in `stages` that is enabled.

    Raises UsageError if none is, or the model cannot be sharded.
    """
    enabled = [stage for stage in stages if getattr(subject.experiment, stage).enabled]
    if not enabled:
        raise UsageError(f"None of the stages {', '.join(stages)} is enabled, so there is nothing to plan.")
    return Plan(name, subject.hardware.name, [plan_stage(stage, subject) for stage in enabled])


def plan_stage(stage: str, subject: Subject) -> StagePlan:
    """The plan of `sft` or `ppo`."""
    return _sft(subject) if stage == "sft" else _ppo(subject)


def read_config(experiment: Experiment, project: Path) -> PretrainedConfig:
    """The model's configuration: that of the model folder if it is there, else the architecture that is named.

    Raises UsageError where neither exists, or describes no causal language model.
    """
    model = experiment.model
    scratch = model.source.partition(":")[2] if model.source.startswith("scratch:") else None
    candidates = [project / model.path / "config.json"]
    candidates += [project / name for name in (model.architecture, scratch) if name is not None]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise UsageError(
            f"There is no {candidates[0].relative_to(project)} yet. Fetch the model (./lockstep fetch), or name a "
            "config.json in model.architecture to plan without it."
        )
    facts: dict[str, Any] = read_json(found)
    try:
        config: PretrainedConfig = AutoConfig.for_model(**facts)
    except (KeyError, ValueError) as error:
        raise UsageError(f"{found} does not describe a model that Transformers knows: {error}") from None
    config.use_cache = False
    # No implementation keeps the whole attention matrix except `eager`, so flash attention plans as SDPA does.
    config._attn_implementation = "eager" if model.attn_implementation == "eager" else "sdpa"
    return config


def _sft(subject: Subject) -> StagePlan:
    experiment, config, hardware = subject.experiment, subject.config, subject.hardware
    sft = experiment.sft
    if sft.num_processes > 1 and experiment.model.quantization is None:
        check_plan(config)
    sample = sample_sft(config, experiment, hardware.device)  # type: ignore[arg-type]
    storage = storage_use(experiment, hardware, sft.num_processes, sample.sizes, sft.max_steps, sft=True)
    time = sft_time(experiment, config, hardware, sample.sizes, sft.max_steps)
    notes = [] if sft.max_steps is not None else ["The number of steps follows from the data, so hours are not known."]
    return _stage("sft", sft.num_processes, subject, sample, storage=storage, time=time, notes=notes)


def _ppo(subject: Subject) -> StagePlan:
    experiment, config, hardware = subject.experiment, subject.config, subject.hardware
    ppo = experiment.ppo
    sample = sample_ppo(config, experiment, hardware.device)  # type: ignore[arg-type]
    base = experiment.model_copy(update={"model": frozen_base(experiment)})
    storage = storage_use(base, hardware, ppo.num_processes, sample.sizes, ppo.max_steps, sft=False)
    time = ppo_time(experiment, config, hardware, sample.sizes)
    notes = []
    if ppo.reward.kind == "classifier":
        notes.append("The reward classifier lies on the same GPU and is not counted: about 0.3 GiB for a DistilBERT.")
    return _stage("ppo", ppo.num_processes, subject, sample, storage=storage, time=time, notes=notes)


def _stage(stage: str, num_ranks: int, subject: Subject, sample: Sample, **parts: Any) -> StagePlan:
    hardware = subject.hardware
    phases = _phases(sample)
    fullest = max(phases.values(), key=lambda phase: phase.total_bytes)
    return StagePlan(
        stage=stage,
        num_ranks=num_ranks,
        num_nodes=hardware.num_nodes(num_ranks),
        capacity_bytes=hardware.capacity_bytes(num_ranks),
        phases=phases,
        allowance=hardware.allowance(num_ranks, fullest.kinds),
        num_parameters=sample.sizes["num_parameters"],
        num_trained=sample.sizes["num_trained"],
        host_capacity_bytes=hardware.host_memory_bytes,
        **parts,
    )


def _phases(sample: Sample) -> dict[str, PhaseUse]:
    """The fullest point of each simulated phase, and the phases in which nothing is computed."""
    fullest: dict[str, PhaseUse] = {}
    for moment, kinds in sample.peaks.items():
        use = PhaseUse({str(kind): size for kind, size in kinds.items()}, moment.part)
        if moment.phase not in fullest or use.total_bytes > fullest[moment.phase].total_bytes:
            fullest[moment.phase] = use
    idle = fullest["idle"]
    # A shard is read in its on-disk dtype and cast; quantising holds the 16-bit weight beside what is made of it.
    staging = 2 * sample.sizes["largest_tensor_weights"]
    loaded = {**dict.fromkeys(idle.kinds, 0), Kind.PARAMETERS: idle.kinds[Kind.PARAMETERS], Kind.TEMPORARY: staging}
    fullest["load"] = PhaseUse({str(kind): size for kind, size in loaded.items()})
    # Saved and restored piece by piece, in place: the state itself is all that is there (checkpoints/).
    fullest["save"], fullest["resume"] = replace(idle, part=""), replace(idle, part="")
    fullest.setdefault("export", replace(idle, part=""))
    return {name: fullest[name] for name in PHASES if name in fullest}
