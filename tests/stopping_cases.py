"""What two ranks do for tests/integration/test_stop_flag.py, all in one launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from lockstep.training.common.stopping import StopFlag


def all_cases(rank: int, folder: Path) -> dict[str, Any]:
    """Each case with a flag and a control folder of its own."""
    cases = [equal_polls, unequal_loops, stop_inside_an_unequal_loop, poll_does_not_wait, stop_before_the_first_poll]
    return {case.__name__: case(rank, folder / case.__name__ / "control") for case in cases}


def equal_polls(rank: int, control: Path) -> list[bool]:
    """The file appears between the third and the fourth poll."""
    flag, answers = _flag(rank, control), []
    for number in range(1, 8):
        if number == 4:
            _ask(rank, control)
        answers.append(flag.poll())
    flag.settle()
    return answers


def unequal_loops(rank: int, control: Path) -> dict[str, Any]:
    """Rank 1 polls three times as often inside a loop; behind it all ranks are together again."""
    flag = _flag(rank, control)
    inside = [flag.poll() for _ in range(4 + 8 * rank)]
    settled = flag.settle()
    _ask(rank, control)
    return {"inside": any(inside), "settled": settled, "after": [flag.poll(), flag.poll(), flag.poll()]}


def stop_inside_an_unequal_loop(rank: int, control: Path) -> dict[str, Any]:
    """Rank 0 is done after two polls; rank 1 goes on until the stop that comes during its tenth."""
    flag = _flag(rank, control)
    polls = 0
    while polls < (2 if rank == 0 else 1000):
        polls += 1
        if polls == 10:
            (control / "stop.1").touch()
        if flag.poll():
            break
    return {"polls": polls, "settled": flag.settle(), "after": flag.poll()}


def poll_does_not_wait(rank: int, control: Path) -> bool:
    """Rank 1 polls only after rank 0's first poll has returned: a poll that waited would never end."""
    flag = _flag(rank, control)
    if rank == 0:
        flag.poll()
        dist.send_object_list(["returned"], dst=1)
    else:
        dist.recv_object_list([None], src=0)
        flag.poll()
    return flag.settle()


def stop_before_the_first_poll(rank: int, control: Path) -> list[bool]:
    """The file was there before training began."""
    flag = _flag(rank, control)
    _ask(rank, control)
    return [flag.poll(), flag.poll()]


def _flag(rank: int, control: Path) -> StopFlag:
    if rank == 0:
        control.mkdir(parents=True)
    dist.barrier()
    return StopFlag(control, attempt=1)


def _ask(rank: int, control: Path) -> None:
    dist.barrier()
    if rank == 1:
        (control / "stop.1").touch()
    dist.barrier()
