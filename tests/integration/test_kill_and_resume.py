"""A run that is killed, anywhere, ends with the same bits as one that is not: real processes, SIGKILL, random moments.

LOCKSTEP_KILLS sets how many, half of them sft and half ppo (2; CI has 12); LOCKSTEP_KILL_SEED repeats a printed seed.
`make soak` has 60.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from kill_harness import Series, ppo_harness, sft_harness

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]
NUM_KILLS = int(os.environ.get("LOCKSTEP_KILLS", "2")) // 2
SEED = int(os.environ.get("LOCKSTEP_KILL_SEED", random.SystemRandom().randrange(1 << 32)))


@dataclass(frozen=True)
class Story:
    """One run undisturbed, the same run killed and resumed, and a copy of that one from behind its first kill."""

    reference: str
    killed: Series
    forgetful: Series


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it in one clone: sft on two FSDP2 ranks with dropout, accumulation and evaluation in between."""
    harness = sft_harness(tmp_path_factory.mktemp("killed"), NUM_KILLS, SEED)
    reference = harness.reference()
    killed = harness.series("killed")
    killed.kill_once()
    forgetful = killed.copy("forgetful")
    killed.kill_and_resume(NUM_KILLS)
    return Story(reference, killed, forgetful)


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(story: Story) -> None:
    assert story.killed.results() == story.reference
    assert len(story.killed.attempts) == NUM_KILLS + 1


def test_the_harness_notices_a_run_that_begins_again(story: Story) -> None:
    """The same harness, with loading switched off: the checkpoints are gone before the second attempt."""
    story.forgetful.forget()
    with pytest.raises(AssertionError, match="began again at step 0"):
        story.forgetful.kill_once()


def test_killed_ppo_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    harness = ppo_harness(tmp_path, NUM_KILLS, SEED)
    reference = harness.reference()
    killed = harness.series("killed")
    killed.kill_and_resume(NUM_KILLS)
    assert killed.results() == reference
