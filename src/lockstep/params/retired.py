"""Names that people paste from older scripts, and what to write today."""

from __future__ import annotations

_ANYWHERE = {
    "warmup_ratio": "It is gone from Transformers 5; write warmup_steps (a number below 1 is a fraction of all steps).",
    "overwrite_output_dir": "It is gone; a run's folder follows from its locks, and LOCKSTEP_FRESH=1 forces a new run.",
    "output_dir": "A run's folder follows from its locks; LOCKSTEP_RUNS sets where runs live.",
    "logging_dir": "It is gone; metrics are in the run folder and in MLflow.",
    "save_safetensors": "It is gone; weights are always safetensors.",
    "evaluation_strategy": "Write eval_steps (0 turns evaluation off).",
    "eval_strategy": "Write eval_steps (0 turns evaluation off).",
    "save_strategy": "Write run.save_steps.",
    "report_to": "Metrics always go to the run folder and to MLflow (run.tracking_uri).",
    "max_seq_length": "It is data.sft.max_length now.",
    "max_length": "It is data.sft.max_length.",
    "packing": "It is data.sft.packing.",
    "dataset_text_field": "Name the data with data.sft.sources.",
    "no_cuda": "The device follows from the machine; use_cpu and no_cuda are gone.",
    "use_cpu": "The device follows from the machine.",
    "bf16": "Write model.precision.compute: bf16 (the one switch for precision).",
    "fp16": "Write model.precision.compute: fp16 (the one switch for precision).",
    "torch_dtype": "Write model.master_dtype and model.precision.",
    "load_in_8bit": "Write it under model.quantization.",
    "load_in_4bit": "Write it under model.quantization.",
    "fsdp": "Sharding follows from sft.num_processes; dp_replicate_size makes it hybrid.",
    "fsdp_config": "Sharding follows from sft.num_processes; dp_replicate_size makes it hybrid.",
    "deepspeed": "Lockstep shards with FSDP2.",
    "data_seed": "There is one seed, at top level.",
    "seed": "There is one seed, at top level.",
    "resume_from_checkpoint": "Resume needs no flag: run the stage again.",
    "ppo_epochs": "It is num_ppo_epochs.",
    "init_kl_coef": "It is kl_coef.",
    "target": "It is ppo.kl_target (adaptive KL).",
    "batch_size": "In PPO it is rollout_batch_size; in SFT per_device_train_batch_size.",
    "mini_batch_size": "Write num_mini_batches.",
    "model_name_or_path": "Write model.source.",
    "lora_r": "It is r, under peft or lora.",
}
_OPERATIONAL = (
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "save_every",
    "keep_best",
    "asynchronous_save",
    "on_save_failure",
    "sample_steps",
    "tracking_uri",
    "experiment_name",
)


def successor(key: str) -> str:
    """What to write instead of the dotted `key`; an empty string when nothing is known about it."""
    section, _, name = key.rpartition(".")
    if name in _OPERATIONAL and section != "run":
        return f"It decides no result: write run.{name}."
    return _ANYWHERE.get(name, "")
