"""A run that is killed, anywhere, ends with the same bits as one that is not: real processes, SIGKILL, random moments.

LOCKSTEP_KILLS sets how many (2; 12 where CI is set); LOCKSTEP_KILL_SEED repeats a printed seed. `make soak` has 60.
"""

from __future__ import annotations

import os
import random

import pytest

from kill_harness import STEPS_PER_KILL, KillHarness, sft_harness

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]
NUM_KILLS = int(os.environ.get("LOCKSTEP_KILLS", "12" if os.environ.get("CI") else "2"))
SEED = int(os.environ.get("LOCKSTEP_KILL_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> KillHarness:
    """A clone of this checkout in which sft is ready to run: two FSDP2 ranks, dropout, accumulation, evaluation."""
    return sft_harness(tmp_path_factory.mktemp("killed"), NUM_KILLS, SEED)


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(harness: KillHarness) -> None:
    reference = harness.reference()
    series = harness.series("killed")
    series.kill_and_resume(NUM_KILLS)
    assert series.results() == reference
    assert len(series.attempts) == NUM_KILLS + 1


def test_the_harness_notices_a_run_that_begins_again(harness: KillHarness) -> None:
    """The same harness, with the checkpoints gone before the second attempt: nothing is loaded."""
    series = harness.series("forgetful")
    series.attempt("all ranks")
    series.forget()
    with pytest.raises(AssertionError, match="began again at step 0"):
        series.attempt("all ranks")
    assert len(series.attempts) == 2
    assert series.attempts[0].end_step >= STEPS_PER_KILL // 2
