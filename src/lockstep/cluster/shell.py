"""What Python hands to the batch scripts: assignments that bash sources, and environment files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping


def assignments(values: Mapping[str, str | int | list[str]]) -> str:
    """One line per name: a word, or an array for a list. Every value arrives as it is."""
    return "".join(f"{name}={_value(value)}\n" for name, value in values.items())


def environment_file(environment: Mapping[str, str]) -> str:
    """Lines that both a shell and `apptainer exec --env-file` (which evaluates values) read as exactly these values."""
    return "".join(f"{name}={_quoted(value)}\n" for name, value in environment.items())


def _value(value: str | int | list[str]) -> str:
    if isinstance(value, (str, int)):
        return _quoted(str(value))
    return f"({' '.join(_quoted(item) for item in value)})"


def _quoted(value: str) -> str:
    return "''" if value == "" else shlex.quote(value)
