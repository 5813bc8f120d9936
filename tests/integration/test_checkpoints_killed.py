"""SIGKILL at a random file event of a save, on one rank or all: the last good checkpoint is never lost.

LOCKSTEP_SAVE_KILLS sets how many (default 8); LOCKSTEP_KILL_SEED repeats a printed seed.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from file_events import FileEvents
from lockstep.checkpoints.store import CheckpointStore
from save_loop import check, save_forever
from worlds import TIMEOUT_S, World

pytestmark = pytest.mark.integration
EVENTS_PER_SAVE = 30
"""About what one save of two ranks causes, its removal of an old one included."""


def _run_and_kill(root: Path, draw: random.Random) -> int:
    """Lets two ranks save and kills at a random event behind the first new checkpoint; returns the last that stood."""
    asynchronous, victims = draw.random() < 0.5, draw.choice([[0], [1], [0, 1]])
    stood, left = 0, draw.randrange(3 * EVENTS_PER_SAVE)
    with FileEvents(root) as events, World(2, save_forever, root, asynchronous) as world:
        for path, arrived in events.follow(TIMEOUT_S):
            step = re.fullmatch(r"step-(\d+)", path.name)
            if arrived and step and path.parent == root:
                stood = int(step[1])
            left -= 1 if stood else 0
            if left < 0:
                break
        for victim in victims:
            world.ranks[victim].kill()
        for process in world.ranks:
            process.join(TIMEOUT_S)
            assert process.exitcode not in (None, 0), "a rank hangs or calls itself done after another was killed"
    print(f"killed rank(s) {victims}, {'asynchronous' if asynchronous else 'synchronous'}, step {stood} stood")
    return stood


def test_a_kill_during_a_save_never_loses_the_last_good_checkpoint(tmp_path: Path) -> None:
    seed = int(os.environ.get("LOCKSTEP_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    num_kills = int(os.environ.get("LOCKSTEP_SAVE_KILLS", "8"))
    print(f"LOCKSTEP_KILL_SEED={seed}")
    draw = random.Random(seed)
    for kill in range(1, num_kills + 1):
        stood = _run_and_kill(tmp_path, draw)
        store = CheckpointStore(tmp_path, run_id="killed")
        found = store.newest(verify="full")
        assert found is not None, f"kill {kill}: nothing is left"
        assert found.step >= stood, f"kill {kill}: step {stood} stood, and only {found.step} is left"
        assert found.skipped == (), f"kill {kill}: {found.skipped}"
        check(store, found)
    print(f"{num_kills} kills tried, {num_kills} survived, step {found.step} reached")
