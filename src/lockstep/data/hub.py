"""Data sets and models of a hub, pinned to a commit, resumable, with the token taken from the environment alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from lockstep.data.disk import disk_full_explained
from lockstep.foundation.errors import LockstepError, UsageError

MODEL_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*"]
"""What is taken of a model: weights in safetensors only, never pickles or code."""


def download(kind: Literal["model", "dataset"], name: str, commit: str, patterns: list[str], target: Path) -> None:
    """Puts the files of a repository at a commit that match `patterns` into `target`, which appears when all are there.

    Files that came whole are not fetched again after an interruption, and a transfer that breaks goes on where it
    broke (the client's own doing; a killed one begins that file anew). Raises UsageError where the hub knows no such
    name, commit or file, or asks for access, and LockstepError where it cannot be reached.
    """
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    partial = target.with_name(f".{target.name}.partial")
    repository = f"{name}@{commit}"
    try:
        with disk_full_explained(target):
            snapshot_download(
                name, repo_type=kind, revision=commit, allow_patterns=patterns, local_dir=partial, token=_token()
            )
    except GatedRepoError:
        raise UsageError(
            f"hub:{repository} asks for access.\nAccept its terms on the hub, set HF_TOKEN and repeat the command."
        ) from None
    except LocalEntryNotFoundError as error:
        raise LockstepError(_unreachable(repository, error)) from None
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403, 404):
            raise UsageError(
                f"The hub has no {kind} {repository}, or HF_TOKEN may not read it (HTTP {error.response.status_code})."
            ) from None
        raise LockstepError(_unreachable(repository, error)) from None
    except (OSError, HTTPError) as error:
        raise LockstepError(_unreachable(repository, error)) from None
    _move_into_place(partial, target, f"hub:{repository} has no file that matches {', '.join(patterns)}.")


def _move_into_place(partial: Path, target: Path, if_empty: str) -> None:
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    if not partial.exists() or not any(path.is_file() for path in partial.rglob("*")):
        shutil.rmtree(partial, ignore_errors=True)
        raise UsageError(if_empty)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _token() -> str | Literal[False]:
    """False keeps the client from looking for a token anywhere else."""
    return os.environ.get("HF_TOKEN") or False


def _unreachable(repository: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"hub:{repository} could not be downloaded: {first}\nRepeat the command; it goes on where it stopped."
