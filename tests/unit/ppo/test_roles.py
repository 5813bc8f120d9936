"""One backbone, several roles: each is bit-equal to that role loaded alone, and no switch costs a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from lockstep.foundation.errors import UsageError
from lockstep.models.adapters import add_lora
from lockstep.models.export import export_adapter
from lockstep.params.model import LoraParams
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Adapters, Backbone, Role, build_backbone, disable_dropout
from ppo_cases import tiny_model

LORA = LoraParams(r=4, lora_alpha=8)
TOKENS = torch.tensor([[5, 9, 17, 33, 65], [4, 8, 16, 32, 64]])


def saved_adapter(folder: Path, seed: int) -> Path:
    """A PEFT folder with nothing in it zero, as training would leave it."""
    model = add_lora(tiny_model(), LORA, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    export_adapter(model, folder, base="tiny")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: saved_adapter(root / name, seed) for seed, name in enumerate(("sft", "reward"))}


@pytest.fixture
def backbone(folders: dict[str, Path]) -> Backbone:
    return build_backbone(tiny_model(), Adapters(**folders), LORA, seed=3, value_adapter=True)


def logits(backbone: Backbone, role: Role) -> Tensor:
    with torch.no_grad(), backbone.role(role):
        positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
        return backbone.output_head(backbone.hidden_states(TOKENS, torch.ones_like(TOKENS), positions))


def alone(folder: Path) -> Tensor:
    with torch.no_grad():
        return PeftModel.from_pretrained(tiny_model(), str(folder))(TOKENS).logits


def test_each_role_gives_the_bits_of_that_role_loaded_alone(backbone: Backbone, folders: dict[str, Path]) -> None:
    assert torch.equal(logits(backbone, Role.REFERENCE), alone(folders["sft"]))
    assert torch.equal(logits(backbone, Role.REWARD), alone(folders["reward"]))
    assert torch.equal(logits(backbone, Role.POLICY), alone(folders["sft"]))
    assert not torch.equal(logits(backbone, Role.REWARD), logits(backbone, Role.POLICY))


def test_without_an_sft_adapter_the_reference_is_the_bare_model() -> None:
    backbone = build_backbone(tiny_model(), Adapters(), LORA, seed=3)
    with torch.no_grad():
        bare = tiny_model()(TOKENS).logits
    assert torch.equal(logits(backbone, Role.REFERENCE), bare)
    assert torch.equal(logits(backbone, Role.POLICY), bare)


def test_the_reference_stays_while_the_policy_moves(backbone: Backbone) -> None:
    before = logits(backbone, Role.REFERENCE)
    with torch.no_grad():
        for parameter in backbone.parameters_of(Role.POLICY).values():
            parameter.add_(0.05)
    assert torch.equal(logits(backbone, Role.REFERENCE), before)
    assert not torch.equal(logits(backbone, Role.POLICY), before)


def test_a_role_ends_with_its_context_also_when_it_fails(backbone: Backbone) -> None:
    policy = logits(backbone, Role.POLICY)
    with pytest.raises(RuntimeError, match="inside"), backbone.role(Role.VALUE), backbone.role(Role.REWARD):
        raise RuntimeError("inside")
    positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
    with torch.no_grad():
        now = backbone.output_head(backbone.hidden_states(TOKENS, torch.ones_like(TOKENS), positions))
    assert torch.equal(now, policy)


@pytest.mark.parametrize("role", list(Role))
def test_no_role_changes_what_is_trained(backbone: Backbone, role: Role) -> None:
    def trained() -> set[str]:
        return {name for name, parameter in backbone.peft_model.named_parameters() if parameter.requires_grad}

    expected = {*backbone.parameters_of(Role.POLICY), *backbone.parameters_of(Role.VALUE)}
    assert trained() == expected
    with backbone.role(role):
        assert trained() == expected
    assert trained() == expected


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_trained_tensor_of_each_role_gets_its_gradient(backbone: Backbone, checkpointing: bool) -> None:
    """PEFT's own switch leaves the policy with none: it turns requires_grad off on all but the active adapter."""
    for name, parameter in backbone.peft_model.named_parameters():
        if "lora_B" in name and parameter.requires_grad:
            parameter.data.normal_(0, 0.1)
    if checkpointing:
        backbone.enable_checkpointing()
    backbone.model.train()
    head = ScalarHead(backbone.hidden_size)
    torch.nn.init.ones_(head.weight)
    positions = torch.arange(TOKENS.shape[1]).expand_as(TOKENS)
    for role in (Role.POLICY, Role.VALUE):
        with backbone.role(role):
            states = backbone.hidden_states(TOKENS, torch.ones_like(TOKENS), positions)
            loss = head(states).square().mean() if role is Role.VALUE else backbone.output_head(states).square().mean()
            loss.backward()
    for role in (Role.POLICY, Role.VALUE):
        parameters = backbone.parameters_of(role)
        assert len(parameters) == 28
        assert all(p.grad is not None and p.grad.norm() > 0 for p in parameters.values())
    frozen = [*backbone.parameters_of(Role.REFERENCE).values(), *backbone.parameters_of(Role.REWARD).values()]
    assert all(p.grad is None for p in frozen)


