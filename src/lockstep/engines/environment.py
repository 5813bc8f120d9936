"""The environment by its two names in image.lock, and the check that what is installed is what was locked."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lockstep.engines.installed import (
    CHECK_STAMP,
    Installed,
    changed_files,
    installed_packages,
    record_digest,
    signature,
)
from lockstep.engines.installed import site_packages as own_site_packages
from lockstep.engines.lockfile import PYTHON_MINOR, lock_path, read_lock
from lockstep.foundation.errors import DoNotRetryError, UsageError, nearest
from lockstep.foundation.files import read_json, write_atomic

_SHOWN = 5
_TOLERATED = {"pip", "wheel", "lockstep"}
IMAGE_FACTS = "lockstep-image.json"
"""In the root of an image's Python environment; written by its build."""


def image_lock_path(project: Path) -> Path:
    """The lock of environments and images of a checkout."""
    return project / "image.lock"


def records_path(project: Path, flavour: str) -> Path:
    """For every package of a flavour: sha256 of its locked file and digest of the file list it brings."""
    return project / "requirements" / f"{flavour}.records.json"


def read_image_lock(project: Path) -> dict[str, Any]:
    """Reads image.lock. Raises UsageError when it is missing or no JSON."""
    path = image_lock_path(project)
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing; `git checkout image.lock` brings it back") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is no valid JSON (line {error.lineno}); `make lock` writes it anew") from None
    return lock


def _entry(project: Path, flavour: str) -> dict[str, Any]:
    environments: dict[str, dict[str, Any]] = read_image_lock(project).get("environments", {})
    if flavour not in environments:
        known = ", ".join(environments) or "none"
        raise UsageError(
            f"image.lock has no environment '{flavour}' (it has: {known}).{nearest(flavour, environments)}"
        )
    return environments[flavour]


def environment_id(project: Path, flavour: str) -> str:
    """The locked id of a flavour's environment. Raises UsageError for a flavour that image.lock does not have."""
    return str(_entry(project, flavour)["id"])


def check_installed(project: Path, flavour: str, *, site: Path | None = None, full: bool = False) -> None:
    """Checks that the environment in `site` (default: this Python's own) is the locked one.

    Names and versions always; every file's hash against the RECORD, and the RECORD against image.lock, when `full` or
    when any file's size or time changed since the last full check. Raises DoNotRetryError with the first differences.
    """
    site = site or own_site_packages()
    entry = _entry(project, flavour)
    differences = _python_difference() + _version_differences(project, flavour, site)
    if not differences and (full or not _checked_before(site, entry["id"])):
        differences = _content_differences(records_path(project, flavour), installed_packages(site))
        if not differences:
            _remember(site, entry["id"])
    if differences:
        raise DoNotRetryError(_message(project, flavour, site, differences))


def _python_difference() -> list[str]:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [] if running == PYTHON_MINOR else [f"Python is {running}, locked is {PYTHON_MINOR}"]


def _version_differences(project: Path, flavour: str, site: Path) -> list[str]:
    locked = read_lock(lock_path(project, flavour))
    found = installed_packages(site)
    rows = [
        f"{name} is {found[name].version if name in found else 'missing'}, locked is {pin.version}"
        for name, pin in locked.items()
        if name not in found or found[name].version != pin.version
    ]
    extra = set(found) - set(locked) - _TOLERATED
    if extra:
        extra -= set(read_lock(lock_path(project, "dev")))
    return rows + [f"{name} {found[name].version} is installed but not locked" for name in sorted(extra)]


def _content_differences(records: Path, found: dict[str, Installed]) -> list[str]:
    locked: dict[str, dict[str, str]] = read_json(records)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        checks = pool.map(lambda name: _package_difference(found[name], locked[name]["record"]), locked)
    return [row for rows in checks for row in rows]


def _package_difference(package: Installed, locked_record: str) -> list[str]:
    if not package.record.exists():
        return [f"{package.name} {package.version} has no RECORD"]
    if record_digest(package.record) != locked_record:
        return [f"{package.name} {package.version} does not hold the files of the locked wheel"]
    changed = changed_files(package.record.parent.parent, package.record)
    return [f"{package.name} {package.version}: {path} was changed" for path in changed]


def _stamp(site: Path) -> Path:
    return site / CHECK_STAMP


def _checked_before(site: Path, identity: str) -> bool:
    """True when nothing changed since the last full check. An image is checked by its own name, not file by file."""
    image = image_facts(site)
    if image is not None:
        return bool(image["environment_id"] == identity)
    try:
        return _stamp(site).read_text() == f"{identity} {signature(site)}"
    except OSError:
        return False


def _remember(site: Path, identity: str) -> None:
    if image_facts(site) is None and os.access(site, os.W_OK):
        write_atomic(_stamp(site), f"{identity} {signature(site)}")


def image_facts(site: Path | None = None) -> dict[str, Any] | None:
    """What the image's build wrote down about itself (`flavour`, `environment_id`); None outside an image."""
    prefix = (site or own_site_packages()).parents[2]
    try:
        facts: dict[str, Any] = json.loads((prefix / IMAGE_FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return facts


def _message(project: Path, flavour: str, site: Path, differences: list[str]) -> str:
    shown = "\n".join(f"  {row}" for row in differences[:_SHOWN])
    more = f"\n  … and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return (
        f"the environment in {site} is not the locked one ({flavour} in {project / 'image.lock'}):\n{shown}{more}\n"
        f"`make setup FLAVOUR={flavour}` brings it back; to keep a new package, add it to requirements/*.in and run "
        "`make lock`"
    )
