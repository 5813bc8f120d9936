"""`make repro` on a fresh clone, with an environment of its own: the default experiment and what it must reach."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from e2e.clones import STAGES, Clone
from lockstep.tracking.spool import curve
from lockstep.tracking.system import SYSTEM

pytestmark = pytest.mark.timeout(2400)
_GIB = 1 << 30


def test_the_default_experiment(tmp_path: Path) -> None:
    clone = Clone.make(tmp_path, share_environment=False)
    started = time.monotonic()
    done = clone.run("make", "repro")
    seconds = time.monotonic() - started
    assert str(clone.path / "results" / "report" / "report.html") in done.stdout
    assert (clone.path / "results" / "report" / "report.html").stat().st_size > 10_000

    metrics = clone.result("evaluate", "metrics.json")
    peak = max(_peak_bytes(clone, stage) for stage in STAGES if "run_id" in clone.result(stage))
    print(json.dumps(metrics, indent=2))
    print(f"make repro: {seconds / 60:.1f} min in all, peak memory {peak / _GIB:.2f} GiB")
    for sample in clone.result("evaluate", "samples.json")[:3]:
        print(json.dumps(sample, indent=2, ensure_ascii=False))

    sft, ppo = metrics["sft"], metrics["ppo"]
    assert sft["perplexity_tuned"] <= 0.75 * sft["perplexity_base"]
    assert ppo["reward_gain_ci95"][0] > 0
    assert ppo["judge_gain_ci95"][0] > 0
    assert ppo["kl_per_token"] <= 0.25
    assert ppo["distinct2_ratio"] >= 0.8
    assert peak < 8 * _GIB

    for words, files in (
        (("ppo",), "adapter_config.json"),
        (("ppo", "--merge"), "config.json"),
        (("sft",), "config.json"),
    ):
        dest = tmp_path / "-".join(words)
        clone.run("./lockstep", "export", *words, str(dest))
        assert {files, "README.md"} < {path.name for path in dest.iterdir()}

    started = time.monotonic()
    assert "Nothing to do" in clone.run("make", "repro").stdout
    print(f"a second make repro: {time.monotonic() - started:.1f} s")


def _peak_bytes(clone: Clone, stage: str) -> float:
    run = clone.path / "runs" / stage / clone.result(stage)["run_id"]
    return 1e6 * max(value for _, value in curve(run / SYSTEM, "system/system_memory_usage_megabytes"))
