"""What a stage sees of the host's environment: the allow-list and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.engines.base import LaunchRequest
from lockstep.engines.variables import recorded, stage_environment
from lockstep.foundation.errors import UsageError


def request(**changes: object) -> LaunchRequest:
    values: dict[str, object] = {
        "argv": ("python", "-c", "pass"),
        "project": Path("/project"),
        "workdir": Path("/project"),
        "scratch": Path("/runs/x/scratch"),
        "attempt_name": "lockstep-sft-x-1",
        "flavour": "cpu",
    }
    return LaunchRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_only_where_a_job_runs_comes_from_the_host():
    host = {
        "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "64", "PYTHONPATH": "/elsewhere", "HF_HUB_OFFLINE": "0", "TRANSFORMERS_VERBOSITY": "debug",
        "CUBLAS_WORKSPACE_CONFIG": ":16:8", "LD_PRELOAD": "/x.so",
    }  # fmt: skip
    seen = stage_environment(request(environment={"OMP_NUM_THREADS": "1"}), host)
    assert seen["SLURM_JOB_ID"] == "7"
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen["NCCL_DEBUG"] == "INFO"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert seen["PYTHONPATH"] == "/project/src"
    assert seen["HF_HUB_OFFLINE"] == "1"
    assert not {"TRANSFORMERS_VERBOSITY", "CUBLAS_WORKSPACE_CONFIG", "LD_PRELOAD"} & set(seen)


def test_caches_lie_in_the_scratch_folder_of_the_run():
    seen = stage_environment(request(), {})
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR"):
        assert seen[name].startswith("/runs/x/scratch/"), name


def test_a_secret_passes_only_when_asked_for_and_leaves_no_trace_in_the_record():
    host = {"HF_TOKEN": "hush", "SLURM_API_KEY": "hush-too", "LOCKSTEP_MLFLOW_TOKEN": "hush-again"}
    assert not [name for name, value in stage_environment(request(), host).items() if "hush" in value]
    asked = request(secrets=("HF_TOKEN",))
    seen = stage_environment(asked, host)
    assert seen["HF_TOKEN"] == "hush"
    record = recorded(seen, asked.secrets)
    assert record["HF_TOKEN"] == "secret"
    assert len(record["LANG"]) == 64
    assert record != recorded({**seen, "LANG": "de_DE.UTF-8"}, asked.secrets)


def test_a_secret_that_is_not_set_is_refused_by_name():
    with pytest.raises(UsageError, match="HF_TOKEN.*export it"):
        stage_environment(request(secrets=("HF_TOKEN",)), {})
