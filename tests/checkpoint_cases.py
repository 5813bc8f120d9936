"""What two ranks do for tests/integration/test_checkpoints.py, all in one launch: each case returns what it saw."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep.checkpoints import space
from lockstep.checkpoints.catalog import leftovers, list_steps, step_folder
from lockstep.checkpoints.store import Retention
from lockstep.foundation.errors import LockstepError
from toy_training import Toy

KEEP_ALL = Retention(keep_last=1, keep_every=1)


def all_cases(rank: int, folder: Path, alone: Path) -> dict[str, Any]:
    """Runs every case in a folder of its own; `alone` holds a checkpoint that one process saved."""
    cases: list[Callable[[int, Path], Any]] = [
        round_trip,
        fifty_asynchronous_saves,
        damages,
        nothing_usable,
        full_disk_goes_on,
        full_disk_stops,
        asynchronous_failure_surfaces,
        replicas_that_differ,
        short_memory,
        unsafe_state,
        adapters_only,
        other_base,
    ]
    seen = {case.__name__: case(rank, _fresh(rank, folder / case.__name__)) for case in cases}
    seen["more_ranks"] = more_ranks(rank, alone)
    return seen


def round_trip(rank: int, root: Path) -> dict[str, Any]:
    """Six steps, against three, a checkpoint, and three more in a model that began elsewhere."""
    whole = Toy(1, root)
    whole.train(3)
    saved = whole.digest()
    whole.save()
    whole.train(3)
    other = Toy(2, root)
    other.resume()
    loaded, learning_rate = other.digest(), other.schedule.get_last_lr()
    other.train(3)
    return {
        "saved": saved,
        "loaded": loaded,
        "learning_rate": learning_rate,
        "whole": whole.digest(),
        "resumed": other.digest(),
        "path": str(step_folder(root, 3)),
    }


def fifty_asynchronous_saves(rank: int, root: Path) -> dict[str, Any]:
    """Training goes on, with its collectives, while each save is written; then every one of them is read back."""
    toy = Toy(1, root, asynchronous=True, retention=KEEP_ALL)
    states = {}
    for step in range(1, 51):
        toy.train(1)
        states[step] = toy.digest()
        toy.save()
    toy.store.wait()
    loaded = {step: _load_alone(rank, root, step, root.parent / "one-of-fifty").digest() for step in states}
    return {"states": states, "loaded": loaded, "last": toy.store.last_saved.step}


def damages(rank: int, root: Path) -> dict[str, Any]:
    """Six checkpoints, five of them spoilt in five ways; the oldest is whole."""
    toy = Toy(1, root, retention=KEEP_ALL)
    for _ in range(6):
        toy.train(1)
        toy.save()
    if rank == 0:
        _truncate(step_folder(root, 6) / "__1_0.distcp")
        _flip(step_folder(root, 5) / "__0_0.distcp")
        (step_folder(root, 4) / "manifest.json").unlink()
        _edit(step_folder(root, 3) / "manifest.json", "step", 99)
        shutil.copytree(_foreign(root.parent / "foreign"), step_folder(root, 7))
        shutil.copytree(step_folder(root, 1), step_folder(root, 8))
        _edit(step_folder(root, 8) / "manifest.json", "format", 2)
    else:
        _foreign(root.parent / "foreign")
    dist.barrier()
    found = Toy(2, root, retention=KEEP_ALL).store.newest()
    full = Toy(2, root).store.newest(verify="full")
    return {"found": found.step, "full": full.step, "skipped": {s.step: s.reason for s in found.skipped}}


def nothing_usable(rank: int, root: Path) -> str:
    """The only checkpoint is spoilt."""
    toy = Toy(1, root)
    toy.train(1)
    toy.save()
    if rank == 0:
        _flip(step_folder(root, 1) / "rank-00001.pt")
    dist.barrier()
    return _message(toy.store.newest)


def full_disk_goes_on(rank: int, root: Path) -> dict[str, Any]:
    """Rank 1 alone can't write during the second save; the third works again."""
    toy = Toy(1, root, on_failure="continue")
    toy.train(1)
    toy.save()
    toy.train(1)
    with _tiny_files(rank == 1):
        toy.save()
    after = {"steps": list_steps(root), "left": len(leftovers(root)), "last": toy.store.last_saved.step}
    toy.train(1)
    toy.save()
    return {"after_failure": after, "then": list_steps(root), "found": toy.store.newest().step}


