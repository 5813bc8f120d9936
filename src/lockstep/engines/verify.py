"""`lockstep image verify`: hashes again what is here and says what differs from image.lock, file by file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.engines import builders
from lockstep.engines.build import read_listing
from lockstep.engines.content import content_id, differences
from lockstep.engines.images import LockedImage, docker_image_id, require_image
from lockstep.foundation.files import sha256_file


@dataclass
class Verdict:
    """What was looked at, and every difference found."""

    flavour: str
    checked: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True when something was checked and nothing differs."""
        return bool(self.checked) and not self.differences

    def text(self) -> str:
        """For people."""
        if not self.checked:
            return (
                f"{self.flavour}: neither the Docker image nor the SIF of image.lock is here; `make image` builds them"
            )
        outcome = "the locked content" if self.same else "NOT the locked content"
        head = f"{self.flavour}: {' and '.join(self.checked)}: {outcome}"
        return "\n".join([head, *(f"  {row}" for row in self.differences)])


def verify_image(project: Path, flavour: str, say: Callable[[str], None]) -> Verdict:
    """Compares every image of a flavour that is here with image.lock. Raises UsageError when image.lock names none."""
    image = require_image(project, flavour)
    verdict = Verdict(flavour)
    _verify_docker(project, image, verdict, say)
    _verify_sif(project, image, verdict, say)
    return verdict


def _verify_docker(project: Path, image: LockedImage, verdict: Verdict, say: Callable[[str], None]) -> None:
    docker = image.facts.get("docker")
    found = docker and (docker_image_id(docker["name"]) or docker_image_id(docker["image_id"]))
    if not docker or not found:
        return
    verdict.checked.append(f"Docker image {found[:19]}")
    if found != docker["image_id"]:
        verdict.differences.append(f"{docker['name']} is {found[:19]}, image.lock says {docker['image_id'][:19]}")
    say(f"listing the content of {docker['name']}")
    _compare(project, image, builders.docker_content(project, found), verdict)


def _verify_sif(project: Path, image: LockedImage, verdict: Verdict, say: Callable[[str], None]) -> None:
    path = project / image.sif["file"] if image.sif else None
    if image.sif is None or path is None or not path.exists():
        return
    verdict.checked.append(path.name)
    if sha256_file(path) != image.sif["sha256"]:
        verdict.differences.append(f"{path.name} is another file than the one in image.lock (sha256)")
    say(f"listing the content of {path.name}")
    _compare(project, image, builders.sif_content(project, path), verdict)


def _compare(project: Path, image: LockedImage, lines: list[str], verdict: Verdict) -> None:
    found, locked = content_id(lines), image.facts["content_id"]
    if found == locked:
        return
    kept = read_listing(project, image.flavour)
    if content_id(kept) == locked:
        verdict.differences += differences(kept, lines)
    else:
        verdict.differences.append(
            f"content id is {found[:12]}…, locked is {locked[:12]}… (no listing of the locked one is here)"
        )
