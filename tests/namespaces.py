"""Mounts of one's own, for tests that fill up a small file system."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def mount_namespace() -> list[str]:
    """The command prefix that gives a process mounts of its own, or a skip that says what is missing."""
    for options in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        prefix = [shutil.which("unshare") or "unshare", *options]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    pytest.skip("neither root nor user namespaces: no small file system can be mounted here")
