"""Loading a sharded model: no rank ever holds the whole of it on the host, only its share and a layer in passing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.models.loading import load_model
from lockstep.models.sharding import Layout
from lockstep.params.model import ModelParams
from worlds import run_world

pytestmark = pytest.mark.integration

CONSTANT_BYTES = 32 << 20
"""What loading costs whatever the model: process groups, the reader's threads, allocator slack."""


class PeakOwnMemory:
    """The most private memory that the process had above its start; pages of mapped files are the kernel's."""

    def __enter__(self) -> PeakOwnMemory:
        self._before = _own_bytes()
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.001):
            self.peak_bytes = max(self.peak_bytes, _own_bytes() - self._before)


def _own_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    sizes = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Rss"))
    return sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssShmem")) << 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 117 M parameters, in fp16 as Llama-2 lies on disk."""
    config = LlamaConfig(
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=4096,
        vocab_size=8192,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).half().save_pretrained(folder, max_shard_size="100MB")
    return folder


def loaded(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Loads the folder sharded; what this rank holds of it and what it needed on the way."""
    params = ModelParams.model_validate(
        {"path": "model", "source": "path:model", "manifest": "model/manifest.json", "master_dtype": "fp32"}
    )
    with PeakOwnMemory() as memory:
        model = load_model(folder, params, device=torch.device("cpu"), layout=Layout(world_size))
    parameters = list(model.parameters())
    assert all(isinstance(parameter, DTensor) and parameter.dtype == torch.float32 for parameter in parameters)
    layer = sum(parameter.numel() * 4 for parameter in model.model.layers[0].parameters())
    return {
        "whole": sum(parameter.numel() * 4 for parameter in parameters),
        "layer": layer,
        "share": sum(p.to_local().numel() * 4 for p in parameters if isinstance(p, DTensor)),
        "peak": memory.peak_bytes,
    }


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_needs_its_share_and_one_layer(folder: Path, world_size: int) -> None:
    for rank, found in enumerate(run_world(world_size, loaded, world_size, folder)):
        allowed = found["whole"] // world_size + found["layer"] + CONSTANT_BYTES
        print({name: f"{size / 2**20:.0f} MiB" for name, size in found.items()}, f"allowed {allowed / 2**20:.0f} MiB")
        assert found["share"] == pytest.approx(found["whole"] / world_size, rel=0.01)
        assert found["share"] <= found["peak"] <= allowed < found["whole"], f"rank {rank}"
