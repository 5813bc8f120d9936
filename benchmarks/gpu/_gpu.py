"""What the GPU benchmarks share: the device, models with random weights that never existed whole, and counters.

`--rehearse` runs the same code on a CPU with narrow layers, so that it works the day a GPU is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from accelerate import init_empty_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lockstep.models.precision import DTYPES
from lockstep.models.sharded_4bit import replace_linear
from lockstep.models.sharding import build_model
from lockstep.params.model import ModelParams, QuantizationParams

GIB = 1 << 30
PROJECT = Path(__file__).parents[2]
_NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 512}
_SKIPPED = 77
"""Exit code of a benchmark that found no GPU; not 0, so that nobody takes it for a pass."""


def arguments(what: str) -> argparse.ArgumentParser:
    """The options that all share."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument(
        "--rehearse", action="store_true", help="on the CPU, with narrow layers: checks the code, not the GPU"
    )
    return parser


def device(rehearse: bool) -> torch.device:
    """The GPU, or the CPU in a rehearsal. Without a GPU it says so and ends with exit code 77."""
    if rehearse:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        print("SKIPPED: no GPU here, nothing was measured. (--rehearse checks the code on a CPU.)", file=sys.stderr)
        sys.exit(_SKIPPED)
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


def architecture(name: str, *, num_layers: int | None, rehearse: bool) -> PretrainedConfig:
    """A shipped architecture, with fewer layers if asked; narrow in a rehearsal."""
    facts = json.loads((PROJECT / "recipes" / "architectures" / f"{name}.json").read_text(encoding="utf-8"))
    if num_layers is not None:
        facts["num_hidden_layers"] = num_layers
    if rehearse:
        facts |= _NARROW | {
            "num_hidden_layers": min(2, facts["num_hidden_layers"]),
            "eos_token_id": 2,
            "bos_token_id": 1,
        }
        facts |= {"num_key_value_heads": 2} if "num_key_value_heads" in facts else {}
    config: PretrainedConfig = AutoConfig.for_model(**facts)
    config._attn_implementation, config.use_cache = "sdpa", False
    return config


def random_model(config: PretrainedConfig, params: ModelParams, where: torch.device) -> PreTrainedModel:
    """A frozen model of random weights, made and quantised on the device one tensor at a time."""
    compute = DTYPES[params.precision.compute]
    with init_empty_weights(include_buffers=False):
        model = build_model(config, compute)
    if params.quantization is not None:
        replace_linear(model, params.quantization, compute)
    generator = torch.Generator(where).manual_seed(0)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.empty(parameter.shape, dtype=compute, device=where)
            values.normal_(0.0, 0.02, generator=generator) if parameter.ndim > 1 else values.zero_()
            setattr(module, name, _parameter(module, name, values, where))
    model.to(where)
    return model.requires_grad_(False).eval()


def _parameter(module: nn.Module, name: str, values: torch.Tensor, where: torch.device) -> nn.Parameter:
    if name == "weight" and isinstance(module, bnb.nn.Linear8bitLt):
        return bnb.nn.Int8Params(values, requires_grad=False, has_fp16_weights=False).to(where)
    if name == "weight" and isinstance(module, bnb.nn.Linear4bit):
        empty = module.weight
        return bnb.nn.Params4bit(
            values,
            requires_grad=False,
            compress_statistics=empty.compress_statistics,
            quant_type=empty.quant_type,
            quant_storage=empty.quant_storage,
            module=module,
        ).to(where)
    if name == "weight" and values.ndim == 1:  # a norm's
        values.fill_(1.0)
    return nn.Parameter(values, requires_grad=False)


def quantised(kind: str, compute: str) -> ModelParams:
    """Model parameters with an int8 or NF4 base."""
    chosen = {"load_in_8bit": True} if kind == "int8" else {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    return ModelParams(
        source="path:random",
        precision={"compute": compute},  # type: ignore[arg-type]
        quantization=QuantizationParams(**chosen),
    )


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerBase:
    """A tokenizer of made-up words, as many as the model has tokens."""
    words = {name: index for index, name in enumerate(["<unk>", "<s>", "</s>"])}
    words |= {f"w{index}": index for index in range(3, vocabulary)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@dataclass
class Used:
    """The most memory of the whole device that was in use, by its own counter; context and cache included."""

    peak_bytes: int = 0


@contextmanager
def device_counter(where: torch.device, every_s: float = 0.002) -> Iterator[Used]:
    """Polls what the device says is in use. What others used before counts as not ours."""
    used, done = Used(), threading.Event()
    if where.type != "cuda":
        yield used
        return

    def poll() -> None:
        while not done.is_set():
            free, total = torch.cuda.mem_get_info(where)
            used.peak_bytes = max(used.peak_bytes, total - free)
            time.sleep(every_s)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        done.set()
        thread.join()


def cap_memory(where: torch.device, cap_bytes: int, reserve_bytes: int) -> None:
    """Lets this process's allocator have at most `cap_bytes` less what the context takes (`reserve_bytes`)."""
    if where.type == "cuda":
        total = torch.cuda.get_device_properties(where).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (cap_bytes - reserve_bytes) / total), where)


def context_bytes(where: torch.device) -> int:
    """What CUDA's context takes before anything is allocated: the device's counter after one small kernel."""
    if where.type != "cuda":
        return 0
    torch.ones(1, device=where).add_(1)
    torch.cuda.synchronize(where)
    free, total = torch.cuda.mem_get_info(where)
    return total - free - torch.cuda.memory_reserved(where)


def say(name: str, found: dict[str, Any]) -> None:
    """One JSON line for programs, after what people read."""
    for key, value in found.items():
        shown = f"{value / GIB:.2f} GiB" if key.endswith("_bytes") else value
        print(f"  {key}: {shown}")
    print(json.dumps({"benchmark": name, **found}, sort_keys=True))
