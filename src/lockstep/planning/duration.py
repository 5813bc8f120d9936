"""How long a stage takes: model FLOPs over peak FLOP/s at a stated range of utilisation, and decoding by bandwidth."""

from __future__ import annotations

from transformers import PretrainedConfig

from lockstep.params.experiment import Experiment
from lockstep.params.ppo import PpoParams
from lockstep.planning.hardware import Hardware
from lockstep.planning.results import Range, TimeUse
from lockstep.training.common.throughput import FlopsModel

SHARDED = Range(0.5, 0.25)
"""Of peak FLOP/s, best and worst. torchtitan measured 50.5 % for Llama-2-70B on 64 A100-80GB (docs/performance.md)."""
QUANTISED = Range(0.25, 0.08)
"""Of peak FLOP/s with a quantised base: every weight is expanded before it multiplies."""
DECODING = Range(0.4, 0.08)
"""Of peak memory bandwidth while tokens are generated one by one in eager mode."""
_HOUR_S = 3600


def sft_time(
    experiment: Experiment, config: PretrainedConfig, hardware: Hardware, sizes: dict[str, int], num_steps: int | None
) -> TimeUse:
    """Packed rows are full, and every token carries loss: an upper bound of the work."""
    sft, length = experiment.sft, experiment.data.sft.max_length
    tokens = sft.global_batch_size * length
    flops = flops_model(config, sizes).flops(tokens, tokens, length)
    utilisation = SHARDED if experiment.model.quantization is None else QUANTISED
    return _time(tokens, num_steps, flops, hardware, experiment, sft.num_processes, utilisation)


def ppo_time(experiment: Experiment, config: PretrainedConfig, hardware: Hardware, sizes: dict[str, int]) -> TimeUse:
    """Rollout by bandwidth; policy, reference and update by FLOPs. Completions are as long as allowed."""
    ppo, model = experiment.ppo, flops_model(config, sizes)
    length = ppo.max_prompt_length + ppo.max_new_tokens
    rows, new = ppo.rollout_batch_size, ppo.rollout_batch_size * ppo.max_new_tokens
    num_forwards = 2 + (1 if ppo.value.adapter else 0) + (1 if ppo.reward.kind == "model" else 0)
    forward = model.flops(rows * length, new, length) / 2  # of 4N + 2N_trained, N_trained being small: the forward half
    update = model.flops(rows * length, new, length) * ppo.num_ppo_epochs * (2 if ppo.value.adapter else 1)
    flops = num_forwards * forward + update
    quantised = ppo.backbone_quantization(experiment.model) is not None
    time = _time(
        new, ppo.max_steps, flops, hardware, experiment, ppo.num_processes, QUANTISED if quantised else SHARDED
    )
    if time.step_s is None or hardware.gpu is None:
        return time
    decoding = _decoding_s(ppo, sizes, hardware.gpu.bandwidth_bytes_per_s)
    step = Range(time.step_s.best + decoding.best, time.step_s.worst + decoding.worst)
    return _with_hours(time, step, ppo.num_processes)


def flops_model(config: PretrainedConfig, sizes: dict[str, int]) -> FlopsModel:
    """The counts of the whole model."""
    return FlopsModel(
        num_body=sizes["num_body"],
        num_body_trained=sizes["num_body_trained"],
        num_head=sizes["num_head"],
        head_trained=sizes["num_head_trained"] > 0,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
    )


def _decoding_s(ppo: PpoParams, sizes: dict[str, int], bandwidth: float) -> Range:
    passes = ppo.max_new_tokens * (ppo.prompts_per_rank // ppo.per_device_rollout_batch_size)
    at_peak = passes * sizes["local_model_bytes"] / bandwidth
    return Range(at_peak / DECODING.best, at_peak / DECODING.worst)


def _time(
    tokens: int,
    num_steps: int | None,
    flops: float,
    hardware: Hardware,
    experiment: Experiment,
    num_ranks: int,
    utilisation: Range,
) -> TimeUse:
    if hardware.gpu is None:
        return TimeUse(tokens, num_steps, flops, None)
    at_peak = flops / num_ranks / hardware.gpu.peak_flops(experiment.model.precision.compute)
    time = TimeUse(tokens, num_steps, flops, utilisation)
    return _with_hours(time, Range(at_peak / utilisation.best, at_peak / utilisation.worst), num_ranks)


def _with_hours(time: TimeUse, step_s: Range, num_ranks: int) -> TimeUse:
    hours = gpu_hours = None
    if time.num_steps is not None:
        hours = Range(step_s.best * time.num_steps / _HOUR_S, step_s.worst * time.num_steps / _HOUR_S)
        gpu_hours = Range(hours.best * num_ranks, hours.worst * num_ranks)
    return TimeUse(
        time.tokens_per_step, time.num_steps, time.flops_per_step, time.utilisation, step_s, hours, gpu_hours
    )
