"""Reinforcement learning from a reward with LoRA-PPO: rollouts, objective, reward source, guards, batch shapes."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from lockstep.params.base import Strict
from lockstep.params.model import LoraParams, ModelParams, QuantizationParams


class RewardSourceParams(Strict):
    """Where a score of a text comes from. Adding one of your own takes a Python function and no other change."""

    kind: Literal["learned", "lexicon", "model", "classifier", "function"] = Field(
        "learned",
        description="learned: TF-IDF + logistic regression fitted to the locked reviews; lexicon: VADER; model: the "
        "adapter and head of the reward stage; classifier: a sequence classifier with its own tokenizer; "
        "function: a Python function",
    )
    file: str | None = Field(None, description="function: path.py:name, called as name(texts) -> list of floats")
    path: str | None = Field(None, description="classifier: a local Hugging Face folder")
    label: int = Field(1, ge=0, description="classifier: index of the label whose log-odds are the score")
    batch_size: int = Field(16, ge=1, description="model and classifier: texts per forward pass")
    max_length: int = Field(512, ge=8, description="model and classifier: the last this many tokens are read")
    subtract_prompt: bool = Field(
        False, description="train on what the completion adds: the text's score minus the prompt's. Same optimum"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.kind == "function") != (self.file is not None):
            raise ValueError("kind: function and file: path.py:name go together; set both or neither")
        if self.file is not None and not all(self.file.rpartition(":")[::2]):
            raise ValueError(
                f"file must look like rewards/mine.py:score, a file and a function in it, not {self.file!r}"
            )
        if (self.kind == "classifier") != (self.path is not None):
            raise ValueError("kind: classifier and path: FOLDER go together; set both or neither")
        return self


class ValueParams(Strict):
    """The critic: a scalar head in fp32, on an adapter of its own or on the policy's hidden states (detached)."""

    adapter: bool = Field(False, description="give the critic its own LoRA adapter: better values, a second forward")
    learning_rate: float | None = Field(
        None, gt=0, description="of the head; none: learning_rate / sqrt(hidden size). Its adapter has the policy's"
    )


class GuardParams(Strict):
    """What is watched in every step, and what happens when it is violated."""

    on_violation: Literal["stop", "warn"] = Field("stop", description="stop: exit 93; warn: once per guard, and go on")
    start_kl_tolerance: float = Field(1e-4, gt=0, description="largest |log-ratio to the reference| at step 0")
    ratio_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest |ratio - 1| in the first minibatch of a step; none: 1e-4 in fp32, 0.5 with a 16-bit or "
        "quantised backbone, whose rounding depends on what else is in the batch",
    )
    max_kl: float | None = Field(2.0, gt=0, description="nats per token to the reference; none: no limit")
    max_ratio: float | None = Field(20.0, gt=1, description="mean probability ratio of a minibatch; none: no limit")
    min_distinct: float | None = Field(
        0.1, gt=0, lt=1, description="distinct-2 of a step's completions, below it the policy repeats itself"
    )
    min_length: float | None = Field(
        1.5, gt=0, description="mean completion length in tokens, below it it says nothing"
    )


