"""What a site decides: the profile slurm/site.env, and the room's one door to the environment of its process."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from lockstep.cluster.verdict import Limits
from lockstep.foundation.errors import UsageError


def variables() -> Mapping[str, str]:
    """The environment of the calling process."""
    return os.environ


def site_settings(project: Path) -> dict[str, str]:
    """The site profile over the process's own variables; plain `NAME=value` lines, as the batch scripts source them.

    Raises UsageError naming the line that is no assignment.
    """
    path = project / "slurm" / "site.env"
    settings = {name: value for name, value in variables().items() if name.startswith(("LOCKSTEP_", "SBATCH_"))}
    if not path.exists():
        return settings
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        name, separator, value = words[0].partition("=")
        if len(words) != 1 or not separator or not name.isidentifier():
            raise UsageError(f"{path}, line {number}: this is no NAME=value (quote values with spaces): {line.strip()}")
        settings[name] = value
    return settings


def limits(settings: Mapping[str, str]) -> Limits:
    """Attempt budgets: Lockstep's own unless the site says otherwise."""
    defaults = Limits()
    return Limits(
        failed=_number(settings, "LOCKSTEP_MAX_FAILED", defaults.failed),
        bad_node=_number(settings, "LOCKSTEP_MAX_BAD_NODES", defaults.bad_node),
        without_progress=_number(settings, "LOCKSTEP_MAX_WITHOUT_PROGRESS", defaults.without_progress),
    )


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} is {text!r} and must be a whole number from 1 on; correct slurm/site.env")
    return int(text)
