"""`lockstep push` and `pull`: a run with its full model, by content, through the project's own DVC remote.

DVC carries what is its own out (adapters, metrics, curves). A full model is none, since DVC would copy and hash it
again at every turn; here each file goes once, under its sha256, and is checked when it arrives:
`<remote>/lockstep/files/<2 digits>/<sha256>`, and `<remote>/lockstep/runs/<stage>/<run id>.json`, written last.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import sha256_file, tree_files
from lockstep.launch.places import runs_root
from lockstep.params.stages import STAGES
from lockstep.records.whole import verify_result
from lockstep.runs.directory import RunDirectory

_CARRIED = ("run.json", "execution.json", "metrics.jsonl", "dirty.diff", "locks", "outputs", "model")
"""What a run is elsewhere. Checkpoints, logs and caches stay where the run ran."""


@dataclass(frozen=True)
class Carried:
    """What one push or pull did; the rest was there already."""

    run: str
    num_files: int
    num_bytes: int

    def text(self, verb: str) -> str:
        """For a terminal."""
        return f"{self.run}: {self.num_files} file(s), {self.num_bytes / 2**20:.1f} MiB {verb}"


class _Remote:
    """A place in a DVC remote, of whatever kind (a folder, ssh, an object store)."""

    def __init__(self, project: Path, name: str | None) -> None:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        try:
            remote = Repo(str(project)).cloud.get_remote(name, "lockstep push")
        except DvcException as error:
            raise UsageError(f"{error}\nName one: dvc remote add --default NAME URL") from error
        self._fs, self._root = remote.fs, remote.path

    def _path(self, *parts: str) -> str:
        return str(self._fs.join(self._root, "lockstep", *parts))

    def index(self, run: str) -> str:
        return self._path("runs", f"{run}.json")

    def file(self, sha256: str) -> str:
        return self._path("files", sha256[:2], sha256)

    def has(self, path: str, num_bytes: int | None = None) -> bool:
        if not self._fs.exists(path):
            return False
        return num_bytes is None or self._fs.info(path)["size"] == num_bytes

    def send(self, source: Path, path: str) -> None:
        self._fs.makedirs(self._fs.parent(path))
        self._fs.put_file(str(source), path)

    def get(self, path: str, target: Path) -> None:
        self._fs.get_file(path, str(target))

    def write(self, path: str, text: str) -> None:
        self._fs.makedirs(self._fs.parent(path))
        self._fs.pipe_file(path, text.encode())

    def read(self, path: str) -> str:
        return bytes(self._fs.cat_file(path)).decode()


def push(project: Path, directory: RunDirectory, remote: str | None = None) -> Carried:
    """Sends a complete run to the DVC remote (`remote`, else the default one); what is there is not sent again.

    Raises UsageError without a remote or for a run without a result, DoNotRetryError for a damaged one.
    """
    verify_result(directory)
    far = _Remote(project, remote)
    run = f"{directory.root.parent.name}/{directory.root.name}"
    files: dict[str, dict[str, Any]] = {}
    sent: list[int] = []
    for path in _files(directory):
        sha256, num_bytes = sha256_file(path), path.stat().st_size
        files[path.relative_to(directory.root).as_posix()] = {"sha256": sha256, "bytes": num_bytes}
        if not far.has(far.file(sha256), num_bytes):
            far.send(path, far.file(sha256))
            sent.append(num_bytes)
    far.write(far.index(run), json.dumps({"files": files}, indent=2, sort_keys=True))
    return Carried(run, len(sent), sum(sent))


def pull(project: Path, run_id: str, remote: str | None = None) -> Carried:
    """Gets a run from the DVC remote into this machine's runs folder; every file is checked, run.json comes last.

    Raises UsageError where the remote does not have the run, LockstepError where a file arrived damaged.
    """
    far = _Remote(project, remote)
    run = next((f"{stage}/{run_id}" for stage in STAGES if far.has(far.index(f"{stage}/{run_id}"))), None)
    if run is None:
        raise UsageError(f"The DVC remote has no run '{run_id}'.\nWhere it ran: ./lockstep push {run_id}")
    root = runs_root(project) / run
    files: dict[str, dict[str, Any]] = json.loads(far.read(far.index(run)))["files"]
    got = [entry["bytes"] for name, entry in sorted(files.items(), key=_last) if _get(far, root / name, entry)]
    return Carried(run, len(got), sum(got))


def _files(directory: RunDirectory) -> list[Path]:
    present = [directory.root / name for name in _CARRIED if (directory.root / name).exists()]
    return [path for place in present for path in tree_files(place)]


def _last(item: tuple[str, dict[str, Any]]) -> tuple[bool, str]:
    return item[0] == "run.json", item[0]


def _get(far: _Remote, target: Path, entry: dict[str, Any]) -> bool:
    if target.exists() and target.stat().st_size == entry["bytes"] and sha256_file(target) == entry["sha256"]:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    arriving = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        far.get(far.file(entry["sha256"]), arriving)
        if sha256_file(arriving) != entry["sha256"]:
            raise LockstepError(f"{target} arrived damaged from the DVC remote; repeat the command.")
        arriving.replace(target)
    finally:
        arriving.unlink(missing_ok=True)
    return True
