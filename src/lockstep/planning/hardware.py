"""The hardware a plan is for, and the memory on it that no tensor accounts for."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment
from lockstep.params.gpus import GpuType, gpu_type
from lockstep.planning.results import Kind

_GIB = 1 << 30
_DRIVER_FRACTION = 0.012
"""What the driver keeps of the memory that nvidia-smi shows: 24,564 MiB there is 23.64 GiB to CUDA, 81,920 MiB 79.2."""
_CUDA_CONTEXT_BYTES = _GIB // 2
"""Context with the kernels of torch, cuBLAS and bitsandbytes: 0.4 to 0.6 GiB."""
_NCCL_BYTES = _GIB
"""Buffers of the communicators (ring and tree channels of all-gather and reduce-scatter): 0.5 to 1 GiB."""
_FRAGMENTATION = 0.05
"""Of what comes and goes: blocks of the caching allocator that no request fits. What stays does not fragment."""
_STAYS = (Kind.PARAMETERS, Kind.OPTIMIZER)
_PYTHON_BYTES = int(0.9 * _GIB)
"""Resident memory of a CPU process that has imported the training stack."""


@dataclass(frozen=True)
class Hardware:
    """One kind of device in nodes of one size."""

    name: str
    device: str
    """`cuda` or `cpu`."""
    memory_bytes: int
    """Of one GPU; of one node where the device is the CPU."""
    gpus_per_node: int
    gpu: GpuType | None = None
    host_memory_bytes: int | None = None

    def num_nodes(self, num_ranks: int) -> int:
        """Nodes that so many ranks take."""
        return -(-num_ranks // self.gpus_per_node)

    def capacity_bytes(self, num_ranks: int) -> int:
        """Memory for each rank."""
        if self.device == "cuda":
            return self.memory_bytes
        return self.memory_bytes // min(num_ranks, self.gpus_per_node)

    def allowance(self, num_ranks: int, fullest: dict[str, int]) -> dict[str, int]:
        """Bytes by cause, beside the tensors at the `fullest` point (by kind). Stated, not measured here."""
        if self.device == "cpu":
            return {"process": _PYTHON_BYTES}
        comes_and_goes = sum(size for kind, size in fullest.items() if kind not in _STAYS)
        return {
            "driver": int(_DRIVER_FRACTION * self.memory_bytes),
            "cuda context": _CUDA_CONTEXT_BYTES,
            "nccl": _NCCL_BYTES if num_ranks > 1 else 0,
            "fragmentation": int(_FRAGMENTATION * comes_and_goes),
        }


@dataclass(frozen=True)
class Asked:
    """Hardware as the command line words it; None: as the recipe says."""

    gpu: str | None = None
    gpu_memory_gib: float | None = None
    num_gpus: int | None = None
    num_nodes: int | None = None


def hardware_for(experiment: Experiment, asked: Asked) -> Hardware:
    """What the recipe was made for, changed by what was asked; this machine's CPUs where neither names a GPU.

    Raises UsageError for an unknown GPU type, or GPUs that do not divide over the nodes.
    """
    stated = experiment.run.hardware
    name = asked.gpu or (stated.gpu if stated else None)
    if name is None and asked.gpu_memory_gib is None:
        return _this_machine(asked)
    gpu = gpu_type(name) if name is not None else None
    memory = gpu.memory_bytes if gpu is not None else 0
    if asked.gpu_memory_gib is not None:
        memory = int(asked.gpu_memory_gib * _GIB)
    host = stated.host_memory_gib * _GIB if stated and stated.host_memory_gib else None
    per_node = _per_node(stated.gpus_per_node if stated else 8, asked)
    label = gpu.name if gpu is not None and asked.gpu_memory_gib is None else f"{memory / _GIB:.0f} GiB GPU"
    return Hardware(label, "cuda", memory, per_node, gpu, host)


def _per_node(stated: int, asked: Asked) -> int:
    if asked.num_nodes is None:
        return stated
    if asked.num_gpus is None:
        return stated
    if asked.num_gpus % asked.num_nodes:
        raise UsageError(
            f"{asked.num_gpus} GPUs do not divide over {asked.num_nodes} nodes; --gpus counts all of them."
        )
    return asked.num_gpus // asked.num_nodes


def _this_machine(asked: Asked) -> Hardware:
    memory = psutil.virtual_memory().total
    return Hardware("cpu", "cpu", memory, asked.num_gpus or 1 << 16, host_memory_bytes=memory)


def with_ranks(experiment: Experiment, hardware: Hardware, asked: Asked) -> Experiment:
    """The experiment on as many GPUs as were asked for: the stages that train over several ranks take all of them.

    The global batch follows, as it would if the parameter were changed. Raises UsageError where it cannot.
    """
    if asked.num_gpus is None and asked.num_nodes is None:
        return experiment
    total = asked.num_gpus or (asked.num_nodes or 1) * hardware.gpus_per_node
    if total % experiment.sft.dp_replicate_size:
        raise UsageError(f"{total} GPUs do not divide into sft.dp_replicate_size {experiment.sft.dp_replicate_size}.")
    return experiment.model_copy(update={"sft": experiment.sft.model_copy(update={"num_processes": total})})
