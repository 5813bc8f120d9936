"""First Python of a stage, in every engine: is this the locked environment, and the right code? Then the stage itself.

`python -m lockstep.engines.entry --flavour cpu [--full] [-- COMMAND …]`; without a command it only checks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import lockstep
from lockstep.engines.environment import check_installed
from lockstep.engines.variables import host_variables
from lockstep.foundation.errors import DoNotRetryError, LockstepError


def main(argv: list[str] | None = None) -> int:
    """Checks, then becomes COMMAND (the same process, so signals and exit codes are its own)."""
    parser = argparse.ArgumentParser(prog="lockstep.engines.entry")
    parser.add_argument("--flavour", required=True)
    parser.add_argument("--full", action="store_true", help="hash every file, whether or not anything seems changed")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args(argv)
    try:
        project = _project()
        check_code(project)
        check_import_paths(project)
        check_installed(project, arguments.flavour, full=arguments.full)
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return error.exit_code
    if arguments.command:
        sys.stdout.flush()
        os.execvp(arguments.command[0], arguments.command)
    return 0


def _project() -> Path:
    named = host_variables().get("LOCKSTEP_PROJECT")
    project = Path(named) if named else Path(lockstep.__file__).resolve().parents[2]
    if not (project / "params.yaml").exists() and not (project / "image.lock").exists():
        raise DoNotRetryError(
            f"{project} cannot be seen from here (no image.lock in it); the folder is not bound into the container"
        )
    return project


def check_code(project: Path) -> None:
    """Raises DoNotRetryError when `lockstep` was imported from elsewhere than the checkout's src."""
    came_from = Path(lockstep.__file__).resolve().parent
    expected = (project / "src" / "lockstep").resolve()
    if came_from != expected:
        raise DoNotRetryError(
            f"the package `lockstep` came from {came_from}, not from {expected}; uninstall the other one"
        )


def check_import_paths(project: Path) -> None:
    """Raises DoNotRetryError when Python would import from outside its environment and the checkout's src."""
    allowed = [Path(root).resolve() for root in (sys.prefix, sys.base_prefix, project / "src")]
    for entry in filter(None, sys.path):
        path = Path(entry).resolve()
        if not any(path.is_relative_to(root) for root in allowed) and path.exists():
            raise DoNotRetryError(
                f"Python would import from {entry}, which is neither the locked environment nor {project / 'src'}; "
                "unset PYTHONPATH and remove .pth files that name it"
            )


if __name__ == "__main__":
    sys.exit(main())