class PpoParams(Strict):
    """Parameters of the `ppo` stage. Names as in the last trl.PPOConfig, GenerationConfig and TrainingArguments."""

    enabled: bool = True
    num_processes: int = Field(1, ge=1, description="data-parallel ranks; each holds the backbone and its own prompts")
    device_map: Literal["auto", "balanced", "sequential"] | None = Field(
        None, description="split one backbone over several GPUs of one process; none: one device per process"
    )
    quantization: QuantizationParams | Literal["model", "off"] = Field(
        "model", description="of the backbone: as in model.quantization, none at all, or its own"
    )
    lora: LoraParams = Field(
        LoraParams(r=16, lora_alpha=32),
        description="new adapters; a policy that continues an SFT adapter has its shape",
    )
    value: ValueParams = ValueParams()
    reward: RewardSourceParams = RewardSourceParams()
    guards: GuardParams = GuardParams()

    max_steps: int = Field(20, ge=1, description="PPO steps: one rollout and its update each")
    rollout_batch_size: int = Field(16, ge=1, description="prompts per step over all ranks")
    per_device_rollout_batch_size: int = Field(16, ge=1, description="prompts per forward in rollout and scoring")
    per_device_train_batch_size: int = Field(8, ge=1, description="completions per forward and backward in the update")
    num_ppo_epochs: int = Field(2, ge=1, description="passes over each step's rollouts")
    num_mini_batches: int = Field(2, ge=1, description="optimiser steps per pass")
    max_prompt_length: int = Field(64, ge=1, description="tokens; the start of a longer prompt is cut off")
    max_new_tokens: int = Field(32, ge=1, description="tokens per completion")
    temperature: float = Field(1.0, gt=0, description="of the policy itself: sampling and scoring both use it")
    logprob_chunk_size: int = Field(256, ge=1, description="tokens whose logits exist at one time")
    gradient_checkpointing: bool = Field(False, description="recompute activations in the update; off in rollouts")
    disable_dropout: bool = Field(True, description="with dropout on, ratios differ from 1 before any update")

    learning_rate: float = Field(3e-4, gt=0)
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0, description="PPO steps over which the learning rate rises from zero")
    optim: Literal["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"] = (
        "adamw_torch"
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0, description="per role: policy and value are clipped apart; 0: never")

    kl_coef: float = Field(0.05, ge=0, description="weight of the per-token KL penalty in the reward")
    kl_estimator: Literal["k1", "k3"] = "k1"
    kl_target: float | None = Field(None, gt=0, description="nats per token that kl_coef is adapted to; none: fixed")
    kl_horizon: int = Field(10_000, ge=1, description="completions over which an adaptive kl_coef moves")
    cliprange: float = Field(0.2, gt=0, lt=1)
    cliprange_value: float = Field(0.2, gt=0)
    vf_coef: float = Field(0.1, ge=0)
    entropy_coef: float = Field(0.0, ge=0)
    gamma: float = Field(1.0, gt=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    whiten_rewards: bool = False
    whiten_advantages: bool = True
    missing_eos_penalty: float | None = Field(None, gt=0, description="subtracted from the score of unfinished texts")
    scale_rewards: bool = Field(False, description="divide scores by their running standard deviation")
    clip_rewards: float | None = Field(None, gt=0, description="scores are kept within plus or minus this")
    target_kl: float | None = Field(None, gt=0, description="end a step's epochs once approxkl exceeds it; none: never")

    @property
    def prompts_per_rank(self) -> int:
        """Prompts that each rank completes in a step."""
        return self.rollout_batch_size // self.num_processes

    @property
    def mini_batch_size(self) -> int:
        """Completions of one optimiser step on each rank."""
        return self.prompts_per_rank // self.num_mini_batches

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        _divides("num_processes", self.num_processes, "rollout_batch_size", self.rollout_batch_size)
        _divides("num_mini_batches", self.num_mini_batches, "prompts per rank", self.prompts_per_rank)
        _divides(
            "per_device_rollout_batch_size",
            self.per_device_rollout_batch_size,
            "prompts per rank",
            self.prompts_per_rank,
        )
        _divides(
            "per_device_train_batch_size",
            self.per_device_train_batch_size,
            "the minibatch per rank",
            self.mini_batch_size,
        )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("kl_target scales kl_coef, and 0 stays 0 however it is scaled; start from kl_coef: 0.05")
        if self.warmup_steps > self.max_steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) exceed max_steps ({self.max_steps})")
        if self.device_map is not None and self.num_processes > 1:
            raise ValueError("device_map splits one backbone inside one process; write num_processes: 1")
        return self

    def backbone_quantization(self, model: ModelParams) -> QuantizationParams | None:
        """How the backbone is quantised, given the `model` section."""
        if isinstance(self.quantization, QuantizationParams):
            return self.quantization
        return model.quantization if self.quantization == "model" else None


def _divides(name: str, divisor: int, what: str, number: int) -> None:
    if number % divisor:
        fits = [d for d in range(1, number + 1) if number % d == 0]
        raise ValueError(f"{name} ({divisor}) must divide {what} ({number}); these do: {', '.join(map(str, fits))}")
