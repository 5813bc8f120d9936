"""`lockstep image …`: verbs only, like cli.py, of which it is a part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.foundation.errors import EXIT_DO_NOT_RETRY, EXIT_OK, DoNotRetryError

image = typer.Typer(no_args_is_help=True, help="Environments and images: lock, build, verify, show, export.")

FlavourOption = Annotated[str, typer.Option("--flavour", help="cpu or cuda")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def _project() -> Path:
    from lockstep.launch.places import project_root

    return project_root()


def _say(text: str) -> None:
    print(f"image: {text}", file=sys.stderr)


@image.command()
def lock(
    check: Annotated[bool, typer.Option("--check", help="only say whether the locks follow from their inputs")] = False,
) -> None:
    """Resolve requirements/*.in anew (locked versions stay) and write the locks and image.lock."""
    from lockstep.engines.locking import lock_all, stale_locks

    project = _project()
    if check:
        if stale := stale_locks(project):
            raise DoNotRetryError(f"{', '.join(stale)} would come out otherwise; run `make lock` and commit the result")
        print("the locks and image.lock follow from requirements/*.in")
        return
    changed = lock_all(project, _say)
    print(f"changed: {', '.join(changed)}" if changed else "nothing changed")


@image.command()
def build(
    flavour: FlavourOption = "cpu",
    builder: Annotated[str | None, typer.Option(help="docker (default), buildah, or apptainer")] = None,
    base: Annotated[str | None, typer.Option(help="another base image than the pinned one")] = None,
    sif: Annotated[bool, typer.Option(help="make a SIF too, where Apptainer is")] = True,
    compress: Annotated[
        bool, typer.Option(help="--no-compress: a SIF four times as big in a quarter of the time")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Fill the wheelhouse, build the image and the SIF, and write what came out to image.lock."""
    from lockstep.engines.build import BuildOptions, build_image

    facts = build_image(_project(), flavour, BuildOptions(builder, base, sif, compress), _say)
    if as_json:
        print(json.dumps(facts, indent=2, sort_keys=True))
        return
    print(f"environment {facts['environment_id']}, content {facts['content_id'][:16]}…; image.lock says so: commit it")


@image.command()
def verify(flavour: FlavourOption = "cpu", as_json: AsJson = False) -> None:
    """Hash again what is here and say what differs from image.lock. Exit code 93 when anything does."""
    from lockstep.engines.verify import verify_image

    verdict = verify_image(_project(), flavour, _say)
    shown = {"same": verdict.same, "checked": verdict.checked, "differences": verdict.differences}
    print(json.dumps(shown, indent=2) if as_json else verdict.text())
    sys.exit(EXIT_OK if verdict.same else EXIT_DO_NOT_RETRY)


@image.command()
def show(as_json: AsJson = False) -> None:
    """What image.lock says: environments, images, and which of them are on this machine."""
    from lockstep.engines.show import describe, table

    facts = describe(_project())
    print(json.dumps(facts, indent=2, sort_keys=True) if as_json else table(facts))


@image.command()
def export(
    target: Annotated[Path, typer.Argument(help="a new folder")],
    flavour: FlavourOption = "cpu",
) -> None:
    """Write an air-gap bundle: code, wheelhouse, image, data and models, checksums."""
    from lockstep.engines.bundle import export_bundle

    folder = export_bundle(_project(), flavour, target.resolve(), _say)
    print(f"{folder} is complete; its README says how to use it on the other side")
