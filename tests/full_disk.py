"""Run by tests/integration/test_full_disk.py inside a mount namespace of its own: a small tmpfs fills up during a save.

Prints one JSON object: what stood before, what was said, what stood after.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from file_events import FileEvents
from lockstep.checkpoints.catalog import leftovers, list_steps
from lockstep.checkpoints.store import CheckpointStore
from lockstep.foundation.errors import LockstepError

STATE_BYTES = 128 << 20
SIZE_BYTES = 3 * STATE_BYTES + (16 << 20)


def main(mount_point: Path) -> None:
    """Two saves: one fits, one passes the check beforehand and then meets a disk that someone else filled."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(mount_point)], check=True)
    root = mount_point / "checkpoints"
    store = CheckpointStore(root, run_id="run", asynchronous=True)
    _save(store, 1)
    store.wait()
    with FileEvents(root) as events:
        _save(store, 2)
        filler = _fill_once_the_save_has_begun(events, mount_point)
    message = _message(store)
    after_failure = {"steps": list_steps(root), "left": len(leftovers(root)), "loads": _newest(store)}
    too_full = _refused(store)
    filler.unlink()
    _save(store, 3)
    store.wait()
    seen = {"message": message, "after": after_failure, "too_full": too_full, "then": list_steps(root)}
    print(json.dumps(seen))


def _fill_once_the_save_has_begun(events: FileEvents, mount_point: Path) -> Path:
    filler = mount_point / "filler"
    for path, _ in events.follow(timeout_s=60):
        if path.name.endswith(".tmp"):
            break
    with open(filler, "wb") as file:
        _fill(file.fileno())
    return filler


def _fill(file: int) -> None:
    """Takes every free page, in ever smaller pieces: the save that is under way takes some of them meanwhile."""
    piece, size = STATE_BYTES, 0
    while piece >= os.sysconf("SC_PAGESIZE"):
        try:
            os.posix_fallocate(file, size, piece)
            size += piece
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            piece //= 2


def _save(store: CheckpointStore, step: int) -> None:
    state = {"w": torch.full((STATE_BYTES // 4,), float(step))}
    store.save(step, state, per_rank={}, facts={})


def _message(store: CheckpointStore) -> str:
    try:
        store.wait()
    except LockstepError as error:
        return str(error)
    return "nothing was raised"


def _refused(store: CheckpointStore) -> str:
    """On a disk that is full beforehand nothing is begun."""
    _save(store, 3)
    return _message(store)


def _newest(store: CheckpointStore) -> int:
    found = store.newest(verify="full")
    assert found is not None
    tensors = {"w": torch.zeros(STATE_BYTES // 4)}
    store.load(found, tensors)
    assert torch.equal(tensors["w"], torch.full_like(tensors["w"], float(found.step)))
    return found.step


if __name__ == "__main__":
    main(Path(sys.argv[1]))
