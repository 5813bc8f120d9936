"""The GPU benchmarks rehearsed on the CPU, so that they work the day a GPU is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration
PROJECT = Path(__file__).parents[2]


def rehearsed(script: str, *words: str) -> list[dict[str, Any]]:
    """What a benchmark printed in a rehearsal."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / "gpu" / script), "--rehearse", *words],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def test_a_ppo_step_on_an_int8_base_of_random_weights() -> None:
    (result,) = rehearsed("ppo_20b.py", "--quantization", "int8")
    assert result["num_tokens"] == 16 * 48
    assert result["step_s"] > 0


def test_resume() -> None:
    (result,) = rehearsed("resume.py")
    assert result["repeatable"]
    assert result["bit_exact"]
    assert result["first_resumed_step"] == 4


@pytest.mark.soak
def test_speed_and_plan_of_real_width_layers() -> None:
    results = rehearsed("sft_layers.py", "--steps", "4")
    assert len(results) == 4
    assert all(result["planned_peak_bytes"] > 0 and result["tokens_per_s"] > 0 for result in results)


def test_without_a_gpu_a_benchmark_says_so_and_does_not_pass() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    script = str(PROJECT / "benchmarks" / "gpu" / "resume.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert "SKIPPED: no GPU" in done.stderr
