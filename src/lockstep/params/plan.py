"""The hardware that a recipe was made for: what a plan is compared with. It decides no result."""

from __future__ import annotations

from pydantic import Field, field_validator

from lockstep.foundation.errors import UsageError
from lockstep.params.base import Strict
from lockstep.params.gpus import gpu_type


class HardwareParams(Strict):
    """GPUs of one kind in nodes of one size. How many nodes a stage takes follows from its `num_processes`."""

    gpu: str = Field(description="a type that `lockstep plan` knows: a100-80g, h100-80g, rtx4090, …")
    gpus_per_node: int = Field(8, ge=1)
    host_memory_gib: int | None = Field(None, ge=1, description="memory of one node; none: not checked")

    @field_validator("gpu")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return gpu_type(value).name
        except UsageError as error:
            raise ValueError(str(error)) from None
