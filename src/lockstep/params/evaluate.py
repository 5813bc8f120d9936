"""What is measured after training, and on how much."""

from __future__ import annotations

from pydantic import Field

from lockstep.params.base import Strict


class EvaluateParams(Strict):
    """Parameters of the `evaluate` stage."""

    enabled: bool = True
    num_processes: int = Field(1, ge=1, description="ranks that share the held-out data")
    per_device_eval_batch_size: int = Field(4, ge=1, description="sequences per forward pass")
    num_prompts: int = Field(64, ge=2, description="held-out prompts that reference and policy complete")
    max_new_tokens: int = Field(32, ge=1, description="tokens generated per prompt")
    num_samples_shown: int = Field(8, ge=1, description="texts put side by side in the report")
