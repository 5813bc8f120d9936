"""Where the bytes are: per role by counting tensors, per phase by measuring the peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from lockstep.params.ppo import PpoParams
from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Backbone, Role


def bytes_per_role(backbone: Backbone, value_head: ScalarHead, params: PpoParams) -> dict[str, int]:
    """Bytes that stay in memory: the backbone once, each role's adapter, the head, gradients, Adam's two moments."""
    adapters = {role: _bytes(backbone.parameters_of(role).values()) for role in Role if backbone.has(role)}
    own = {id(parameter) for role in adapters for parameter in backbone.parameters_of(role).values()}
    base = [p for p in (*backbone.model.parameters(), *backbone.model.buffers()) if id(p) not in own]
    trained = sum(adapters[role] for role in backbone.trainable) + _bytes(value_head.parameters())
    return {
        "backbone": _bytes(base) + _quantisation_bytes(backbone.model),
        **{f"adapter/{role}": size for role, size in adapters.items()},
        "value_head": _bytes(value_head.parameters()),
        "gradients": trained,
        "optimizer": trained // 2 if "8bit" in params.optim else 2 * trained,
    }


def bytes_per_phase(backbone: Backbone, params: PpoParams) -> dict[str, int]:
    """Bytes that come and go, by arithmetic: KV cache of a rollout, logits of a sampling step and of a chunk."""
    config = backbone.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows, length = params.per_device_rollout_batch_size, params.max_prompt_length + params.max_new_tokens
    element = torch.empty((), dtype=backbone.model.dtype).element_size()
    return {
        "rollout/kv_cache": 2 * config.num_hidden_layers * heads * head_size * rows * length * element,
        # draw() holds logits, probabilities and their running sum, the last two in float64.
        "rollout/logits": rows * config.vocab_size * (element + 16),
        "scoring/logits": 3 * params.logprob_chunk_size * config.vocab_size * 4,
    }


def _bytes(tensors: object) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)  # type: ignore[attr-defined]


def _quantisation_bytes(model: nn.Module) -> int:
    """Scales that bitsandbytes keeps beside packed weights and not as parameters."""
    total = 0
    for parameter in model.parameters():
        scales = [getattr(parameter, "SCB", None), getattr(getattr(parameter, "quant_state", None), "absmax", None)]
        total += _bytes([scale for scale in scales if isinstance(scale, Tensor)])
    return total


def memory_report(table: dict[str, int], peaks: dict[str, int]) -> dict[str, dict[str, int]]:
    """What run.json keeps: counted bytes and measured peaks."""
    return {"counted_bytes": table, "peak_bytes": peaks}


def memory_lines(table: dict[str, int]) -> list[str]:
    """The counted bytes for people, one line per name."""
    width = max(len(name) for name in table)
    return [f"  {name:<{width}}  {size / (1 << 20):10,.1f} MiB" for name, size in table.items()]


@dataclass
class PeakMemory:
    """Peak bytes per phase: allocated on the GPU, else resident in this process."""

    device: torch.device
    peaks: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures one phase; the largest of all its passes is kept."""
        self._reset()
        try:
            yield
        finally:
            self.peaks[name] = max(self.peaks.get(name, 0), self._peak())

    @property
    def largest(self) -> int:
        """Bytes, over all phases."""
        return max(self.peaks.values(), default=0)

    def _reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            # Linux proc(5): 5 resets the peak resident set size. Where that is forbidden, the peak is since the start.
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
