"""Runs one Python statement through an engine, as a stage would run: `python probe.py '{"engine": …, "code": …}'`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lockstep.engines.base import Bind, LaunchRequest
from lockstep.engines.select import select_engine
from lockstep.foundation.errors import LockstepError


def main() -> int:
    """Exit code: the process's own, or that of the refusal."""
    asked = json.loads(sys.argv[1])
    project = Path(asked.get("project", Path.cwd()))
    scratch = Path(asked["scratch"])
    scratch.mkdir(parents=True, exist_ok=True)
    request = LaunchRequest(
        argv=("python", "-c", asked["code"]),
        project=project,
        workdir=project,
        scratch=scratch,
        attempt_name=asked.get("name", "lockstep-probe-1"),
        flavour="cpu",
        binds=tuple(Bind(Path(path), writable) for path, writable in asked.get("binds", [])),
        environment=asked.get("environment", {}),
    )
    try:
        engine = select_engine(project, asked["engine"], "cpu")
        engine.prepare(request)
    except LockstepError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    environment = engine.process_environment(request)
    return subprocess.run(engine.command(request), env=environment, cwd=request.workdir, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
