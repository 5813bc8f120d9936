"""Plan against reality: what small models are planned to hold, and the tensor bytes that training them really holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import plan_cases

pytestmark = pytest.mark.integration
SCRIPT = Path(plan_cases.__file__)


@pytest.fixture(scope="module")
def planned_and_held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Bytes by case; one process plans, one trains alone, two train together."""
    folder = tmp_path_factory.mktemp("plan")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for words in ([str(SCRIPT), "plan"], [str(SCRIPT), "run"], [*torchrun, str(SCRIPT), "run"]):
        paths = os.pathsep.join([str(SCRIPT.parent), str(SCRIPT.parents[1] / "src")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, *words, str(folder)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    planned = json.loads((folder / "planned.json").read_text())
    held = {}
    for ranks in (1, 2):
        held |= json.loads((folder / f"held-{ranks}.json").read_text())
    return {name: (planned[name], held[name]) for name in planned}


@pytest.mark.parametrize("name", plan_cases.CASES)
def test_a_rank_holds_what_was_planned(planned_and_held: dict[str, tuple[int, int]], name: str) -> None:
    planned, held = planned_and_held[name]
    assert planned == pytest.approx(held, rel=0.05)


def test_checkpointing_sharding_and_adapters_are_among_the_cases() -> None:
    """What makes the cases differ: a plan that ignored it could not pass them all."""
    cases = plan_cases.CASES.values()
    assert len(plan_cases.CASES) >= 6
    assert {case.num_ranks for case in cases} == {1, 2}
    assert any(case.sft is None for case in cases)
    assert any((case.sft or {}).get("peft") for case in cases)
    assert any((case.sft or {}).get("activation_checkpointing") for case in cases)
