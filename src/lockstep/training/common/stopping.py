"""A stop that all ranks act on at the same place: a file that rank 0 looks at, and a flag that travels beside training.

Each `poll` looks at the file on rank 0 and starts an asynchronous all-reduce on a CPU group that nothing else uses; the
*next* poll acts on it. So no step waits for the flag, and every rank stops at the same poll.

Polls are matched by their number: the k-th of one rank belongs to the k-th of the others. Training steps and evaluation
batches come in equal numbers on every rank. A loop that may be longer on one rank than on another (generation until all
sequences end, a last uneven batch) polls inside as well, and calls `settle` behind it: who comes early answers the
polls of the others until they come. Without it a longer rank would wait in a poll, and the others for it elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from lockstep.runs.directory import RunDirectory


class StopFlag:
    """Whether this attempt was asked to save and stop. Every rank makes one, together."""

    def __init__(self, control: Path, attempt: int, group: dist.ProcessGroup | None = None) -> None:
        """`control`: the run's control folder. `group`: a CPU group for this flag alone; default: a new one."""
        self._file = RunDirectory(control.parent).stop_file(attempt)
        self._group = group if group is not None else _own_group()
        self._is_main = self._group is None or dist.get_rank(self._group) == 0
        self._flags = torch.zeros(2, dtype=torch.int32)
        self._in_flight: dist.Work | None = None
        self._stopping = False

    def poll(self) -> bool:
        """True once an earlier poll saw the stop file, on all ranks at the same poll; stays true.

        Call it at every step boundary, and in evaluation, rollout, generation and warm-up. A stop that is seen before
        the first step is done has nothing to save: leave without a checkpoint (the store refuses step 0), and the next
        attempt starts afresh instead of resuming as if warmed up.
        """
        if self._group is None:
            self._stopping = self._stopping or self._file.exists()
            return self._stopping
        self._receive()
        if not self._stopping:
            self._send(polling=True)
        return self._stopping

    def settle(self) -> bool:
        """Waits until all ranks call it, answering the polls of those that still poll; True on all if one saw a stop.

        Call it behind every loop that may be longer on one rank than on another, and before the process group is ended.
        """
        if self._group is None:
            return self.poll()
        self._receive()
        while not self._stopping:
            self._send(polling=False)
            others_poll = self._receive()
            if not others_poll:
                break
        return self._stopping

    def _send(self, *, polling: bool) -> None:
        """Starts the all-reduce of (a stop was seen, someone still polls)."""
        seen = self._is_main and self._file.exists()
        self._flags = torch.tensor([seen, polling], dtype=torch.int32)
        self._in_flight = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def _receive(self) -> bool:
        """Takes in the all-reduce in flight, if any; whether any rank sent it from a poll."""
        if self._in_flight is None:
            return False
        self._in_flight.wait()
        self._in_flight = None
        seen, polling = self._flags.tolist()
        self._stopping = self._stopping or bool(seen)
        return bool(polling)


def _own_group() -> dist.ProcessGroup | None:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.new_group(backend="gloo")
