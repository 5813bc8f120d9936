"""The simulation against two other ways to know: torch's own FSDP memory tracker, and every layer instead of a few."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from transformers import GPTNeoXConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

from lockstep.models.sharding import Layout, build_model, shard
from lockstep.params.experiment import Experiment
from lockstep.planning import layers, sft
from lockstep.planning.fake import fake_mode, fake_ranks
from lockstep.planning.layers import Sample, sample_all_layers
from lockstep.planning.live import Moment
from lockstep.planning.results import Kind
from tiny_llama import experiment

LORA = {"r": 4, "lora_alpha": 8}


def drawn(seed: int) -> tuple[PretrainedConfig, Experiment]:
    """A model, number of ranks, batch and length by chance; large enough that tensors, not their rounding, decide."""
    draw = random.Random(seed)
    heads = draw.choice([4, 8])
    hidden = heads * draw.choice([32, 64])
    shape = {
        "hidden_size": hidden,
        "intermediate_size": draw.choice([2, 3, 4]) * hidden,
        "num_hidden_layers": draw.randint(2, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([2, heads]),
        "vocab_size": draw.choice([512, 2048, 8000]),
        "tie_word_embeddings": draw.random() < 0.3,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }
    kind = draw.choice([LlamaConfig, Qwen2Config, MistralConfig])
    chosen = experiment(
        model={"precision": {"compute": "bf16"}},
        data={"sft": {"sources": [{"source": "jsonl:x.jsonl"}], "max_length": draw.choice([64, 256, 512])}},
        sft={
            "num_processes": draw.choice([2, 4, 8, 16]),
            "per_device_train_batch_size": draw.choice([1, 2, 4]),
            "activation_checkpointing": draw.random() < 0.5,
            "max_grad_norm": 0.0,
        },
    )
    return kind(**shape), chosen


def by_torchs_tracker(config: PretrainedConfig, chosen: Experiment) -> int:
    """Peak bytes of the second of two steps, counted by torch's FSDPMemTracker on the plain training loop."""
    params, layout, mode = chosen.sft, Layout(chosen.sft.num_processes), fake_mode()
    with fake_ranks(layout, chosen.model.precision) as mesh, mode:
        model = shard(build_model(config, torch.float32), mesh, layout, chosen.model.precision)
        if params.activation_checkpointing:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        # Where the last position's hidden state is dropped, before the head: it predicts nothing.
        model.get_output_embeddings().register_forward_pre_hook(lambda _, hidden: (hidden[0][:, :-1],))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tracker = FSDPMemTracker(model, optimizer)
        shape = (params.per_device_train_batch_size, chosen.data.sft.max_length)
        tokens, positions = torch.zeros(shape, dtype=torch.long), torch.arange(shape[1]).expand(shape).clone()
        tracker.track_inputs((tokens, positions))
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                tracker._peak_mem.clear()
                tracker._peak_mem_snap.clear()
                logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits.float()
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                del logits
                loss.backward()
                del loss
                optimizer.step()
                optimizer.zero_grad()
        return max(tracker._peak_mem.values())


@pytest.mark.parametrize("seed", range(4))
def test_random_shapes_agree_with_torchs_own_tracker(seed: int) -> None:
    config, chosen = drawn(seed)
    planned = max(sum(kinds.values()) for kinds in sft.sample_sft(config, chosen, "cpu").peaks.values())
    assert planned == pytest.approx(by_torchs_tracker(config, chosen), rel=0.03)


def llama(num_layers: int, **changes: Any) -> LlamaConfig:
    """A narrow Llama."""
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(num_hidden_layers=num_layers, vocab_size=600, attn_implementation="sdpa", **{**shape, **changes})


def neox(num_layers: int) -> GPTNeoXConfig:
    """A narrow GPT-NeoX."""
    return GPTNeoXConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=num_layers, num_attention_heads=4, vocab_size=600,
        attn_implementation="sdpa",
    )  # fmt: skip


CASES: dict[str, tuple[PretrainedConfig, dict[str, Any], str]] = {
    "sharded, checkpointed": (
        llama(8),
        {"model": {"precision": {"compute": "bf16"}}, "sft": {"num_processes": 4, "activation_checkpointing": True}},
        "cuda",
    ),
    "HSDP, foreach": (
        llama(7),
        {
            "model": {"precision": {"compute": "bf16"}},
            "sft": {"num_processes": 4, "dp_replicate_size": 2, "optim": "adamw_torch"},
        },
        "cuda",
    ),
    "alone, accumulating": (llama(7), {"sft": {"num_processes": 1, "gradient_accumulation_steps": 2}}, "cpu"),
    "NF4 and LoRA": (
        neox(7),
        {
            "model": {"precision": {"compute": "bf16"}, "quantization": {"load_in_4bit": True}},
            "sft": {"num_processes": 1, "peft": LORA, "activation_checkpointing": True},
        },
        "cuda",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_few_layers_say_what_all_of_them_say(name: str) -> None:
    config, sections, device = CASES[name]
    chosen = experiment(data={"sft": {"sources": [{"source": "jsonl:x.jsonl"}], "max_length": 64}}, **sections)

    def simulate(shape: PretrainedConfig) -> Sample:
        return sft._simulate(shape, chosen, device)  # type: ignore[arg-type]

    few, every = sample_all_layers(config, simulate), simulate(config)
    assert few.sizes == every.sizes
    assert fullest(few) == pytest.approx(fullest(every), rel=1e-3)


def fullest(sample: Sample) -> dict[str, int]:
    """The peak of each phase."""
    peaks: dict[str, int] = {}
    for moment, kinds in sample.peaks.items():
        peaks[moment.phase] = max(peaks.get(moment.phase, 0), sum(kinds.values()))
    return peaks


def test_models_with_unlike_layers_are_simulated_whole() -> None:
    mixed = Qwen2Config(
        num_hidden_layers=12, use_sliding_window=True, max_window_layers=6, hidden_size=64, num_attention_heads=4
    )
    seen: list[int] = []

    def simulate(shape: PretrainedConfig) -> Sample:
        seen.append(shape.num_hidden_layers)
        return Sample({Moment("forward"): dict.fromkeys(Kind, 0)}, {})

    sample_all_layers(mixed, simulate)
    sample_all_layers(llama(12), simulate)
    assert seen == [12, layers._FEW, layers._FEW + 1]