def test_a_role_named_value_does_not_match_query_key_value() -> None:
    config = GPTNeoXConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    backbone = build_backbone(
        GPTNeoXForCausalLM(config).eval(),
        Adapters(),
        LoraParams(r=2, target_modules=["query_key_value"]),
        seed=0,
        value_adapter=True,
    )
    policy, value = backbone.parameters_of(Role.POLICY), backbone.parameters_of(Role.VALUE)
    assert len(policy) == len(value) == 4
    assert not set(policy) & set(value)


def test_generating_turns_checkpointing_off_and_the_cache_on_and_puts_both_back(backbone: Backbone) -> None:
    backbone.enable_checkpointing()
    backbone.model.train()
    with backbone.generating():
        assert not backbone.model.is_activation_checkpointing
        assert not backbone.model.training
        assert backbone.model.config.use_cache
    assert backbone.model.is_activation_checkpointing
    assert backbone.model.training
    assert not backbone.model.config.use_cache


def test_new_adapters_follow_from_the_seed_alone() -> None:
    def drawn(noise: int) -> list[Tensor]:
        torch.manual_seed(noise)
        backbone = build_backbone(tiny_model(), Adapters(), LORA, seed=3, value_adapter=True)
        return [*backbone.parameters_of(Role.POLICY).values(), *backbone.parameters_of(Role.VALUE).values()]

    assert all(torch.equal(a, b) for a, b in zip(drawn(0), drawn(1), strict=True))


def test_an_adapter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no adapter"):
        build_backbone(tiny_model(), Adapters(sft=tmp_path), LORA, seed=0)


def test_disable_dropout_makes_training_mode_deterministic() -> None:
    model = tiny_model(dropout=0.5).train()
    assert not torch.equal(model(TOKENS).logits, model(TOKENS).logits)
    disable_dropout(model)
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_a_head_keeps_its_bits_through_a_file_and_refuses_another_width(tmp_path: Path) -> None:
    head = ScalarHead(8)
    torch.nn.init.normal_(head.weight)
    torch.nn.init.constant_(head.bias, 0.25)
    head.save(tmp_path / "head.safetensors")
    hidden = torch.randn(3, 8).bfloat16()
    loaded = ScalarHead.load(tmp_path / "head.safetensors", 8)
    assert torch.equal(loaded(hidden), head(hidden))
    assert loaded(hidden).dtype == torch.float32
    with pytest.raises(UsageError, match="hidden size is 16"):
        ScalarHead.load(tmp_path / "head.safetensors", 16)
    with pytest.raises(UsageError, match="run reward"):
        ScalarHead.load(tmp_path / "absent.safetensors", 8)
