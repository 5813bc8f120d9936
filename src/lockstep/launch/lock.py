"""One launcher per run directory, agreed by a file lock that ends with the process."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.foundation.errors import LockstepError
from lockstep.runs.directory import RunDirectory

LOCK = "launcher.lock"


@contextmanager
def exclusive(directory: RunDirectory) -> Iterator[None]:
    """Holds the run for this process. Raises LockstepError naming the holder when another launcher has it."""
    directory.control.mkdir(parents=True, exist_ok=True)
    path = directory.control / LOCK
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise LockstepError(
                f"This very run is going on already ({file.read().strip()}).\n"
                f"Watch it in {directory.log}, or stop it with: ./lockstep stop {directory.root.name}"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
