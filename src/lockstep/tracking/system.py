"""What a run takes of the machine, sampled by its parent over the whole process tree: CPU, memory, disk, GPUs.

The samples have a spool of their own beside the metrics, with MLflow's names for system metrics, so its UI puts them
on their own tab. They decide nothing and slow nothing down: one sample every few seconds, a thread in the parent.
On a cluster every node's launcher has a spool of its own, and its names say which node it is, as MLflow's do.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import psutil

from lockstep.foundation.processes import capture
from lockstep.tracking.spool import Spool, last_step

SYSTEM = "system.jsonl"
_INTERVAL_S = 5.0
_MEGABYTE = 1e6


def system_spools(root: Path) -> list[str]:
    """The names of a run's spools with samples of machines: `system.jsonl`, or `system.<node>.jsonl` for each node."""
    return sorted(path.name for path in root.glob("system*.jsonl"))


class SystemSampler:
    """Appends one line per sample to a spool of the run `root` from `start` to `stop`; steps count on over attempts.

    A context manager starts and stops it. `node`: whose machine it is, where a run has several.
    """

    def __init__(self, root: Path, attempt: int, *, node: str | None = None, interval_s: float = _INTERVAL_S) -> None:
        self._path = root / (f"system.{node}.jsonl" if node else SYSTEM)
        self._prefix = f"system/{node}/" if node else "system/"
        self._attempt, self._interval_s = attempt, interval_s
        self._tree = ProcessTree(psutil.Process())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-system-metrics", daemon=True)

    def __enter__(self) -> SystemSampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to sample in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Takes a last sample and ends."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        step = (last_step(self._path) or 0) + 1
        with Spool(self._path, attempt=self._attempt) as spool:
            ended = False
            while not ended:
                ended = self._stop.wait(self._interval_s)
                sample = {**self._tree.sample(), **disk(self._path.parent), **gpus()}
                spool.append(step, {self._prefix + name.removeprefix("system/"): v for name, v in sample.items()})
                step += 1


class ProcessTree:
    """CPU and memory of a process and everything below it."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._cpu_s = self._cpu_seconds(self._processes())
        self._time_s = time.monotonic()

    def sample(self) -> dict[str, float]:
        """CPU use since the last sample in percent of this machine's cores, and resident memory now."""
        processes, time_s = self._processes(), time.monotonic()
        cpu_s = self._cpu_seconds(processes)
        # A process that is new here has spent all its time since the last sample; one that ended is left out.
        used_s = sum(spent - self._cpu_s.get(key, 0.0) for key, spent in cpu_s.items())
        elapsed_s, self._cpu_s, self._time_s = time_s - self._time_s, cpu_s, time_s
        rss_bytes = sum(_resident_bytes(process) for process in processes)
        return {
            "system/cpu_utilization_percentage": 100 * used_s / max(elapsed_s, 1e-3) / (psutil.cpu_count() or 1),
            "system/system_memory_usage_megabytes": rss_bytes / _MEGABYTE,
            "system/system_memory_usage_percentage": 100 * rss_bytes / psutil.virtual_memory().total,
        }

    def _processes(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _cpu_seconds(self, processes: list[psutil.Process]) -> dict[tuple[int, float], float]:
        spent: dict[tuple[int, float], float] = {}
        for process in processes:
            try:
                times = process.cpu_times()
                spent[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                continue
        return spent


def disk(folder: Path) -> dict[str, float]:
    """What is used and what is left of the disk that holds the run."""
    usage = shutil.disk_usage(folder)
    return {
        "system/disk_usage_megabytes": usage.used / _MEGABYTE,
        "system/disk_available_megabytes": usage.free / _MEGABYTE,
    }


def gpus() -> dict[str, float]:
    """Use, memory and power of each GPU; nothing without nvidia-smi. A counter that the GPU lacks is left out."""
    if not shutil.which("nvidia-smi"):
        return {}
    query = "index,utilization.gpu,memory.used,power.draw"
    rows = capture(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"], timeout_s=_INTERVAL_S)
    found: dict[str, float] = {}
    for row in (rows or "").splitlines():
        index, *cells = (cell.strip() for cell in row.split(","))
        names = ("utilization_percentage", "memory_usage_megabytes", "power_usage_watts")
        for name, scale, cell in zip(names, (1, 2**20 / _MEGABYTE, 1), cells, strict=True):
            if cell.replace(".", "", 1).isdigit():
                found[f"system/gpu_{index}_{name}"] = float(cell) * scale
    return found


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
