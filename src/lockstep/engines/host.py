"""The host engine: the same Python that runs this command, with the environment reduced to what is allowed."""

from __future__ import annotations

import sys
from typing import Any

from lockstep.engines.base import PYTHON, LaunchRequest
from lockstep.engines.binds import check_binds
from lockstep.engines.environment import check_installed
from lockstep.engines.variables import cache_folders, host_variables, recorded_variables, stage_environment

_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")


class HostEngine:
    """Runs in the virtual environment of this process; there is no container to name or to stop."""

    name = "host"

    def unavailable(self, flavour: str) -> str | None:
        """None: the process that asks is the environment."""
        return None

    def facts(self, request: LaunchRequest) -> dict[str, Any]:
        """The engine's name and the variables."""
        return {"engine": self.name, "variables": recorded_variables(request)}

    def command(self, request: LaunchRequest) -> list[str]:
        """This Python, the start-up check, then the stage."""
        argv = [sys.executable if word == PYTHON and index == 0 else word for index, word in enumerate(request.argv)]
        return [sys.executable, "-m", "lockstep.engines.entry", "--flavour", request.flavour, "--", *argv]

    def process_environment(self, request: LaunchRequest) -> dict[str, str]:
        """The stage's own environment: on the host the command is the stage."""
        host = host_variables()
        inherited = {name: host[name] for name in _PASSED if name in host}
        return {**inherited, **stage_environment(request, host), "TMPDIR": str(request.scratch / "tmp")}

    def prepare(self, request: LaunchRequest) -> None:
        """Checks this environment, makes the run's caches, and checks that what must be writable is."""
        check_installed(request.project, request.flavour)
        for folder in cache_folders(request.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        check_binds(request)

    def stop(self, request: LaunchRequest) -> None:
        """Does nothing: the parent owns the process group."""
