"""`lockstep image …`: verbs only, like cli.py, of which it is a part."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.foundation.errors import DoNotRetryError

image = typer.Typer(no_args_is_help=True, help="Environments and images: lock, build, verify, show, export.")


@image.command()
def lock(
    check: Annotated[bool, typer.Option("--check", help="only say whether the locks follow from their inputs")] = False,
) -> None:
    """Resolve requirements/*.in anew (locked versions stay) and write the locks and image.lock."""
    from lockstep.engines.locking import lock_all, stale_locks
    from lockstep.launch.places import project_root

    project = project_root()
    if check:
        if stale := stale_locks(project):
            raise DoNotRetryError(f"{', '.join(stale)} would come out otherwise; run `make lock` and commit the result")
        print("the locks and image.lock follow from requirements/*.in")
        return
    changed = lock_all(project, print)
    print(f"changed: {', '.join(changed)}" if changed else "nothing changed")
