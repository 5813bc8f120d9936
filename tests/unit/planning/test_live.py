"""The log of live tensor bytes, on real tensors, against what Python itself can reach."""

from __future__ import annotations

import gc

import torch
from torch import nn

from live_tensors import storage_bytes
from lockstep.planning.live import LiveMemory, Moment
from lockstep.planning.results import Kind


def test_counts_what_is_alive_and_forgets_what_is_gone() -> None:
    with LiveMemory() as live:
        kept = torch.zeros(100)
        view = kept[:10]
        torch.ones(50)
        assert live.live_bytes == 400
        assert storage_bytes([kept, view]) == 400
        del kept, view
        gc.collect()
        assert live.live_bytes == 0
    assert live.peak_bytes == 400 + 200


def test_follows_a_storage_that_is_freed_and_allocated_in_place_as_fsdp_does() -> None:
    with LiveMemory() as live:
        gathered = torch.zeros(100)
        gathered.untyped_storage().resize_(0)
        assert live.live_bytes == 0
        gathered.untyped_storage().resize_(800)
        assert live.live_bytes == 800


def test_rounds_up_to_the_allocators_block() -> None:
    with LiveMemory(block_bytes=512) as live:
        small = torch.zeros(1)
        assert live.live_bytes == 512
        del small
    assert live.live_bytes == 0


def test_a_training_step_holds_what_the_textbook_says() -> None:
    """Parameters, gradients and Adam's two moments; before them the activations that backward needs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    inputs = torch.randn(8, 64)
    with LiveMemory() as live:
        live.mark(Kind.PARAMETERS, list(model.parameters()))
        live.at(Moment("forward"))
        loss = model(inputs).sum()
        live.at(Moment("backward"))
        with live.within(Kind.TEMPORARY):
            loss.backward()
        del loss
        live.mark(Kind.GRADIENTS, [parameter.grad for parameter in model.parameters()])
        live.at(Moment("optimizer"))
        with live.within(Kind.TEMPORARY):
            optimizer.step()
        live.mark(Kind.OPTIMIZER, [list(state.values()) for state in optimizer.state.values()])
        live.at(Moment("idle"))
    peaks = live.peaks()
    forward, idle = peaks[Moment("forward")], peaks[Moment("idle")]
    assert forward[Kind.PARAMETERS] == weights
    # ReLU keeps what it gave; while it runs, what it got is there, too, and that is the fullest moment.
    assert forward[Kind.ACTIVATIONS] == 2 * (8 * 128) * 4
    assert idle[Kind.GRADIENTS] == weights
    step_counts = 2 * 4
    assert idle[Kind.OPTIMIZER] == 2 * weights + step_counts
    assert peaks[Moment("backward")][Kind.OPTIMIZER] == 0


def test_a_kind_that_is_known_late_counts_from_the_birth_of_the_storage() -> None:
    with LiveMemory() as live:
        live.at(Moment("early"))
        tensor = torch.zeros(10)
        live.at(Moment("late"))
        live.mark(Kind.KV_CACHE, [tensor])
    assert live.peaks()[Moment("early")][Kind.KV_CACHE] == 40
