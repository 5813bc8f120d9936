"""One backbone in memory plays every role: policy, reference, value and reward differ by the adapter that is active.

A frozen (and perhaps quantised) causal language model is loaded once. Nothing is ever merged into it.
PEFT's own switch turns `requires_grad` off on all adapters but the active one, so that a loss computed in two roles
would silently lose the gradients of the first. `Backbone.role` is the only switch here and puts the flags back at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.models.adapters import adapter_parameters, add_lora, load_adapter
from lockstep.params.model import LoraParams


class Role(StrEnum):
    """Who the backbone is at a moment. The values are the names of the adapters."""

    POLICY = "policy"
    REFERENCE = "reference"
    VALUE = "value"
    REWARD = "reward"


class Backbone:
    """A causal language model with one adapter per role, and the switch between them."""

    def __init__(self, peft_model: PeftModel, trainable: frozenset[Role]) -> None:
        self.peft_model = peft_model
        self.model: Any = peft_model.get_base_model()
        self.trainable = trainable
        self._adapters = frozenset(Role(name) for name in peft_model.peft_config)
        self._layers = [module for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        self._flags = [
            (parameter, role in trainable) for role in self._adapters for parameter in self.parameters_of(role).values()
        ]
        self._current: Role | None = None
        self._activate(Role.POLICY)

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return self.model.get_input_embeddings().weight.device

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that heads read."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def is_exact(self) -> bool:
        """True when the frozen model computes in fp32 from unquantised weights."""
        return self.model.dtype == torch.float32 and not getattr(self.model, "is_quantized", False)

    @property
    def output_head(self) -> nn.Module:
        """The language-model head."""
        return self.model.get_output_embeddings()

    def has(self, role: Role) -> bool:
        """True when the role has an adapter of its own."""
        return role in self._adapters

    def parameters_of(self, role: Role) -> dict[str, nn.Parameter]:
        """The adapter tensors of a role by name."""
        return adapter_parameters(self.peft_model, role)

    @contextmanager
    def role(self, role: Role) -> Iterator[Backbone]:
        """Makes the backbone play `role`, and what it played before afterwards.

        A role without an adapter is the bare base (all adapters off). The flags that say what is trained do not change.
        Run each role's backward inside that role: activation checkpointing recomputes with the active adapter.
        """
        before = self._current
        self._activate(role)
        try:
            yield self
        finally:
            self._activate(before)

    def _activate(self, role: Role | None) -> None:
        if role is None or role is self._current:
            return
        for layer in self._layers:
            if self.has(role):
                layer.set_adapter(role.value)
            # Turning adapters on again sets the active one, so it comes second.
            layer.enable_adapters(self.has(role))
        for parameter, trained in self._flags:
            parameter.requires_grad_(trained)
        self._current = role

    def hidden_states(
        self, tokens: Tensor, attention_mask: Tensor, position_ids: Tensor, cache: Any | None = None
    ) -> Tensor:
        """The last hidden states (after the final norm) under the active role, (batch, length, hidden_size).

        With a `cache` (a transformers Cache), `tokens` are only the new ones and the mask covers old and new.
        """
        outputs = self.model.base_model(
            input_ids=tokens,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=cache is not None,
        )
        return outputs.last_hidden_state.to(tokens.device)

    def logits(self, states: Tensor) -> Tensor:
        """The language-model head on hidden states (…, hidden_size) → (…, vocabulary), where the states are.

        A backbone that is split over devices computes its last layers elsewhere.
        """
        return self.output_head(states).to(states.device)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Evaluation mode, KV cache on, activation checkpointing off; all three as before afterwards."""
        training, checkpointing = self.model.training, self.model.is_activation_checkpointing
        use_cache = self.model.config.use_cache
        self.model.eval()
        if checkpointing:
            self.model.activation_checkpointing_disable()
        self.model.config.use_cache = True
        try:
            yield
        finally:
            self.model.config.use_cache = use_cache
            if checkpointing:
                self.model.activation_checkpointing_enable()
            self.model.train(training)

    def enable_checkpointing(self) -> None:
        """Recomputes activations in the backward of the update; there is no KV cache meanwhile."""
        self.model.config.use_cache = False
        self.model.activation_checkpointing_enable()


@dataclass(frozen=True)
class Adapters:
    """The PEFT folders that roles are made from; None where a role has none, or starts anew."""

    sft: Path | None = None
    """The reference is this adapter, frozen, and the policy starts as a copy of it, in its shape."""
    reward: Path | None = None
    """The reward stage's adapter."""


def build_backbone(
    model: PreTrainedModel, adapters: Adapters, lora: LoraParams, seed: int, *, value_adapter: bool = False
) -> Backbone:
    """Puts the adapters of all roles on a loaded causal language model and freezes everything else.

    Without an SFT adapter the reference is the bare model and the policy's B is zero; with one the policy is its copy.
    Either way the KL is 0 at first. Raises UsageError when an adapter does not fit the model.
    """
    model.requires_grad_(False)
    if adapters.sft is None:
        peft_model = add_lora(model, lora, seed=seed, adapter_name=Role.POLICY)
    else:
        peft_model = load_adapter(model, adapters.sft, adapter_name=Role.POLICY, is_trainable=True)
        peft_model = load_adapter(peft_model, adapters.sft, adapter_name=Role.REFERENCE)
    if value_adapter:
        peft_model = add_lora(peft_model, lora, seed=seed + 1, adapter_name=Role.VALUE)
    if adapters.reward is not None:
        peft_model = load_adapter(peft_model, adapters.reward, adapter_name=Role.REWARD)
    return Backbone(peft_model, frozenset({Role.POLICY, Role.VALUE} if value_adapter else {Role.POLICY}))


def disable_dropout(model: nn.Module) -> None:
    """Sets every dropout probability to zero: with it on, an unchanged policy has ratios between 0.9 and 1.2."""
    for module in model.modules():
        for name in ("p",) if isinstance(module, nn.Dropout) else ("attention_dropout",):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
