"""The image file that a job runs in: where it is, and what image.lock says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lockstep.engines.images import require_image, sif_path
from lockstep.foundation.errors import DoNotRetryError, UsageError


def locked_sha256(source: Path, flavour: str) -> str:
    """The sha256 of a flavour's SIF as image.lock has it. Raises DoNotRetryError where it has none."""
    sif = require_image(source, flavour).sif
    if sif is None:
        raise DoNotRetryError(
            f"image.lock has no SIF for '{flavour}', so nothing can be said to run in the locked image.\n"
            f"Build it (make image FLAVOUR={flavour}), or take LOCKSTEP_ENGINE=host in slurm/site.env."
        )
    return str(sif["sha256"])


def image_file(checkout: Path, flavour: str, settings: Mapping[str, str]) -> Path:
    """The SIF: the site's LOCKSTEP_IMAGE, else the one that image.lock names. Raises UsageError when it is missing."""
    named = settings.get("LOCKSTEP_IMAGE")
    if named is None:
        return sif_path(checkout, require_image(checkout, flavour))
    if not Path(named).exists():
        raise UsageError(f"LOCKSTEP_IMAGE names {named}, and that is not here; correct slurm/site.env.")
    return Path(named)
