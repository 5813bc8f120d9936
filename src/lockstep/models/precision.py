"""One precision parameter, turned into torch's dtypes and FSDP2's policy."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from lockstep.params.model import PrecisionParams

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def mixed_precision_policy(precision: PrecisionParams) -> MixedPrecisionPolicy:
    """FSDP2's policy: parameters are gathered in the compute dtype, gradients summed in the reduce dtype."""
    if precision.compute == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[precision.compute], reduce_dtype=DTYPES[precision.reduce])


def is_switch_of_transformers(precision: PrecisionParams) -> bool:
    """True where Transformers' own `fsdp_mixed_precision` (off, or bf16 with fp32 reduction) says the same."""
    return precision.compute == "fp32" or (precision.compute, precision.reduce) == ("bf16", "fp32")
