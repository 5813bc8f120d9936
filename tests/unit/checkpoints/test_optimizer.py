"""Optimizer state by parameter name, in one process; sharded cases are in tests/integration/test_checkpoints.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.checkpoints.optimizer import OptimizerState
from lockstep.checkpoints.pieces import holdings, pieces_of
from lockstep.foundation.errors import LockstepError

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True),
    "tensor rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), betas=(0.7, 0.9)),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model.register_parameter("scale", nn.Parameter(torch.tensor(-0.0)))
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return model


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, num_steps: int) -> None:
    for step in range(first, first + num_steps):
        rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        (model(rows) * model.get_parameter("scale").exp()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


def _handed_over(state: OptimizerState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a checkpoint carries: copies of the tensors, and facts that have been JSON."""
    return {name: t.clone() for name, t in state.tensors().items()}, json.loads(json.dumps(state.facts()))


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_a_fresh_optimizer_goes_on_with_the_same_bits(kind: str) -> None:
    model = _model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    _steps(model, optimizer, 0, 3)
    tensors, facts = _handed_over(OptimizerState(optimizer, model.named_parameters()))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    _steps(model, optimizer, 3, 3)

    other = _model()
    other.load_state_dict(weights)
    fresh = OPTIMIZERS[kind](other.parameters())
    state = OptimizerState(fresh, other.named_parameters())
    targets = state.allocate(holdings(pieces_of(tensors, 0)), facts)
    assert targets.keys() == tensors.keys()
    for name, target in targets.items():
        target.copy_(tensors[name])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in weights.items())
    _steps(other, fresh, 3, 3)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_allocating_changes_no_bit_of_a_parameter() -> None:
    model = _model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    _steps(model, optimizer, 0, 2)
    tensors, facts = _handed_over(OptimizerState(optimizer, model.named_parameters()))
    other = _model()
    before = {name: p.detach().clone().view(torch.int32) for name, p in other.named_parameters()}
    fresh = OPTIMIZERS["adamw"](other.parameters())
    OptimizerState(fresh, other.named_parameters()).allocate(holdings(pieces_of(tensors, 0)), facts)
    after = {name: p.detach().view(torch.int32) for name, p in other.named_parameters()}
    assert all(torch.equal(before[name], after[name]) for name in before), "the sign of -0.0 included"


def test_a_parameter_that_had_no_gradient_has_no_state() -> None:
    model = _model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    _steps(model, optimizer, 0, 1)
    state = OptimizerState(optimizer, model.named_parameters())
    assert not any("unused" in name for name in state.tensors())
    assert "optim/0.weight/exp_avg" in state.tensors()
    assert state.facts()["numbers"]["0.weight"]["step"]["value"] == 1.0


def test_a_parameter_without_a_name_is_refused() -> None:
    model = _model()
    with pytest.raises(LockstepError, match="that the model does not name"):
        OptimizerState(OPTIMIZERS["adamw"](model.parameters()), [])


def test_other_parameters_in_the_groups_are_refused() -> None:
    model = _model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    facts = OptimizerState(optimizer, model.named_parameters()).facts()
    fewer = OPTIMIZERS["adamw"](model[0].parameters())
    with pytest.raises(LockstepError, match="hold other parameters"):
        OptimizerState(fewer, model.named_parameters()).allocate({}, facts)


@pytest.mark.parametrize("kind", ["AdamW8bit", "PagedAdamW32bit"])
def test_quantised_optimizers_go_on_with_the_same_bits(kind: str) -> None:
    import bitsandbytes as bnb

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(128, 64)
        return model, getattr(bnb.optim, kind)(model.parameters(), lr=0.01)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for step in numbers:
            model(torch.randn(4, 128, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = fresh()
    steps(model, optimizer, range(3))
    tensors, facts = _handed_over(OptimizerState(optimizer, model.named_parameters()))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    steps(model, optimizer, range(3, 6))

    other, resumed = fresh()
    other.load_state_dict(weights)
    targets = OptimizerState(resumed, other.named_parameters()).allocate(holdings(pieces_of(tensors, 0)), facts)
    for name, target in targets.items():
        target.copy_(tensors[name])
    steps(other, resumed, range(3, 6))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
