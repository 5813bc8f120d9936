"""System metrics cover the whole process tree, and a GPU's counters where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lockstep.tracking.spool import curve, last_step
from lockstep.tracking.system import ProcessTree, SystemSampler, gpus, system_spools


def test_memory_and_cpu_of_children_count() -> None:
    tree = ProcessTree(psutil.Process())
    before = tree.sample()
    code = "import sys; block = bytearray(200_000_000); sum(range(9**7)); print('up', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        during = tree.sample()
    finally:
        child.kill()
        child.communicate()
    after = tree.sample()
    key = "system/system_memory_usage_megabytes"
    assert during[key] - before[key] > 190
    assert after[key] < during[key] - 190
    assert during["system/cpu_utilization_percentage"] > 0
    assert after["system/cpu_utilization_percentage"] >= 0


def test_samples_of_a_resumed_run_count_on(tmp_path: Path) -> None:
    spool = tmp_path / "system.jsonl"
    for attempt in (1, 2):
        with SystemSampler(tmp_path, attempt, interval_s=0.01):
            pass
    steps = [step for step, _ in curve(spool, "system/disk_available_megabytes")]
    assert steps == list(range(1, len(steps) + 1))
    assert last_step(spool) == len(steps) >= 2


def test_each_node_of_a_cluster_has_its_own_names(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        with SystemSampler(tmp_path, 1, node=node, interval_s=0.01):
            pass
    assert system_spools(tmp_path) == ["system.n1.jsonl", "system.n2.jsonl"]
    assert curve(tmp_path / "system.n2.jsonl", "system/n2/system_memory_usage_megabytes")


def test_gpu_counters_are_read_and_missing_ones_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf '0, 97, 20480, 312.55\\n1, 3, 12, [N/A]\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus() == {
        "system/gpu_0_utilization_percentage": 97.0,
        "system/gpu_0_memory_usage_megabytes": pytest.approx(21474.8, abs=0.1),
        "system/gpu_0_power_usage_watts": 312.55,
        "system/gpu_1_utilization_percentage": 3.0,
        "system/gpu_1_memory_usage_megabytes": pytest.approx(12.6, abs=0.1),
    }
