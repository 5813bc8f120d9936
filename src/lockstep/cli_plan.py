"""`lockstep plan`: verbs only, like cli.py, of which it is a part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def plan(
    recipe: Annotated[str | None, typer.Argument(help="name or file of a recipe; none: params.yaml")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that sft trains on, over all nodes")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=0.1, help="GiB of one GPU, as nvidia-smi shows it")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="nodes over which the GPUs are spread")] = None,
    gpu: Annotated[str | None, typer.Option(help="a100-80g, h100-80g, h200, rtx4090, …")] = None,
    figure: Annotated[Path | None, typer.Option(help="write a picture, too: FILE.svg or FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="leave out what each technique saves")] = False,
) -> None:
    """What a recipe needs of GPUs, host, disk and time, before it runs, whether it fits, and what would help."""
    from lockstep.launch.places import project_root
    from lockstep.launch.plan import plan_command
    from lockstep.planning.hardware import Asked

    asked = Asked(gpu, gpu_memory, gpus, nodes)
    sys.exit(plan_command(project_root(), recipe, asked, as_json=as_json, figure=figure, savings=not quick))


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command()(plan)
