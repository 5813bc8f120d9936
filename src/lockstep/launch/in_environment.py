"""A command beside a recorded run, in the engine and environment that ran it, in the foreground."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockstep.engines.base import Bind, LaunchRequest
from lockstep.engines.select import select_engine
from lockstep.launch.environment import num_threads, worker_variables
from lockstep.runs.directory import RunDirectory


def run_beside(
    project: Path,
    directory: RunDirectory,
    record: dict[str, Any],
    argv: tuple[str, ...],
    *,
    name: str,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] = (),
    interactive: bool = False,
) -> int:
    """Runs `argv` (`python` first) to its end and returns its exit code. The runs folder is bound, writable.

    Raises UsageError when the run's environment or a folder to bind is not here.
    """
    binds = (Bind(directory.root.parent.parent, writable=True), *(Bind(path) for path in reads))
    request = LaunchRequest(
        argv=argv,
        project=project,
        workdir=project,
        scratch=directory.scratch,
        attempt_name=f"lockstep-{name}-{directory.root.name}",
        flavour=record["locks"]["environment"]["flavour"],
        binds=(*binds, *(Bind(path, writable=True) for path in writes)),
        environment=worker_variables(num_threads(1)),
        interactive=interactive,
    )
    engine = select_engine(project, None, request.flavour)
    engine.prepare(request)
    return subprocess.run(engine.command(request), env=engine.process_environment(request), check=False).returncode
