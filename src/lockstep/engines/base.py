"""The interface of an engine: it turns one launch request into the exact command that starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PYTHON = "python"
"""First word of `LaunchRequest.argv`: the engine puts the Python of its environment there."""


@dataclass(frozen=True)
class Bind:
    """A host path that the process sees at the same path. Symbolic links are followed when the command is built."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class LaunchRequest:
    """One attempt of one run, as an engine needs to know it. All paths are absolute."""

    argv: tuple[str, ...]
    """What runs, `python` first: `("python", "-m", "torch.distributed.run", …)`."""
    project: Path
    """Root of the checkout whose `src` is the package."""
    workdir: Path
    """Working directory; must lie below the project or a bind."""
    scratch: Path
    """A folder of this run alone: caches, temporary files and the environment file of the attempt."""
    attempt_name: str
    """Names the container, so that the parent or the next start can find and stop it."""
    flavour: str
    """Which locked environment: a key of `environments` in image.lock."""
    binds: tuple[Bind, ...] = ()
    """Beyond project (read-only) and scratch: the run's folder, model and data folders."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the launcher decides (thread counts, attempt); they win over what the host has."""
    secrets: tuple[str, ...] = ()
    """Names of host variables that hold secrets and are handed through; recorded by name only."""
    interactive: bool = False
    """True gives the process the terminal (`--shell`)."""


class Engine(Protocol):
    """Host, Docker or Apptainer. Building a command starts nothing; `prepare` makes what the command needs."""

    @property
    def name(self) -> str:
        """How people name it on the command line."""
        ...

    def unavailable(self, flavour: str) -> str | None:
        """Why this engine cannot run a flavour here and how to mend it; None when it can."""
        ...

    def facts(self, request: LaunchRequest) -> dict[str, Any]:
        """For the record of the attempt: the engine, its image by name and content, the variables by name and hash."""
        ...

    def command(self, request: LaunchRequest) -> list[str]:
        """The exact command for `subprocess.Popen`, working directory and environment of the process included."""
        ...

    def process_environment(self, request: LaunchRequest) -> dict[str, str]:
        """The whole environment for the command itself, on the host."""
        ...

    def prepare(self, request: LaunchRequest) -> None:
        """Makes folders and the environment file, and stops a container that an earlier start left behind.

        Raises UsageError when a bind is missing or not writable; nothing was started then.
        """
        ...

    def stop(self, request: LaunchRequest) -> None:
        """Ends what this request started, if it still runs (a client's death does not end a container)."""
        ...
