"""Images in image.lock and their cheap names: Docker's image id, a SIF's sha256 (remembered, as hashing takes time)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engines.environment import environment_id, image_lock_path, read_image_lock
from lockstep.foundation.errors import DoNotRetryError, UsageError
from lockstep.foundation.files import read_json, sha256_file, write_json
from lockstep.foundation.processes import capture

_SHA_LENGTH = 64


@dataclass(frozen=True)
class LockedImage:
    """What image.lock says about the image of one flavour."""

    flavour: str
    facts: dict[str, Any]

    @property
    def docker_id(self) -> str | None:
        """Docker's id of the image (`sha256:…`), or None when none was built."""
        docker = self.facts.get("docker")
        return str(docker["image_id"]) if docker else None

    @property
    def sif(self) -> dict[str, Any] | None:
        """The SIF: `file` (below the project), `sha256`, `bytes`; None when none was built."""
        facts: dict[str, Any] | None = self.facts.get("sif")
        return facts


def images_path(project: Path) -> Path:
    """Where image files are kept; git ignores it."""
    return project / "images"


def locked_image(project: Path, flavour: str) -> LockedImage | None:
    """The image of a flavour, or None when none was built, or when it holds another environment than the locked one."""
    facts = read_image_lock(project).get("images", {}).get(flavour)
    if facts is None or facts["environment_id"] != environment_id(project, flavour):
        return None
    return LockedImage(flavour, facts)


def record_image(project: Path, flavour: str, facts: dict[str, Any]) -> None:
    """Writes what is known about the image of a flavour to image.lock; environments and other images stay."""
    lock = read_image_lock(project)
    lock.setdefault("images", {})[flavour] = facts
    write_json(image_lock_path(project), lock)


def require_image(project: Path, flavour: str) -> LockedImage:
    """The image of a flavour. Raises UsageError when there is none for the locked environment."""
    image = locked_image(project, flavour)
    if image is None:
        raise UsageError(
            f"image.lock has no {flavour} image of the environment {environment_id(project, flavour)}; "
            f"`make image FLAVOUR={flavour}` builds one"
        )
    return image


def docker_answers() -> bool:
    """True where there is a Docker client whose daemon answers."""
    return capture(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=20) is not None


def docker_image_id(name: str) -> str | None:
    """Docker's id for a name or an id; None when Docker does not have it."""
    shown = capture(["docker", "image", "inspect", "--format", "{{.Id}}", name])
    return shown.strip() if shown else None


def sif_path(project: Path, image: LockedImage) -> Path:
    """The SIF of an image. Raises UsageError when none was built or the file is not here."""
    if image.sif is None:
        raise UsageError(
            f"the {image.flavour} image has no SIF in image.lock; `make image` makes it where Apptainer is"
        )
    path = project / image.sif["file"]
    if not path.exists():
        raise UsageError(
            f"{path} is not here; `make image FLAVOUR={image.flavour}` builds it, or copy it from where it was built"
        )
    return path


def check_sif(project: Path, image: LockedImage) -> Path:
    """The SIF, its sha256 checked against image.lock. Raises DoNotRetryError when it is another file.

    Hashing takes about a second per 600 MB, so the result is remembered by path, inode, size and time.
    """
    path = sif_path(project, image)
    found = _remembered_sha256(path, project / ".lockstep" / "sif.json")
    locked = str((image.sif or {})["sha256"])
    if found != locked:
        raise DoNotRetryError(
            f"{path} is not the locked image: its sha256 is {found[:12]}…, image.lock says {locked[:12]}…; "
            f"`./lockstep image verify` says what differs, `make image FLAVOUR={image.flavour}` builds it anew"
        )
    return path


def _remembered_sha256(path: Path, memory: Path) -> str:
    status = path.stat()
    key = f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    known: dict[str, str] = read_json(memory) if memory.exists() else {}
    if len(known.get(key, "")) == _SHA_LENGTH:
        return known[key]
    digest = sha256_file(path)
    write_json(memory, {**{k: v for k, v in known.items() if not k.startswith(f"{path} ")}, key: digest})
    return digest
