"""What never decides a result: how often to say and save, how many to keep, where to track, how long to wait."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lockstep.params.base import Strict
from lockstep.params.plan import HardwareParams


class RunParams(Strict):
    """Operational parameters, shared by all stages; changing one re-runs nothing."""

    logging_steps: int = Field(1, ge=1, description="print progress every N steps (every step is in the spool)")
    save_steps: int = Field(10, ge=1, description="checkpoint every N steps")
    save_total_limit: int = Field(2, ge=1, description="keep the last N checkpoints")
    save_every: int | None = Field(None, ge=1, description="keep every checkpoint whose step is a multiple of this")
    keep_best: bool = Field(False, description="keep the checkpoint with the best evaluation metric, too")
    asynchronous_save: bool = Field(False, description="train on while shards are written")
    on_save_failure: Literal["stop", "continue"] = Field("stop", description="what a failed save (disk full) does")
    verify: Literal["own", "full"] = Field("own", description="at resume: check own shards, or read all of them")
    sample_steps: int = Field(10, ge=1, description="PPO: write a table of samples every N steps")
    tracking_uri: str | None = Field(None, description="MLflow server; none: a local database beside the runs folder")
    experiment_name: str = Field("lockstep", description="MLflow experiment; the stage is appended")
    tracking_flush_s: float = Field(2.0, gt=0, description="seconds between batches to MLflow")
    rendezvous_timeout_s: int = Field(300, ge=10, description="how long launchers wait for each other")
    collective_timeout_s: int = Field(1800, ge=30, description="how long a collective may take before it fails")
    hardware: HardwareParams | None = Field(None, description="what `lockstep plan` compares with")
