"""`lockstep export`: checks what can be exported of a run, then starts the worker that does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lockstep.checkpoints.catalog import list_steps
from lockstep.exporting.order import EXPORTED_STAGES, NEWEST, Order
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import read_json
from lockstep.launch.in_environment import run_beside
from lockstep.launch.inputs import resolve_inputs
from lockstep.params.stages import stage_spec
from lockstep.runs.directory import RunDirectory


def export(
    project: Path,
    directory: RunDirectory,
    dest: Path,
    *,
    step: int | Literal["last"] | None,
    merge: bool,
    max_shard_bytes: int,
) -> int:
    """Exports a run to `dest`, in the environment that the run was made in; returns the worker's exit code.

    Raises UsageError for an order that cannot be carried out, DoNotRetryError where an input of the run has changed.
    """
    if dest.exists() or dest.is_symlink():
        raise UsageError(f"{dest} exists already. Name a folder that does not, or remove it first.")
    place = (str(directory.root), str(project), str(dest))
    order = with_inputs(project, checked(Order(*place, step=step, merge=merge, max_shard_bytes=max_shard_bytes)))
    dest.parent.mkdir(parents=True, exist_ok=True)
    return run_beside(
        project,
        directory,
        order.record,
        ("python", "-m", "lockstep.exporting.worker", order.argument()),
        name="export",
        reads=map(Path, order.inputs.values()),
        writes=[dest.parent],
    )


def checked(order: Order) -> Order:
    """The order, with the newest checkpoint in place of the result where the run is not complete.

    Raises UsageError for what has no weights, no such checkpoint, or must not be merged.
    """
    name = f"{order.record['stage']} {order.record['run_id']}"
    if order.stage not in EXPORTED_STAGES:
        raise UsageError(f"{name} makes no weights. Name a run of {', '.join(EXPORTED_STAGES)}.")
    steps = list_steps(order.directory.checkpoints)
    if order.step is None and order.record["status"] != "complete" and steps:
        print(f"{name} is not complete: its newest checkpoint is exported (--step chooses another).")
        order = replace(order, step=NEWEST)
    if order.step is None:
        _check_result(order, name)
    elif not steps or order.step not in (NEWEST, *steps):
        there = f"There are: {', '.join(map(str, steps))}." if steps else "It has none yet."
        raise UsageError(f"{name} has no checkpoint of step {order.step}. {there}")
    if order.merge:
        _check_merge(order, name)
    return order


def with_inputs(project: Path, order: Order) -> Order:
    """The order with the paths of the inputs that it needs, from the runs that made them where those are here.

    Raises UsageError for what is missing, with the command that gets it; DoNotRetryError for what is not what the run
    was made from.
    """
    directory, locks = order.directory, order.record["locks"]
    spec = stage_spec(order.stage)
    wanted = {name: of for name, of in spec.inputs(order.experiment).items() if name in order.needed_inputs}
    runs = directory.root.parent.parent
    made_by = {of.stage: order.record.get("made_by", {}).get(name, "unknown") for name, of in wanted.items()}
    outputs = {stage: RunDirectory(runs / stage / run_id).outputs for stage, run_id in made_by.items() if stage}
    there = {stage: folder for stage, folder in outputs.items() if folder.is_dir()}
    found = resolve_inputs(project, runs, replace(spec, inputs=lambda _: wanted), order.experiment, there)
    for name, digest in found.hashes.items():
        if digest != locks["inputs"][name]:
            raise DoNotRetryError(
                f"{wanted[name].path} is not the '{name}' that {order.stage} {order.record['run_id']} was made from "
                f"(sha256 {digest[:10]} instead of {locks['inputs'][name][:10]}).\n"
                "Get that one back (git checkout of the run's commit, then ./lockstep fetch) and repeat the command."
            )
    return replace(order, inputs={name: str(path) for name, path in found.paths.items()})


def _check_result(order: Order, name: str) -> None:
    manifest = order.directory.outputs / "weights" / "manifest.json"
    kind = _manifest(manifest).get("kind", "none")
    if kind == "none":
        raise UsageError(f"{name} has neither a result nor a checkpoint to export (status: {order.record['status']}).")
    if kind == "model" and not order.directory.model.is_dir():
        raise UsageError(
            f"The model of {name} is not on this machine ({order.directory.model}).\n"
            f"Get it with: ./lockstep pull {order.record['run_id']}"
        )


def _manifest(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _check_merge(order: Order, name: str) -> None:
    if not order.trains_adapter:
        raise UsageError(f"{name} trained all parameters: there is no adapter to merge. Export it without --merge.")
    if order.stage == "reward":
        raise UsageError(f"{name} is a reward model: without its head it says nothing. Export it without --merge.")
    if order.quantization is not None:
        raise UsageError(
            f"{name} was trained on a quantised base. Merged into quantised weights its adapter is rounded away, and "
            "on other weights it does not do what was measured.\n"
            "Export without --merge and let PEFT put the adapter on the base, quantised as in training: "
            "./lockstep export RUN DEST"
        )
