"""`python -m lockstep.exporting.worker`: the worker behind `lockstep export`. One process, no GPU, no process group."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep.checkpoints.ranks import ALONE
from lockstep.checkpoints.reading import WholeTensors, find_newest, find_step
from lockstep.data.disk import whole_folder
from lockstep.exporting import adapter, model
from lockstep.exporting.merge import merge_adapter
from lockstep.exporting.order import NEWEST, Order
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json, sha256_file, tree_files, write_atomic
from lockstep.reporting.card import Exported, model_card
from lockstep.training.sft.resume import WEIGHTS_PREFIX

_SLACK_BYTES = 64 << 20
_CARD = "README.md"


def main() -> None:
    """Carries out the order on the command line and says what was written."""
    try:
        print(carry_out(Order.parse(sys.argv[1])), flush=True)
    except LockstepError as error:
        print(f"lockstep export: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def carry_out(order: Order) -> str:
    """Exports to `order.dest`, which is whole or absent; returns what to tell a person.

    Raises UsageError for what is not there or does not fit, DoNotRetryError for damage, LockstepError for a merge that
    came out wrong or a full disk.
    """
    dest = Path(order.dest)
    tensors = _checkpoint(order)
    check_room(dest, _num_bytes(order, tensors))
    with whole_folder(dest) as folder:
        exported = _export(order, tensors, folder)
        write_atomic(folder / _CARD, model_card(order.directory, exported))
        if dest.exists():
            raise UsageError(f"{dest} appeared meanwhile and is left alone; repeat the command with another folder.")
    size = sum(path.stat().st_size for path in dest.rglob("*") if path.is_file())
    return f"{dest}: {exported.what}, {size:,} bytes, weights {exported.weights_sha256}. {_CARD} says how to use it."


def check_room(dest: Path, num_bytes: int) -> None:
    """Raises UsageError where the file system of `dest` has not got `num_bytes` left, and a little more."""
    parent = next(folder for folder in dest.parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if free < num_bytes + _SLACK_BYTES:
        raise UsageError(
            f"The export needs {num_bytes + _SLACK_BYTES:,} bytes and the file system of {parent} has {free:,} left.\n"
            "Free some, or name a folder elsewhere."
        )


def _checkpoint(order: Order) -> WholeTensors | None:
    if order.step is None:
        return None
    root, run_id = order.directory.checkpoints, order.record["run_id"]
    if order.step != NEWEST:
        return WholeTensors(find_step(root, order.step, run_id))
    found = find_newest(root, run_id, ALONE, verify="full")
    if found is None:
        raise UsageError(f"{order.stage} {run_id} has no checkpoint yet, so there is nothing to export.")
    return WholeTensors(found)


def _num_bytes(order: Order, tensors: WholeTensors | None) -> int:
    """What the export writes, rather more than less."""
    if order.merge:
        return _tree_bytes(adapter.base_folder(order))
    if tensors is not None:
        return tensors.num_bytes("" if order.trains_adapter else WEIGHTS_PREFIX)
    return _tree_bytes(order.directory.outputs / "weights" if order.trains_adapter else order.directory.model)


def _tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in tree_files(folder))


def _export(order: Order, tensors: WholeTensors | None, folder: Path) -> Exported:
    manifest, error = _merge(order, tensors, folder) if order.merge else (_write(order, tensors, folder), None)
    return Exported(
        kind="merged" if order.merge else manifest["kind"],
        weights_sha256=manifest["weights_sha256"],
        step=None if tensors is None else tensors.found.step,
        merge_error=error,
        base=_base_facts(order),
    )


def _write(order: Order, tensors: WholeTensors | None, folder: Path) -> dict[str, Any]:
    room = adapter if order.trains_adapter else model
    if tensors is None:
        return room.export_result(order, folder)
    return room.export_checkpoint(order, tensors, folder)


def _merge(order: Order, tensors: WholeTensors | None, folder: Path) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary:
        made = Path(temporary) / "adapter"
        _write(order, tensors, made)
        return merge_adapter(
            adapter.base_folder(order),
            made,
            order.experiment.model,
            folder,
            chat_template=model.chat_template(order) if order.stage == "sft" else None,
            max_shard_bytes=order.max_shard_bytes,
        )


def _base_facts(order: Order) -> dict[str, Any]:
    """What `fetch` noted about the base model (source, licence), where this is still the one that the run locked."""
    noted = Path(order.project) / order.experiment.model.manifest
    if not noted.is_file() or sha256_file(noted) != order.record["locks"]["inputs"]["model"]:
        return {}
    return {name: value for name, value in read_json(noted).items() if name in ("source", "licence")}


if __name__ == "__main__":
    main()