def full_disk_stops(rank: int, root: Path) -> dict[str, Any]:
    """The same under on_failure="stop"."""
    toy = Toy(1, root, on_failure="stop")
    toy.train(1)
    toy.save()
    toy.train(1)
    with _tiny_files(rank == 1):
        message = _message(toy.save)
    return {"message": message, "found": toy.store.newest().step, "left": len(leftovers(root))}


def asynchronous_failure_surfaces(rank: int, root: Path) -> dict[str, Any]:
    """A background save fails on rank 0; the call returns, the error comes with the next one."""
    toy = Toy(1, root, asynchronous=True, on_failure="stop")
    toy.train(1)
    toy.save()
    toy.store.wait()
    toy.train(1)
    with _tiny_files(rank == 0):
        toy.save()
        message = _message(toy.store.wait)
    return {"message": message, "found": toy.store.newest().step, "left": len(leftovers(root))}


def replicas_that_differ(rank: int, root: Path) -> dict[str, Any]:
    """A tensor that must be the same on all ranks is not."""
    toy = Toy(1, root, on_failure="continue")
    toy.train(1)
    if rank == 1:
        with torch.no_grad():
            toy.adapter["low"][0, 0] += 1.0
    return {"message": _message(toy.save), "steps": list_steps(root), "left": len(leftovers(root))}


def short_memory(rank: int, root: Path) -> dict[str, Any]:
    """The host has no room for a copy of the state: the save is synchronous and says so."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("lockstep.checkpoints.store").addHandler(handler)
    toy = Toy(1, root, asynchronous=True)
    toy.train(1)
    before, space.available_memory_bytes = space.available_memory_bytes, lambda: 1000 * (rank + 1)
    toy.save()
    space.available_memory_bytes = before
    return {"said": said, "last": toy.store.last_saved.step, "steps": list_steps(root)}


def unsafe_state(rank: int, root: Path) -> str:
    """State that only pickle could restore is refused when it is saved."""
    toy = Toy(1, root)
    toy.train(1)
    return _message(lambda: toy.store.save(1, toy.tensors(), per_rank={"a": 1, "path": Path("x")}, facts={}))


def adapters_only(rank: int, root: Path) -> dict[str, int]:
    """A LoRA checkpoint: the bytes of the tensors given, and little more."""
    toy = Toy(1, root)
    tensors = {f"layer.{i}.lora_A": torch.zeros(16, 512) for i in range(8)}
    toy.store.save(1, tensors, per_rank={}, facts={})
    on_disk = sum(path.stat().st_size for path in step_folder(root, 1).iterdir())
    return {"tensors": sum(t.nbytes for t in tensors.values()), "on_disk": on_disk}


def other_base(rank: int, root: Path) -> str:
    """The adapter's base model is another one than when it was saved."""
    toy = Toy(1, root, base_sha256="a" * 64)
    toy.train(1)
    toy.save()
    return _message(Toy(1, root, base_sha256="b" * 64).store.newest)


def more_ranks(rank: int, alone: Path) -> dict[str, Any]:
    """Goes on from what one process saved."""
    toy = Toy(2, alone)
    found = toy.store.newest()
    own_generators = toy.load(found)
    loaded = toy.digest()
    toy.train(1)
    return {"loaded": loaded, "own_generators": own_generators, "step": toy.step}


def _load_alone(rank: int, root: Path, step: int, shown: Path) -> Toy:
    """A toy that was loaded from one step: `newest` sees a folder in which only that one stands."""
    if rank == 0:
        shutil.rmtree(shown, ignore_errors=True)
        shown.mkdir()
        step_folder(shown, step).symlink_to(step_folder(root, step))
    dist.barrier()
    toy = Toy(3, shown)
    toy.resume()
    dist.barrier()
    return toy


def _foreign(root: Path) -> Path:
    toy = Toy(1, root, run_id="another")
    toy.train(1)
    toy.save()
    return step_folder(root, 1)


def _fresh(rank: int, root: Path) -> Path:
    if rank == 0:
        root.mkdir(parents=True)
    dist.barrier()
    return root


def _truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _edit(path: Path, key: str, value: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def _message(action: Callable[[], Any]) -> str:
    try:
        action()
    except LockstepError as error:
        return str(error)
    return "nothing was raised"


@contextlib.contextmanager
def _tiny_files(here: bool) -> Iterator[None]:
    """No file of this process may grow beyond 100 bytes: a write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
