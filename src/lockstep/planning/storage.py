"""Host memory at load and save, and disk: arithmetic on what the simulation counted."""

from __future__ import annotations

from lockstep.params.experiment import Experiment
from lockstep.planning.hardware import Hardware
from lockstep.planning.results import StorageUse

_GIB = 1 << 30
_GPU_PROCESS_BYTES = int(2.5 * _GIB)
"""Resident host memory of a process that has imported the training stack and opened a CUDA context."""
_CPU_PROCESS_BYTES = int(0.9 * _GIB)
_EXPORT_FILE_BYTES = 4 * _GIB
"""Rank 0 fills one file of this size before it writes it (models/model_folder.py)."""
_READERS = 4
"""Tensors that Transformers' loader reads at one time."""
_MANIFESTS_BYTES = 1 << 20


def storage_use(
    experiment: Experiment,
    hardware: Hardware,
    num_ranks: int,
    sizes: dict[str, int],
    num_steps: int | None,
    *,
    sft: bool,
) -> StorageUse:
    """Host bytes per node and disk bytes of one stage.

    Loading: no rank holds the whole model on the host unless it is alone; on a CPU its own shard is host memory.
    Saving: a piece at a time, or the whole local state at once where the save is asynchronous.
    """
    per_node = min(num_ranks, hardware.gpus_per_node)
    process = _GPU_PROCESS_BYTES if hardware.device == "cuda" else _CPU_PROCESS_BYTES
    checkpoint = sizes["trained_bytes"] + sizes["optimizer_bytes"] + _MANIFESTS_BYTES
    kept = _num_kept(experiment, num_steps)
    whole_model = sft and experiment.sft.peft is None
    saving = process + _staged(experiment, sizes)
    exporting = min(_EXPORT_FILE_BYTES, sizes["model_bytes"]) + sizes["largest_tensor_bytes"] if whole_model else 0
    return StorageUse(
        host_load_bytes_per_node=per_node * (process + _loaded(experiment, hardware, num_ranks, sizes)),
        host_save_bytes_per_node=per_node * saving + exporting,
        checkpoint_bytes=checkpoint,
        num_kept=kept,
        kept_bytes=kept * checkpoint,
        export_bytes=sizes["model_bytes"] if whole_model else sizes["trained_bytes"],
    )


def _loaded(experiment: Experiment, hardware: Hardware, num_ranks: int, sizes: dict[str, int]) -> int:
    reading = _READERS * sizes["largest_tensor_weights"] * 2  # large models are 16-bit on disk
    alone = num_ranks == 1 and experiment.model.quantization is None
    if hardware.device == "cpu" or alone:
        return sizes["local_model_bytes"] + reading
    return reading


def _staged(experiment: Experiment, sizes: dict[str, int]) -> int:
    return sizes["local_state_bytes"] if experiment.run.asynchronous_save else sizes["largest_tensor_bytes"]


def _num_kept(experiment: Experiment, num_steps: int | None) -> int:
    """The last few, the permanent ones, and the one that is written before an old one goes."""
    run = experiment.run
    permanent = (num_steps or 0) // run.save_every if run.save_every else 0
    kept = run.save_total_limit + permanent + 1 + (1 if run.keep_best else 0)
    return min(kept, -(-num_steps // run.save_steps)) if num_steps else kept
