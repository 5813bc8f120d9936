"""The long form of tests/integration/test_kill_and_resume.py and of test_checkpoints_killed.py (`make soak`)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kill_harness import sft_harness

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
NUM_KILLS = int(os.environ.get("LOCKSTEP_KILLS", "60"))
SEED = int(os.environ.get("LOCKSTEP_KILL_SEED", random.SystemRandom().randrange(1 << 32)))


def test_sixty_kills_end_with_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    harness = sft_harness(tmp_path, NUM_KILLS, SEED)
    reference = harness.reference()
    series = harness.series("killed")
    series.kill_and_resume(NUM_KILLS)
    assert series.results() == reference
