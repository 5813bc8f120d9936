"""Short commands whose answer is wanted (git, nvidia-smi), started in one place; lacking one is no error."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

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
