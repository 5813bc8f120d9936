"""One PPO step on fake tensors: rollout with its KV cache, scoring under every role, update, by the engine's own parts.

Batches are as full as they can be: longest prompts, completions that use every token. What repeats is run once: one
micro-batch of the rollout, one of each scoring, and a minibatch of two micro-batches.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PretrainedConfig

from lockstep.models.adapters import add_lora
from lockstep.models.sharding import Layout
from lockstep.params.experiment import Experiment
from lockstep.params.model import ModelParams
from lockstep.planning.build import Device, mark_model, meta_model
from lockstep.planning.fake import FullBatches, fake_mode, fake_ranks, materialize
from lockstep.planning.layers import Sample, mark_layers, sample_all_layers
from lockstep.planning.live import CUDA_BLOCK_BYTES, LiveMemory, Moment
from lockstep.planning.results import Kind
from lockstep.planning.sizes import model_sizes
from lockstep.training.ppo.build import frozen
from lockstep.training.ppo.experience import Experience
from lockstep.training.ppo.guards import Guards
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.optimizer import build_optimizer
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.roles import Adapters, Backbone, Role, build_backbone, disable_dropout
from lockstep.training.ppo.rollout import Completions, generate, positions_of
from lockstep.training.ppo.scoring import LogitsConfig, score_completions, score_values
from lockstep.training.ppo.update import Updater

_FEW_TOKENS = 4
"""Tokens generated one by one where a longer completion is skipped over."""


def frozen_base(experiment: Experiment) -> ModelParams:
    """The model section as PPO loads it: its own quantisation, and no master copy of what is never updated."""
    return frozen(experiment.model, experiment.ppo.backbone_quantization(experiment.model))


def sample_ppo(config: PretrainedConfig, experiment: Experiment, device: Device) -> Sample:
    """Live bytes of one rank over one PPO step, by moment, and the sizes of what is trained."""
    return sample_all_layers(config, partial(_simulate, experiment=experiment, device=device))


def _simulate(config: PretrainedConfig, experiment: Experiment, device: Device) -> Sample:
    ppo = experiment.ppo
    with fake_ranks(Layout(ppo.num_processes), experiment.model.precision):
        backbone, value_head = _backbone(config, experiment)
        live = LiveMemory(block_bytes=CUDA_BLOCK_BYTES if device == "cuda" else 1)
        step = _Step(backbone, value_head, experiment, live, device)
        with step.mode:
            step.run_tracked()
        return Sample(live.peaks(), model_sizes(backbone.peft_model, step.optimizer))


def _backbone(config: PretrainedConfig, experiment: Experiment) -> tuple[Backbone, ScalarHead]:
    ppo = experiment.ppo
    model = meta_model(config, frozen_base(experiment))
    lora = ppo.lora if experiment.sft.peft is None or not experiment.sft.enabled else experiment.sft.peft
    with torch.device("meta"):
        backbone = build_backbone(model, Adapters(), lora, seed=0, value_adapter=ppo.value.adapter)
        peft_model = backbone.peft_model
        if experiment.sft.enabled and experiment.sft.peft is not None:
            peft_model = add_lora(peft_model, lora, seed=0, adapter_name=Role.REFERENCE)
        if ppo.reward.kind == "model":
            peft_model = add_lora(peft_model, experiment.reward.lora, seed=0, adapter_name=Role.REWARD)
        value_head = ScalarHead(backbone.hidden_size)
    mode = fake_mode()
    materialize(peft_model, mode)
    materialize(value_head, mode)
    return Backbone(peft_model, backbone.trainable), value_head


class _Step:
    """The engine's step with its reward, texts and logging left out: they hold nothing on the device."""

    def __init__(
        self, backbone: Backbone, value_head: ScalarHead, experiment: Experiment, live: LiveMemory, device: Device
    ) -> None:
        self.mode = next(iter(value_head.parameters())).fake_mode  # type: ignore[attr-defined]
        self.backbone, self.value_head, self.ppo, self.reward = backbone, value_head, experiment.ppo, experiment.reward
        self.live = live
        self.phase: str | None = None
        if self.ppo.disable_dropout:
            disable_dropout(backbone.model)
        if self.ppo.gradient_checkpointing:
            backbone.enable_checkpointing()
        backbone.model.train()
        # Paged and 8-bit states are counted as torch's: those of adapters are small, and never larger.
        optim = self.ppo.optim if self.ppo.optim.startswith("adamw_torch") else "adamw_torch"
        self.optimizer = build_optimizer(backbone, value_head, self.ppo.model_copy(update={"optim": optim}))
        for group in self.optimizer.param_groups:
            group["foreach"] = device == "cuda" and optim == "adamw_torch"  # as torch chooses on CUDA
        mark_layers(backbone.model, live, lambda: self.phase)
        self._follow_cache()

    def run_tracked(self) -> None:
        """One update to allocate what stays, then the phases of a step in their order."""
        with self.live:
            self._mark()
            self._update(None)
            self._roll_out(self.ppo.max_prompt_length, min(self.ppo.max_new_tokens, _FEW_TOKENS), prefill=True)
            if self.ppo.max_new_tokens > _FEW_TOKENS:
                skipped = self.ppo.max_prompt_length + self.ppo.max_new_tokens - _FEW_TOKENS
                self._roll_out(skipped, _FEW_TOKENS, prefill=False)
            self._score()
            self._update("update")
            self._enter("idle")
            self._enter(None)

    def _enter(self, phase: str | None, part: str = "") -> None:
        self.phase = phase
        self.live.at(None if phase is None else Moment(phase, part))

    def _mark(self) -> None:
        mark_model(self.live, self.backbone.peft_model)
        mark_model(self.live, self.value_head)
        self.live.mark(Kind.OPTIMIZER, [list(state.values()) for state in self.optimizer.state.values()])

    def _roll_out(self, prompt_length: int, num_new_tokens: int, *, prefill: bool) -> None:
        """Generates after prompts of one length. Without `prefill`, their own forward is in no moment."""
        rows = self.ppo.per_device_rollout_batch_size
        self._enter("rollout" if prefill else None)
        self._skip_prefill = not prefill
        with FullBatches(truth=False):
            generate(
                self.backbone,
                Role.POLICY,
                [[0] * prompt_length] * rows,
                torch.zeros(rows, num_new_tokens, dtype=torch.float64),
                eos_token_ids=[0],
                pad_token_id=0,
                temperature=self.ppo.temperature,
                batch_size=rows,
            )
        self._skip_prefill = False
        self._enter(None)

    def _score(self) -> None:
        ppo = self.ppo
        config, size = LogitsConfig(ppo.temperature, ppo.logprob_chunk_size), ppo.per_device_rollout_batch_size
        completions = self._completions(size)
        own_adapter = self.backbone.has(Role.VALUE)
        head = None if own_adapter else self.value_head
        self._enter("scoring")
        with FullBatches():
            for role, with_entropy, value_head in ((Role.POLICY, True, head), (Role.REFERENCE, False, None)):
                score_completions(
                    self.backbone,
                    role,
                    completions,
                    config,
                    batch_size=size,
                    value_head=value_head,
                    with_entropy=with_entropy,
                )
            if own_adapter:
                score_values(self.backbone, completions, self.value_head, size, lambda: None)
            if self.backbone.has(Role.REWARD):
                self._read_rewards()
        self._enter(None)

    @torch.no_grad()
    def _read_rewards(self) -> None:
        length = min(self.ppo.reward.max_length, self.ppo.max_prompt_length + self.ppo.max_new_tokens + 1)
        tokens = torch.zeros(self.ppo.reward.batch_size, length, dtype=torch.long)
        mask = torch.ones_like(tokens)
        with self.backbone.role(Role.REWARD), self.backbone.generating():
            self.backbone.hidden_states(tokens, mask, positions_of(mask))

    def _update(self, phase: str | None) -> None:
        """A minibatch of two micro-batches, or of one where the parameters have no more."""
        micro = self.ppo.per_device_train_batch_size
        rows = min(2 * micro, self.ppo.mini_batch_size)
        params = self.ppo.model_copy(
            update={
                "num_ppo_epochs": 1,
                "num_mini_batches": 1,
                "target_kl": None,
                "rollout_batch_size": rows * self.ppo.num_processes,
            }
        )
        replicas = Replicas(0, self.ppo.num_processes)
        guards = Guards(params.guards, exact=False, dropout=True)
        updater = Updater(self.backbone, self.value_head, self.optimizer, params, replicas, guards, seed=0)
        self.optimizer.register_step_pre_hook(self._enter_optimizer)
        experience = self._experience(rows)
        self._enter(phase)
        with FullBatches(), self.live.within(Kind.TEMPORARY if phase else Kind.ACTIVATIONS):
            updater.update(experience, step=0)
        self._enter(None)
        self._mark()

    def _enter_optimizer(self, *_: Any) -> None:
        self.live.mark(Kind.GRADIENTS, [p.grad for group in self.optimizer.param_groups for p in group["params"]])
        if self.phase is not None:
            self._enter("optimizer")

    def _completions(self, rows: int) -> Completions:
        length = self.ppo.max_prompt_length + self.ppo.max_new_tokens
        return Completions(
            tokens=torch.zeros(rows, length, dtype=torch.long),
            prompt_lengths=torch.zeros(rows, dtype=torch.long),
            lengths=torch.zeros(rows, dtype=torch.long),
            finished=torch.zeros(rows, dtype=torch.bool),
            num_new_tokens=self.ppo.max_new_tokens,
        )

    def _experience(self, rows: int) -> Experience:
        def per_token() -> Tensor:
            return torch.zeros(rows, self.ppo.max_new_tokens)

        return Experience(
            completions=self._completions(rows),
            texts=[],
            scores=torch.zeros(rows),
            logprobs=per_token(),
            ref_logprobs=per_token(),
            entropies=per_token(),
            values=per_token(),
            kl=per_token(),
            rewards=per_token(),
            advantages=per_token(),
            returns=per_token(),
        )

    def _follow_cache(self) -> None:
        """Tells the KV cache from other activations, and leaves out the forward over prompts where that is asked."""
        self._skip_prefill = False

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG001
            if self._skip_prefill:
                decoding = kwargs["input_ids"].shape[1] == 1
                self._enter("rollout" if decoding else None)

        def after(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:  # noqa: ARG001
            for cache in (value for value in kwargs.values() if isinstance(value, Cache)):
                self.live.mark(Kind.KV_CACHE, [(layer.keys, layer.values) for layer in cache.layers])

        self.backbone.model.base_model.register_forward_pre_hook(before, with_kwargs=True)
        self.backbone.model.base_model.register_forward_hook(after, with_kwargs=True)
