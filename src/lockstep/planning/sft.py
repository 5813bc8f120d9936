"""One SFT step on fake tensors: forward, backward, clipping and the optimiser, as the trainer runs them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from trl.trainer.utils import add_fused_lm_head

from lockstep.models.sharding import Layout
from lockstep.models.weights import whole
from lockstep.params.experiment import Experiment
from lockstep.params.sft import SftParams
from lockstep.planning.build import Device, World, mark_model, trained, training_model
from lockstep.planning.fake import FullBatches, fake_mode, fake_ranks
from lockstep.planning.kernels import cuda_head
from lockstep.planning.layers import Sample, mark_layers, sample_all_layers
from lockstep.planning.live import CUDA_BLOCK_BYTES, LiveMemory, Moment
from lockstep.planning.results import Kind
from lockstep.planning.sizes import model_sizes
from lockstep.training.sft.arguments import optimizer_class
from lockstep.training.sft.loss import head_for

_WARM_UP, _STEADY = 0, 1


def sample_sft(config: PretrainedConfig, experiment: Experiment, device: Device) -> Sample:
    """Live bytes of one rank over one steady optimiser step, by moment, and the sizes of what is trained."""
    return sample_all_layers(config, partial(_simulate, experiment=experiment, device=device))


def _simulate(config: PretrainedConfig, experiment: Experiment, device: Device) -> Sample:
    sft, params = experiment.sft, experiment.model
    layout = Layout(sft.num_processes, sft.dp_replicate_size)
    with fake_ranks(layout, params.precision) as mesh:
        world = World(fake_mode(), mesh, layout, device)
        model = training_model(config, params, sft.peft, world)
        with world.mode, FullBatches():
            step = _Step(model, sft, experiment.data.sft.max_length, device)
            live = LiveMemory(block_bytes=CUDA_BLOCK_BYTES if device == "cuda" else 1)
            with cuda_head() if device == "cuda" else nullcontext():
                step.run_tracked(live)
        return Sample(live.peaks(), model_sizes(model, step.optimizer))


class _Step:
    """The trainer's step. Run twice: the first one allocates what stays (optimiser state, gathered buffers)."""

    def __init__(self, model: nn.Module, sft: SftParams, max_length: int, device: Device) -> None:
        self.model, self.sft, self.device = model, sft, device
        self.rows, self.length = sft.per_device_train_batch_size, max_length
        self.phase: str | None = None
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        if sft.activation_checkpointing:
            if base is not model:
                model.enable_input_require_grads()  # type: ignore[operator]
            base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        if device == "cuda":
            add_fused_lm_head(base, outputs=("log_probs", "entropy", "is_top1"))
        self.head = head_for(base, torch.device(device))
        model.train()
        self.optimizer = _optimizer(sft, trained(model), device)

    def run_tracked(self, live: LiveMemory) -> None:
        """Runs both steps under `live`, which notes the moments of the second."""
        mark_layers(self.model, live, lambda: self.phase)
        with live:
            mark_model(live, self.model)
            for turn in (_WARM_UP, _STEADY):
                self._run(live, noted=turn == _STEADY)
                mark_model(live, self.model)

    def _run(self, live: LiveMemory, *, noted: bool) -> None:
        def enter(phase: str, part: str) -> None:
            self.phase = phase if noted else None
            live.at(Moment(phase, part) if noted else None)

        for _ in range(min(2, self.sft.gradient_accumulation_steps)):
            enter("forward", "bottom")
            loss = self.head(self.model, self._batch()) / 1000
            enter("backward", "top")
            with live.within(Kind.TEMPORARY):
                loss.backward()
            del loss
            live.mark(Kind.GRADIENTS, [parameter.grad for parameter in self.model.parameters()])
        enter("optimizer", "")
        with live.within(Kind.TEMPORARY):
            if self.sft.max_grad_norm:
                nn.utils.clip_grad_norm_(trained(self.model), self.sft.max_grad_norm)
            self.optimizer.step()
        live.mark(Kind.OPTIMIZER, [list(state.values()) for state in self.optimizer.state.values()])
        enter("between steps", "")
        self.optimizer.zero_grad(set_to_none=True)
        enter("idle", "")
        if not hasattr(self.model, "get_base_model"):
            enter("export", "")
            whole(max(self.model.parameters(), key=lambda parameter: parameter.numel()))
        self.phase = None
        live.at(None)

    def _batch(self) -> dict[str, Tensor]:
        ids = torch.zeros(self.rows, self.length, dtype=torch.long)
        positions = torch.arange(self.length).expand(self.rows, -1).clone()
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": positions}


def _optimizer(sft: SftParams, parameters: list[nn.Parameter], device: Device) -> torch.optim.Optimizer:
    if (own := optimizer_class(sft)) is not None:
        kind, options = own
        return kind(parameters, **options)
    fused = sft.optim == "adamw_torch_fused"
    return torch.optim.AdamW(
        parameters,
        lr=sft.learning_rate,
        betas=(sft.adam_beta1, sft.adam_beta2),
        weight_decay=sft.weight_decay,
        fused=fused,
        foreach=device == "cuda" and not fused,  # what torch chooses on CUDA when nothing is said
    )
