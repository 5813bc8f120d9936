"""Room for a save: disk and memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from lockstep.checkpoints.space import Need, NoRoomError, available_memory_bytes, check_disk, check_memory

GIB = 1 << 30


def _need(host: str = "n1", staged: int = 0, available: int = 64 * GIB, disk: int = 0, files: int = 2) -> Need:
    return Need(host, staged, available, disk, files)


def test_a_save_that_fits_passes(tmp_path: Path) -> None:
    check_disk(tmp_path, [_need(disk=1000)])
    check_memory([_need(staged=GIB)])


def test_a_save_greater_than_the_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(NoRoomError, match=r"needs [\d,]+ bytes .* has [\d,]+ left"):
        check_disk(tmp_path, [_need(disk=1 << 60)])


def test_more_files_than_inodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRoomError, match="inodes"):
        check_disk(tmp_path, [_need(files=1 << 50)])


def test_ranks_of_one_host_share_its_memory() -> None:
    check_memory([_need("n1", 30 * GIB), _need("n2", 40 * GIB)])
    with pytest.raises(NoRoomError, match="on n1"):
        check_memory([_need("n1", 30 * GIB), _need("n1", 40 * GIB)])


def test_a_copy_into_buffers_that_exist_needs_no_memory() -> None:
    check_memory([_need(staged=0, available=0)])


def test_available_memory_is_no_more_than_the_host_has() -> None:
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total
