"""Which variables a stage sees: fixed ones, an allow-list from the host, and what the launcher decides."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping
from pathlib import Path

from lockstep.engines.base import LaunchRequest
from lockstep.foundation.errors import UsageError
from lockstep.foundation.files import sha256_bytes

FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""The same everywhere. Offline, because a hub that answers is an input that nobody locked."""

PASSED = (
    "SLURM_*", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "MASTER_ADDR", "MASTER_PORT", "NCCL_*", "TORCH_NCCL_*", "GLOO_SOCKET_IFNAME", "FI_*", "UCX_*",
    "LOCKSTEP_*", "TZ", "TERM", "COLUMNS",
)  # fmt: skip
"""What may come from the host: where the job runs, never what it computes."""

_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "cache/huggingface",
    "TORCH_HOME": "cache/torch",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TRITON_CACHE_DIR": "cache/triton",
    "MPLCONFIGDIR": "cache/matplotlib",
    "NUMBA_CACHE_DIR": "cache/numba",
    "CUDA_CACHE_PATH": "cache/cuda",
}
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_KEY|ACCESS_KEY", re.IGNORECASE)


def host_variables() -> dict[str, str]:
    """The one door of this room to the environment of the calling process."""
    return dict(os.environ)


def stage_environment(request: LaunchRequest, host: Mapping[str, str]) -> dict[str, str]:
    """The environment of the stage's process, the same for every engine but PATH, HOME, USER and TMPDIR.

    Raises UsageError for a secret that the host does not have.
    """
    passed = {
        name: value
        for name, value in host.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in PASSED) and not _SECRET.search(name)
    }
    missing = [name for name in request.secrets if name not in host]
    if missing:
        raise UsageError(f"the secret {missing[0]} is to be handed to the stage but is not set; export it and repeat")
    caches = {name: str(request.scratch / folder) for name, folder in _CACHES.items()}
    own = {"PYTHONPATH": str(request.project / "src"), "LOCKSTEP_PROJECT": str(request.project)}
    secrets = {name: host[name] for name in request.secrets}
    return {**passed, **FIXED, **caches, **own, **dict(request.environment), **secrets}


def recorded(environment: Mapping[str, str], secrets: tuple[str, ...]) -> dict[str, str]:
    """What a run's record keeps of an environment: name → sha256 of the value; a secret's value leaves no trace."""
    return {
        name: "secret" if name in secrets or _SECRET.search(name) else sha256_bytes(value.encode())
        for name, value in sorted(environment.items())
    }


def recorded_variables(request: LaunchRequest) -> dict[str, str]:
    """`recorded`, of the environment that this request's stage would have."""
    return recorded(stage_environment(request, host_variables()), request.secrets)


def cache_folders(scratch: Path) -> list[Path]:
    """The folders below `scratch` that the stage's variables name."""
    return [scratch / folder for folder in (*_CACHES.values(), "tmp")]
