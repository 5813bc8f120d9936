"""`lockstep image show`: image.lock in words, and what of it is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.engines.environment import check_installed, image_facts, read_image_lock
from lockstep.engines.images import LockedImage, docker_image_id, locked_image
from lockstep.foundation.errors import LockstepError


def describe(project: Path) -> dict[str, Any]:
    """Per flavour: environment id, number of packages, and the state of venv, Docker image and SIF here."""
    environments = read_image_lock(project)["environments"]
    return {
        flavour: {
            "environment_id": entry["id"],
            "num_packages": len(entry["packages"]),
            "here": _here(project, flavour),
            **_image_states(project, flavour),
        }
        for flavour, entry in environments.items()
    }


def _here(project: Path, flavour: str) -> str:
    place = "this image" if image_facts() else "this venv"
    try:
        check_installed(project, flavour)
    except LockstepError:
        return f"not {place}"
    return place


def _image_states(project: Path, flavour: str) -> dict[str, str | None]:
    image = locked_image(project, flavour)
    if image is None:
        return {"content_id": None, "docker": "none in image.lock", "sif": "none in image.lock"}
    return {
        "content_id": image.facts["content_id"],
        "docker": _docker_state(image),
        "sif": _sif_state(project, image),
    }


def _docker_state(image: LockedImage) -> str:
    if image.docker_id is None:
        return "none in image.lock"
    return f"{image.docker_id[7:19]} {'here' if docker_image_id(image.docker_id) else 'not here'}"


def _sif_state(project: Path, image: LockedImage) -> str:
    if image.sif is None:
        return "none in image.lock"
    return f"{image.sif['file']} {'here' if (project / image.sif['file']).exists() else 'not here'}"


def table(facts: dict[str, Any]) -> str:
    """For people: one block per flavour."""
    blocks = []
    for flavour, row in facts.items():
        content = row["content_id"]
        blocks.append(
            f"{flavour}: environment {row['environment_id']}, {row['num_packages']} packages, {row['here']}\n"
            f"  content  {content[:16] + '…' if content else 'none'}\n"
            f"  docker   {row['docker']}\n"
            f"  sif      {row['sif']}"
        )
    return "\n".join(blocks)
