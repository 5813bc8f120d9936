"""The checks that need a GPU (`make test-gpu`): each runs a script of benchmarks/gpu and judges what it printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
PROJECT = Path(__file__).parents[2]
NO_GPU = 77


def found(script: str, *words: str) -> list[dict[str, Any]]:
    """What a benchmark printed for programs. Skips, loudly, where it found no GPU."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / "gpu" / script), *words],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode == NO_GPU:
        pytest.skip(f"NO GPU: {script} was not run, and what it shows is not shown")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
@pytest.mark.timeout(620)
def test_a_ppo_step_of_a_20b_model_fits_a_24_gb_card(quantization: str) -> None:
    (result,) = found("ppo_20b.py", "--quantization", quantization, "--cap-gib", "23.5")
    assert result["fits"]
    assert result["num_tokens"] == 16 * 48


@pytest.mark.timeout(620)
def test_the_plan_agrees_with_the_measured_peak_for_three_models() -> None:
    results = found("sft_layers.py")
    assert {result["model"] for result in results} == {"llama-2-70b", "llama-3.1-8b", "gpt-neox-20b"}
    for result in results:
        assert result["plan_over_measured"] == pytest.approx(1, abs=0.05), result
        assert result["mfu"] > 0.2, result


@pytest.mark.timeout(620)
def test_a_resumed_run_has_the_same_bits() -> None:
    (result,) = found("resume.py")
    assert result["repeatable"]
    assert result["bit_exact"]
    assert result["first_resumed_step"] == 4
