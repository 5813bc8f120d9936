"""What a person sees while it trains, and what goes to the metric spool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lockstep.training.common.ranks import Ranks
from lockstep.training.common.throughput import FlopsModel, as_duration, peak_flops, peak_memory_bytes

_GIB = 1 << 30
_SMOOTHING = 0.9


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all ranks."""

    step: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    """None where fp16 gradients overflowed and the step was left out."""
    num_tokens: int
    num_supervised_tokens: int
    total_tokens: int
    loss_scale: float | None = None
    """Of fp16, after this step."""


@dataclass
class Progress:
    """Prints a line every `logging_steps` on rank 0 and hands every step to the spool."""

    ranks: Ranks
    max_steps: int
    logging_steps: int
    global_batch_size: int
    flops: FlopsModel
    compute: str
    log_metrics: Callable[[int, dict[str, float]], None]
    last_checkpoint: int | None = None
    step_s: float | None = None
    """Seconds per step, an exponential mean without evaluation and saving; the first step warms up and drops out."""
    _num_timed: int = 0
    _mark: float = field(default_factory=time.perf_counter)

    def restart_clock(self) -> None:
        """Leaves what came since the last step (evaluation, saving) out of the next step's time."""
        self._mark = time.perf_counter()

    def step(self, report: StepReport) -> None:
        """Takes in one step that ends now."""
        seconds = time.perf_counter() - self._mark
        self._time(seconds)
        tokens_per_s = report.num_tokens / seconds
        mfu = self._mfu(report, seconds)
        values = {
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "num_tokens": float(report.total_tokens),
            "tokens_per_s": tokens_per_s,
            "memory/peak_bytes": float(peak_memory_bytes(self.ranks.device)),
        }
        known = {"grad_norm": report.grad_norm, "loss_scale": report.loss_scale, "mfu": mfu}
        self.log_metrics(report.step, values | {name: value for name, value in known.items() if value is not None})
        if report.step % self.logging_steps == 0 or report.step == self.max_steps:
            self._say(self._line(report, tokens_per_s, mfu))

    def _time(self, seconds: float) -> None:
        self._num_timed += 1
        if self.step_s is None or self._num_timed == 2:
            self.step_s = seconds
        else:
            self.step_s = _SMOOTHING * self.step_s + (1 - _SMOOTHING) * seconds

    def evaluation(self, step: int, loss: float, perplexity: float) -> None:
        """Takes in a held-out loss."""
        self.log_metrics(step, {"eval_loss": loss})
        self._say(f"step {step}/{self.max_steps}  held-out loss {loss:.4f}  perplexity {perplexity:.3f}")

    def note(self, text: str) -> None:
        """Says something that is no number."""
        self._say(text)

    def _mfu(self, report: StepReport, seconds: float) -> float | None:
        peak = peak_flops(self.ranks.device, self.compute)
        if peak is None:
            return None
        flops = self.flops.flops(
            report.num_tokens, report.num_supervised_tokens, report.num_tokens // self.global_batch_size
        )
        return flops / seconds / (peak * self.ranks.world_size)

    def _line(self, report: StepReport, tokens_per_s: float, mfu: float | None) -> str:
        assert self.step_s is not None
        parts = [
            f"step {report.step}/{self.max_steps}",
            f"loss {report.loss:.4f}",
            f"lr {report.learning_rate:.2e}",
            "overflow, left out" if report.grad_norm is None else f"grad {report.grad_norm:.3f}",
            f"{tokens_per_s:,.0f} tokens/s",
            f"ETA {as_duration(self.step_s * (self.max_steps - report.step))}",
            f"peak {peak_memory_bytes(self.ranks.device) / _GIB:.2f} GiB",
        ]
        if mfu is not None:
            parts.insert(5, f"MFU {mfu:.1%}")
        if self.last_checkpoint is not None:
            parts.append(f"saved at {self.last_checkpoint}")
        return "  ".join(parts)

    def _say(self, text: str) -> None:
        if self.ranks.is_main:
            print(text, flush=True)


def summed_over_ranks(values: list[torch.Tensor], ranks: Ranks) -> list[float]:
    """Sums scalars over all ranks in fp64, in one collective on the CPU."""
    stacked = torch.stack([value.detach().double().cpu() for value in values])
    torch.distributed.all_reduce(stacked, group=ranks.control)
    return [float(value) for value in stacked]
