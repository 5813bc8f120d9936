"""A stage's inputs: are they there, are they what their manifests say, and what are their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import read_json, sha256_bytes, sha256_file, tree_files, write_json
from lockstep.params.experiment import Experiment
from lockstep.params.stages import Input, StageSpec
from lockstep.runs.directory import RunDirectory


@dataclass(frozen=True)
class ResolvedInputs:
    """Absolute paths for the workers and content hashes for the run id, by input name."""

    paths: dict[str, Path]
    hashes: dict[str, str]
    made_by: dict[str, str]
    """Input name → id of the run that made it, for inputs that are results of earlier stages."""


class HashCache:
    """sha256 of files, remembered by path, inode, size and modification time; a cheap re-check of large inputs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int | str]] = read_json(path) if path.exists() else {}
        self._changed = False

    def file(self, path: Path) -> str:
        """Hex sha256 of one file."""
        stat = path.stat()
        stamp: list[int | str] = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
        known = self._known.get(str(path))
        if known and known[:3] == stamp:
            return str(known[3])
        digest = sha256_file(path)
        self._known[str(path)] = [*stamp, digest]
        self._changed = True
        return digest

    def tree(self, root: Path) -> str:
        """Hex sha256 over the sorted (relative path, sha256) pairs below `root`, or of the one file."""
        if root.is_file():
            return self.file(root)
        rows = [f"{path.relative_to(root).as_posix()}\0{self.file(path)}" for path in tree_files(root)]
        return sha256_bytes("\n".join(rows).encode())

    def save(self) -> None:
        """Keeps what was learned for the next start."""
        if self._changed:
            write_json(self._path, self._known)


def resolve_inputs(
    project: Path, runs: Path, spec: StageSpec, experiment: Experiment, results: Mapping[str, Path] | None = None
) -> ResolvedInputs:
    """Finds, checks and hashes everything that a stage reads.

    `results` maps a stage to the folder that stands for `results/<stage>` (outputs not brought home yet).
    Raises UsageError for what is missing (with the command that makes it) and DoNotRetryError where a file is not what
    its manifest says.
    """
    cache = HashCache(runs / "hashes.json")
    found = _Places(project, runs, results or {})
    paths: dict[str, Path] = {}
    hashes: dict[str, str] = {}
    made_by: dict[str, str] = {}
    for name, wanted in spec.inputs(experiment).items():
        locked = found.place(wanted.path, wanted.stage)
        if not locked.exists():
            raise UsageError(_missing(spec.name, name, wanted))
        folder = _weights_folder(found, wanted, locked)
        _verify_manifest(folder, cache)
        paths[name] = folder
        hashes[name] = cache.tree(locked)
        if wanted.stage:
            made_by[name] = _maker(found.place(f"results/{wanted.stage}/result.json", wanted.stage))
    cache.save()
    return ResolvedInputs(paths, hashes, made_by)


@dataclass(frozen=True)
class _Places:
    """Where the paths of the stage table lie on this machine."""

    project: Path
    runs: Path
    results: Mapping[str, Path]

    def place(self, path: str, stage: str | None) -> Path:
        if stage is not None and stage in self.results:
            return self.results[stage] / Path(path).relative_to(f"results/{stage}")
        return self.project / path


def _maker(result: Path) -> str:
    return str(read_json(result).get("run_id", "unknown")) if result.exists() else "unknown"


def _missing(stage: str, name: str, wanted: Input) -> str:
    mend = f"./lockstep run {wanted.stage}   (or all stages: dvc repro)" if wanted.stage else "./lockstep fetch"
    return f"{stage} needs its input '{name}', and {wanted.path} is not here.\nGet it with: {mend}"


def _weights_folder(found: _Places, wanted: Input, locked: Path) -> Path:
    """Where the worker finds an input: a full model that a stage made lies in that run's folder, behind a manifest."""
    if wanted.folder:
        return found.place(wanted.folder, wanted.stage)
    manifest = locked / "manifest.json"
    if wanted.stage and locked.name == "weights" and read_json(manifest).get("kind") == "model":
        result = read_json(locked.parent / "result.json")
        model = RunDirectory(found.runs / wanted.stage / result["run_id"]).model
        if not model.exists():
            raise UsageError(
                f"The weights of {wanted.stage} run {result['run_id']} are not on this machine ({model}).\n"
                f"Get them with: ./lockstep pull {result['run_id']}"
            )
        return model
    return locked


def _verify_manifest(folder: Path, cache: HashCache) -> None:
    manifest = folder / "manifest.json"
    if not folder.is_dir() or not manifest.exists():
        return
    for name, expected in read_json(manifest).get("files", {}).items():
        path = folder / name
        if not path.exists():
            raise UsageError(f"{path} is missing, though {manifest} lists it.\nGet it with: ./lockstep fetch, or pull.")
        if path.stat().st_size != expected["bytes"] or cache.file(path) != expected["sha256"]:
            raise DoNotRetryError(
                f"{path} is not the file that {manifest} locked (another size or sha256).\n"
                "It was changed or damaged; delete its folder and get it again (./lockstep fetch, or pull)."
            )
