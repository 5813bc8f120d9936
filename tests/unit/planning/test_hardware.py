"""Hardware as the command line words it, and what a plan makes of it. No simulation here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.foundation.errors import UsageError
from lockstep.params.experiment import Experiment
from lockstep.params.gpus import GPUS, gpu_named, gpu_type
from lockstep.planning.hardware import Asked, Hardware, hardware_for, with_ranks
from lockstep.planning.results import PhaseUse, Plan, StagePlan, StorageUse, TimeUse
from tiny_llama import experiment

GIB = 1 << 30
A100 = {"gpu": "a100-80g", "gpus_per_node": 8}


def stated() -> Experiment:
    """An experiment for 16 A100s."""
    return experiment(sft={"num_processes": 16}, run={"hardware": A100})


def stage(*, peak: int, capacity: int = 80 * GIB, allowance: int = 4 * GIB, host: int = 0) -> StagePlan:
    """A plan of one phase."""
    return StagePlan(
        stage="sft",
        num_ranks=16,
        num_nodes=2,
        capacity_bytes=capacity,
        phases={"backward": PhaseUse({"parameters": peak})},
        allowance={"cuda context": allowance},
        storage=StorageUse(host, 0, 0, 1, 0, 0),
        time=TimeUse(1, 1, 1.0, None),
        num_parameters=1,
        num_trained=1,
        host_capacity_bytes=100 * GIB,
    )


@pytest.mark.parametrize(
    ("peak", "verdict"), [(60 * GIB, "fits"), (74 * GIB, "tight"), (76 * GIB, "tight"), (76 * GIB + 1, "no")]
)
def test_the_verdict_compares_tensors_and_allowance_with_the_memory(peak: int, verdict: str) -> None:
    assert stage(peak=peak).verdict == verdict


def test_too_little_host_memory_is_a_no_too() -> None:
    assert stage(peak=GIB, host=101 * GIB).verdict == "no"


def test_the_top_of_a_plan_holds_the_largest_needs_and_the_worst_verdict() -> None:
    small, large = stage(peak=GIB), replace(stage(peak=79 * GIB), stage="ppo")
    told = Plan("name", "a100-80g", [small, large]).as_json()
    assert told["peak_gpu_bytes"] == 79 * GIB
    assert told["verdict"] == "no"
    assert told["phases"]["backward"]["stage"] == "ppo"
    assert {"allowance_bytes", "host_load_bytes_per_node", "checkpoint_bytes"} <= told.keys()
    assert told["stages"]["sft"]["verdict"] == "fits"


def test_the_recipe_says_the_hardware_and_the_command_line_changes_it() -> None:
    assert hardware_for(stated(), Asked()).gpu == GPUS["a100-80g"]
    assert hardware_for(stated(), Asked(gpu="h200")).memory_bytes == 143771 << 20
    assert hardware_for(stated(), Asked(gpu_memory_gib=40)).memory_bytes == 40 * GIB


def test_without_a_gpu_the_plan_is_for_the_cpus_of_this_machine() -> None:
    hardware = hardware_for(experiment(), Asked())
    assert hardware.device == "cpu"
    assert hardware.capacity_bytes(2) == hardware.memory_bytes // 2
    assert hardware.num_nodes(2) == 1


@pytest.mark.parametrize(
    ("asked", "ranks", "per_node"),
    [
        (Asked(), 16, 8),
        (Asked(num_gpus=8), 8, 8),
        (Asked(num_nodes=4), 32, 8),
        (Asked(num_gpus=8, num_nodes=2), 8, 4),
    ],
)
def test_gpus_counts_all_of_them(asked: Asked, ranks: int, per_node: int) -> None:
    hardware = hardware_for(stated(), asked)
    assert with_ranks(stated(), hardware, asked).sft.num_processes == ranks
    assert hardware.gpus_per_node == per_node


def test_gpus_that_do_not_divide_over_the_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="7 GPUs do not divide over 2 nodes"):
        hardware_for(stated(), Asked(num_gpus=7, num_nodes=2))


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'a100-80g'"):
        gpu_type("a100-80gb")
    with pytest.raises(UsageError, match="Did you mean 'rtx4090'"):
        experiment(run={"hardware": {"gpu": "rtx-4090"}})


def test_a_gpu_is_known_by_the_name_that_cuda_gives_it() -> None:
    assert gpu_named("NVIDIA A100-SXM4-80GB") == GPUS["a100-80g"]
    assert gpu_named("NVIDIA H100 PCIe") == GPUS["h100-pcie"]
    assert gpu_named("NVIDIA GeForce RTX 4090") == GPUS["rtx4090"]
    assert gpu_named("Something Else") is None


def test_the_allowance_grows_with_what_comes_and_goes_and_with_communication() -> None:
    hardware = Hardware("rtx4090", "cuda", 24564 << 20, 1, GPUS["rtx4090"])
    quiet = hardware.allowance(1, {"parameters": 20 * GIB})
    busy = hardware.allowance(2, {"parameters": 20 * GIB, "activations": 2 * GIB})
    assert quiet["fragmentation"] == quiet["nccl"] == 0
    assert busy["nccl"] > 0
    assert busy["fragmentation"] == pytest.approx(0.1 * GIB, abs=1)
