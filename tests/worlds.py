"""Several ranks on this machine for a test: real processes, real gloo. torch is imported once, in a fork server."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

TIMEOUT_S = 120
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"])


class World:
    """`num_ranks` processes that run `function(rank, *args)` in one gloo group. A context: leaving it ends them."""

    def __init__(self, num_ranks: int, function: Callable[..., Any], *args: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._ends: list[Connection] = []
        self.ranks: list[ForkServerProcess] = []
        for rank in range(num_ranks):
            mine, theirs = _CONTEXT.Pipe(duplex=False)
            rendezvous = str(Path(self._folder.name) / "rendezvous")
            process = _CONTEXT.Process(target=_enter, args=(rank, num_ranks, rendezvous, theirs, function, args))
            process.start()
            theirs.close()
            self._ends.append(mine)
            self.ranks.append(process)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            if process.is_alive():
                process.kill()
            process.join()
        self._folder.cleanup()

    def results(self) -> list[Any]:
        """What each rank returned. Raises AssertionError with the first traceback, or where a rank takes too long."""
        outcomes: dict[int, Any] = {}
        while len(outcomes) < len(self._ends):
            pending = [end for rank, end in enumerate(self._ends) if rank not in outcomes]
            ready = wait(pending, TIMEOUT_S)
            assert ready, f"ranks {[r for r in range(len(self._ends)) if r not in outcomes]} did not answer"
            for end in ready:
                assert isinstance(end, Connection)
                rank = self._ends.index(end)
                kind, outcomes[rank] = _receive(end)
                assert kind == "ok", f"rank {rank}:\n{outcomes[rank]}"
        return [outcomes[rank] for rank in range(len(self._ends))]


def run_world(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs `function(rank, *args)` on every rank and returns the results by rank."""
    with World(num_ranks, function, *args) as world:
        return world.results()


def _receive(end: Connection) -> tuple[str, Any]:
    try:
        kind, value = end.recv()
    except EOFError:
        return "error", "it died without a word"
    return kind, value


def _enter(
    rank: int, num_ranks: int, rendezvous: str, end: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(rendezvous, num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=TIMEOUT_S))
    try:
        end.send(("ok", function(rank, *args)))
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        end.send(("error", traceback.format_exc()))
        sys.exit(1)
    dist.destroy_process_group()
