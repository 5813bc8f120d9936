"""A run is identified by what decides its result: stage, deciding parameters, inputs, environment and code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.foundation.files import canonical_json, sha256_bytes, sha256_file
from lockstep.params.experiment import Experiment
from lockstep.params.stages import StageSpec

_ID_LENGTH = 12


@dataclass(frozen=True)
class Identity:
    """What was locked, and the short name that follows from it."""

    stage: str
    params: dict[str, Any]
    inputs: dict[str, str]
    environment: dict[str, str]
    code: str

    @property
    def locks(self) -> dict[str, Any]:
        """The locks as they stand in run.json."""
        return {
            "params": self.params,
            "inputs": self.inputs,
            "environment": self.environment,
            "code": self.code,
        }

    @property
    def run_id(self) -> str:
        """The first 12 hex digits of the sha256 over stage and locks."""
        return sha256_bytes(canonical_json({"stage": self.stage, **self.locks}).encode())[:_ID_LENGTH]


def identify(
    spec: StageSpec, experiment: Experiment, inputs: dict[str, str], environment_id: str, package: Path
) -> Identity:
    """Builds the identity of one stage; `inputs` maps input names to content hashes, `package` is `src/lockstep`."""
    flavour = getattr(experiment.environment, spec.name)
    return Identity(
        stage=spec.name,
        params=spec.deciding_params(experiment),
        inputs=inputs,
        environment={"flavour": flavour, "id": environment_id},
        code=code_hash(package, spec.code),
    )


def code_files(package: Path, rooms: tuple[str, ...]) -> dict[str, str]:
    """Relative name → sha256 of the Python files of `rooms` below `package`."""
    files: set[Path] = set()
    for room in rooms:
        path = package / room
        files |= {path} if path.is_file() else set(path.rglob("*.py"))
    return {file.relative_to(package).as_posix(): sha256_file(file) for file in sorted(files)}


def code_hash(package: Path, rooms: tuple[str, ...]) -> str:
    """sha256 over the names and contents of `code_files`."""
    rows = [f"{name} {digest}" for name, digest in code_files(package, rooms).items()]
    return sha256_bytes("\n".join(rows).encode())
