"""Errors a person reads: what happened, where, and how to mend it. Each carries the exit code of the command."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong use or wrong parameters; nothing was started."""
EXIT_SAVED = 85
"""State was saved; the same command goes on from there."""
EXIT_DO_NOT_RETRY = 93
"""Running again cannot help: no progress, or a lock does not match."""


class LockstepError(Exception):
    """A failure with a message for people. The command line prints it without a traceback."""

    exit_code = EXIT_FAILED


class UsageError(LockstepError):
    """Wrong parameters, files or arguments; raised before anything expensive starts."""

    exit_code = EXIT_USAGE


class DoNotRetryError(LockstepError):
    """A state that another attempt cannot cure."""

    exit_code = EXIT_DO_NOT_RETRY


class StoppedAfterSave(LockstepError):  # noqa: N818 - an outcome that was asked for
    """A requested stop: the state is saved and the same command goes on from it."""

    exit_code = EXIT_SAVED


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the closest known name, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.55)
    return f" Did you mean '{match[0]}'?" if match else ""
