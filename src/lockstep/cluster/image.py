"""The image file that a job runs in: where it is, and what image.lock says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lockstep.engines.environment import read_image_lock
from lockstep.foundation.errors import DoNotRetryError, UsageError


def locked_sha256(source: Path, flavour: str) -> str:
    """The sha256 of a flavour's SIF as image.lock has it. Raises DoNotRetryError where it has none."""
    sif = read_image_lock(source)["images"].get(flavour, {}).get("sif", {})
    if "sha256" not in sif:
        raise DoNotRetryError(
            f"image.lock has no SIF for '{flavour}', so nothing can be said to run in the locked image.\n"
            f"Build it (./lockstep image build --flavour {flavour}), or take LOCKSTEP_ENGINE=host in slurm/site.env."
        )
    return str(sif["sha256"])


def image_file(checkout: Path, flavour: str, settings: Mapping[str, str]) -> Path:
    """The SIF: the site's LOCKSTEP_IMAGE, else the one that `image build` makes. Raises UsageError when it is missing."""
    path = Path(settings.get("LOCKSTEP_IMAGE", str(checkout / "images" / f"lockstep-{flavour}.sif")))
    if not path.exists():
        raise UsageError(
            f"The image {path} is not here.\n"
            f"Build it (./lockstep image build --flavour {flavour}) or name it in slurm/site.env (LOCKSTEP_IMAGE)."
        )
    return path
