"""Slurm's commands, which exist on the host only. Inside the image they are handed to the ./lockstep that started it.

That shim sets LOCKSTEP_RELAY to a folder, runs every `N.request` that appears there as a shell script, and leaves its
output as `N.out`, `N.err` and, last, `N.code`.
"""

from __future__ import annotations

import itertools
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.cluster.site import variables
from lockstep.foundation.errors import LockstepError
from lockstep.foundation.files import write_atomic

_TIMEOUT_S = 120.0
_POLL_S = 0.05
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """How a command ended; code 127 means that the host does not have it."""

    code: int
    out: str
    err: str


def host_command(words: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> Answer:
    """Runs a command on the host, `environment` added to its variables. Raises LockstepError when no answer comes."""
    relay = variables().get("LOCKSTEP_RELAY")
    if relay:
        return _through_relay(Path(relay), words, cwd, environment or {})
    try:
        done = subprocess.run(
            list(words),
            cwd=cwd,
            env={**variables(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return Answer(127, "", f"{words[0]}: not found")
    except subprocess.TimeoutExpired:
        raise LockstepError(
            f"{words[0]} did not answer within {_TIMEOUT_S:.0f} s; is the Slurm controller up?"
        ) from None
    return Answer(done.returncode, done.stdout, done.stderr)


def _through_relay(relay: Path, words: Sequence[str], cwd: Path | None, environment: Mapping[str, str]) -> Answer:
    name = str(next(_numbers))
    settings = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
    change = f"cd {shlex.quote(str(cwd))} || exit 1\n" if cwd else ""
    write_atomic(relay / f"{name}.request", f"{settings}{change}exec {shlex.join(words)} </dev/null\n")
    deadline = time.monotonic() + _TIMEOUT_S
    while not (relay / f"{name}.code").exists():
        if time.monotonic() > deadline:
            raise LockstepError(f"{words[0]} was handed to the host and did not answer within {_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
    out, err, code = ((relay / f"{name}.{kind}").read_text(errors="replace") for kind in ("out", "err", "code"))
    return Answer(int(code), out, err)
