"""Commands of others (git, nvidia-smi, docker), started in one place: for their answer, or shown while they run."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.foundation.errors import LockstepError

_TIMEOUT_S = 30.0


def capture(args: Sequence[str], cwd: Path | None = None, timeout_s: float = _TIMEOUT_S) -> str | None:
    """The standard output of a command, or None where it is missing, fails or takes longer than `timeout_s`.

    Undecodable bytes come back as surrogates, so that writing the text with `surrogateescape` gives the same bytes.
    """
    try:
        done = subprocess.run(
            list(args),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            encoding="utf-8",
            errors="surrogateescape",
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def run_shown(args: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Runs a long command whose progress a person watches; `env` is added to the caller's environment.

    Raises LockstepError with the command and its exit code when it fails or is missing.
    """
    try:
        code = subprocess.run(list(args), cwd=cwd, env={**os.environ, **(env or {})}, check=False).returncode
    except OSError as error:
        raise LockstepError(f"{args[0]} cannot be started: {error.strerror}; is it installed?") from None
    if code != 0:
        raise LockstepError(f"`{shlex.join(args)}` ended with {code}; what went wrong stands above")
