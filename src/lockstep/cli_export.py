"""`lockstep export`: verbs only, like cli.py, of which it is a part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from lockstep.foundation.errors import UsageError

_GIB = 1 << 30


def export(
    run_name: Annotated[str, typer.Argument(help="a run id, or the start of one, or a stage (its newest result)")],
    dest: Annotated[Path, typer.Argument(help="the folder to write; must not exist")],
    step: Annotated[
        str | None, typer.Option(help="a checkpoint: its step, or last (none: the result, else the newest checkpoint)")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="add the adapter into its base's weights, and check it")
    ] = False,
    max_shard_size: Annotated[float, typer.Option(min=0.001, help="GiB per safetensors file")] = 4.0,
) -> None:
    """Write a run's weights as a folder that Transformers or PEFT loads, with a model card."""
    from lockstep.launch.export import export as export_run
    from lockstep.launch.places import project_root
    from lockstep.records.find import find_run

    project = project_root()
    sys.exit(
        export_run(
            project,
            find_run(project, run_name),
            dest.expanduser().absolute(),
            step=_step(step),
            merge=merge,
            max_shard_bytes=int(max_shard_size * _GIB),
        )
    )


def _step(text: str | None) -> int | Literal["last"] | None:
    if text is None or text.isdecimal():
        return int(text) if text else None
    if text != "last":
        raise UsageError(f"--step {text}: write a checkpoint's step (a number), or last.")
    return "last"


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command()(export)
