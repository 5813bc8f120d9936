"""`lockstep run --dry-run` and `--shell`: the exact command of the next attempt, or a shell in its place."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

from lockstep.engines.base import Engine, LaunchRequest
from lockstep.engines.select import select_engine
from lockstep.launch.prepare import RunOptions, Sources, prepare_run
from lockstep.launch.run_stage import launch_request


def _next_attempt(project: Path, stage: str, options: RunOptions) -> tuple[Engine, LaunchRequest]:
    run = prepare_run(Sources.of(project), stage, options)
    record = run.directory.read() or {"attempts": []}
    engine = select_engine(project, options.engine, run.identity.environment["flavour"])
    return engine, launch_request(run, len(record["attempts"]) + 1)


def exact_command(project: Path, stage: str, options: RunOptions) -> str:
    """The command that the next start would run, quoted for a shell. Starts and writes nothing."""
    engine, request = _next_attempt(project, stage, options)
    return shlex.join(engine.command(request))


def open_shell(project: Path, stage: str, options: RunOptions) -> int:
    """A shell where the stage would run, with its binds and variables; returns the shell's exit code."""
    engine, request = _next_attempt(project, stage, options)
    request = replace(request, argv=("bash",), attempt_name=f"{request.attempt_name}-shell", interactive=True)
    request.scratch.mkdir(parents=True, exist_ok=True)
    engine.prepare(request)
    environment = engine.process_environment(request)
    return subprocess.run(engine.command(request), cwd=request.workdir, env=environment, check=False).returncode
