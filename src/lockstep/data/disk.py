"""Writing a folder whole or not at all, with a full disk explained."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import fsync_directory


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target` that takes its place when the context ends without an error.

    With an error, what was written is removed and an earlier `target` stays. Raises LockstepError for a full disk.
    """
    staging = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        with disk_full_explained(target):
            staging.mkdir(parents=True)
            yield staging
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            fsync_directory(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def disk_full_explained(target: Path) -> Iterator[None]:
    """Turns "no space left" (or a quota, or a size limit) into a LockstepError that says which disk, and what now."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        parent = next(folder for folder in target.parents if folder.exists())
        free = shutil.disk_usage(parent).free
        raise LockstepError(
            f"The disk is full: {target} could not be written ({os.strerror(error.errno)}; {free / 1e6:,.0f} MB free "
            f"in {parent}).\nNothing half-written was left. Free some space and repeat the command."
        ) from error
