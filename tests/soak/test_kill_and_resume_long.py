"""The long form of tests/integration/test_kill_and_resume.py and of test_checkpoints_killed.py (`make soak`)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kill_harness import KillHarness, ppo_harness, sft_harness

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
NUM_KILLS = int(os.environ.get("LOCKSTEP_KILLS", "60")) // 2
SEED = int(os.environ.get("LOCKSTEP_KILL_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.parametrize("make", [sft_harness, ppo_harness])
def test_sixty_kills_end_with_the_bits_of_an_undisturbed_run(
    make: Callable[[Path, int, int], KillHarness], tmp_path: Path
) -> None:
    harness = make(tmp_path, NUM_KILLS, SEED)
    reference = harness.reference()
    series = harness.series("killed")
    series.kill_and_resume(NUM_KILLS)
    assert series.results() == reference
