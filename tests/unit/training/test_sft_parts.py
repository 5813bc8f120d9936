"""The parts of SFT that need no ranks: shares of a batch, number of steps, the loss, FLOPs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.data.order import EpochOrder
from lockstep.foundation.errors import UsageError
from lockstep.models.adapters import add_lora
from lockstep.params.model import LoraParams
from lockstep.params.sft import SftParams
from lockstep.training.common.batches import BatchShape, StepSampler
from lockstep.training.common.determinism import derived_seed
from lockstep.training.common.throughput import FlopsModel, as_duration
from lockstep.training.sft.arguments import num_steps
from lockstep.training.sft.loss import SupervisedHead

CONFIG = LlamaConfig(
    hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=128, vocab_size=512, use_cache=False
)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def rows_of_step(step: int, world_size: int, per_device: int, parts: int) -> list[int]:
    """All rows that all ranks see in one step, in the order of the global batch."""
    order = EpochOrder(num_rows=11, seed=3)
    samplers = [
        StepSampler(order, BatchShape(rank, world_size, per_device, parts), start_step=step, max_steps=step + 1)
        for rank in range(world_size)
    ]
    micros = zip(*samplers, strict=True)
    return [row for micro in micros for rank in micro for row in rank]


@pytest.mark.parametrize("step", [0, 1, 7])
def test_a_step_sees_the_same_rows_in_the_same_order_on_any_number_of_ranks(step: int):
    reference = rows_of_step(step, world_size=1, per_device=8, parts=1)
    for world_size, per_device, parts in ((2, 4, 1), (2, 2, 2), (4, 2, 1), (1, 2, 4)):
        assert rows_of_step(step, world_size, per_device, parts) == reference


def test_every_epoch_visits_every_row_once():
    seen = [row for step in range(11) for row in rows_of_step(step, 2, 2, 1)]
    assert sorted(seen) == sorted([*range(11)] * 4)


def test_steps_follow_from_epochs_in_whole_batches():
    sft = SftParams(num_processes=2, per_device_train_batch_size=4, num_train_epochs=1.5)
    assert num_steps(sft, 100) == 19
    assert num_steps(sft, 1) == 1
    assert num_steps(sft.model_copy(update={"max_steps": 5}), 100) == 5


def test_accumulation_keeps_the_global_batch_on_other_numbers_of_ranks():
    size = SftParams(num_processes=4, per_device_train_batch_size=2, gradient_accumulation_steps=3).global_batch_size
    shapes = [BatchShape.of_global_size(size, rank=0, world_size=ranks, per_device=2) for ranks in (1, 2, 4, 12)]
    assert [shape.num_accumulation_steps for shape in shapes] == [12, 6, 3, 1]
    assert {shape.global_size for shape in shapes} == {24}
    with pytest.raises(UsageError, match="does not divide"):
        BatchShape.of_global_size(size, rank=0, world_size=5, per_device=2)


def test_the_loss_is_the_sum_over_supervised_tokens_and_so_is_its_gradient(model: LlamaForCausalLM):
    ids = torch.randint(0, 512, (3, 10))
    labels = torch.where(torch.rand(3, 10) < 0.5, ids, -100)
    plain = model(input_ids=ids).logits[:, :-1].reshape(-1, 512)
    reference = functional.cross_entropy(plain, labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum")
    expected = torch.autograd.grad(reference, list(model.parameters()))
    loss = SupervisedHead(model)(model, {"input_ids": ids, "labels": labels})
    assert loss.item() == pytest.approx(reference.item(), rel=1e-6)
    for gradient, wanted in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_outside_the_loss_the_head_answers_at_every_position(model: LlamaForCausalLM):
    SupervisedHead(model)
    assert model(input_ids=torch.arange(6)[None]).logits.shape == (1, 6, 512)


def test_a_batch_without_labels_gives_zero_loss_and_zero_gradients(model: LlamaForCausalLM):
    ids = torch.randint(0, 512, (2, 6))
    loss = SupervisedHead(model)(model, {"input_ids": ids, "labels": torch.full_like(ids, -100)})
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("adapted", [False, True])
def test_flops_agree_with_torchs_own_count(model: LlamaForCausalLM, adapted: bool):
    trained = add_lora(model, LoraParams(r=4), seed=1) if adapted else model
    ids = torch.randint(0, 512, (2, 32))
    with FlopCounterMode(display=False) as counter:
        trained(input_ids=ids, labels=ids).loss.backward()
    num_tokens = ids.numel()
    counted = FlopsModel.of(trained).flops(num_tokens, num_tokens, sequence_length=32)
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.1)


def test_seeds_for_different_purposes_differ_and_are_stable():
    seeds = [
        derived_seed(42, "order"),
        derived_seed(42, "adapter"),
        derived_seed(43, "order"),
        derived_seed(42, "t", 1),
    ]
    assert len(set(seeds)) == 4
    assert derived_seed(42, "order") == seeds[0]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_durations_read_like_a_clock():
    assert [as_duration(seconds) for seconds in (0, 75, 3700)] == ["0:00", "1:15", "1:01:40"]
