"""An adapter added into the weights of its full-precision base, and the proof that the result is what it should be.

Published merge scripts have written models equal to the base without a word (huggingface/trl#386). Merged into 4-bit
weights, an adapter is rounded away: the error was twice what the adapter had changed.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from lockstep.checkpoints.space import available_memory_bytes
from lockstep.foundation.errors import LockstepError, UsageError
from lockstep.foundation.files import read_json
from lockstep.models.adapters import load_adapter
from lockstep.models.export import model_config
from lockstep.models.loading import load_model
from lockstep.models.model_folder import write_model_folder
from lockstep.models.weights import named_weights
from lockstep.params.model import ModelParams, PrecisionParams

Dtype = Literal["fp32", "bf16", "fp16"]
MAX_ERROR: dict[Dtype, float] = {"fp32": 0.01, "bf16": 0.5, "fp16": 0.25}
"""By the base's dtype: the largest distance of merged logits from the adapter's, as a part of what the adapter changes.

Of 16 bits, the sum of weight and update keeps fewer than the update has; of an adapter that changes little, less.
"""
_NUM_PROBE_TOKENS = 64
_STRIDE = 7919


def merge_adapter(
    base: Path,
    adapter: Path,
    params: ModelParams,
    folder: Path,
    *,
    chat_template: str | None,
    max_shard_bytes: int,
) -> tuple[dict[str, Any], float]:
    """Writes the merged model to `folder`, in the base's own dtype; one model is in memory at a time.

    Returns its manifest and the error that `MAX_ERROR` bounds. Raises UsageError for a base that is quantised or does
    not fit in memory, LockstepError where the written model does not do what base and adapter together do.
    """
    dtype = _dtype_on_disk(base)
    _check_memory(base)
    plain = params.model_copy(
        update={
            "quantization": None,
            "master_dtype": dtype,
            "precision": PrecisionParams(compute=dtype),
            "attn_implementation": "eager",
        }
    )
    model = load_model(base, plain, device=torch.device("cpu"))
    without = probe(model)
    adapted = load_adapter(model, adapter, adapter_name="default").eval()
    wanted = probe(adapted)
    merged = adapted.merge_and_unload(safe_merge=True)
    manifest = write_model_folder(
        named_weights(merged),
        model_config(merged, base),
        base,
        folder,
        chat_template=chat_template,
        max_shard_bytes=max_shard_bytes,
    )
    del model, adapted, merged
    gc.collect()
    written = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", local_files_only=True)
    return manifest, merge_error(without, wanted, probe(written), dtype)


def merge_error(without: Tensor, wanted: Tensor, merged: Tensor, dtype: Dtype) -> float:
    """|merged − wanted| / |wanted − without| over all logits (root of mean square), for logits of any equal shape.

    Raises LockstepError where the adapter changes nothing, or the error is beyond `MAX_ERROR` of the base's `dtype`.
    """
    effect, error = _distance(wanted, without), _distance(merged, wanted)
    if not effect > 0:
        raise LockstepError("The adapter changes no logit of the base, so there is nothing to merge; was it trained?")
    if not error / effect <= MAX_ERROR[dtype]:
        raise LockstepError(
            f"The merged model is not what base and adapter together are: its logits are {error:.2e} away from theirs, "
            f"and the adapter changes the base's by {effect:.2e} ({error / effect:.0%}; at most "
            f"{MAX_ERROR[dtype]:.0%} on a {dtype} base). Nothing was kept.\n"
            "Export without --merge and let PEFT put the adapter on the base: it is exact there."
        )
    return error / effect


@torch.no_grad()
def probe(model: PreTrainedModel) -> Tensor:
    """Logits (1, 64, vocabulary) in fp32 for one fixed row of tokens, spread over the vocabulary."""
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    tokens = torch.arange(1, _NUM_PROBE_TOKENS + 1)[None] * _STRIDE % vocabulary
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).double().square().mean().sqrt())


def _dtype_on_disk(base: Path) -> Dtype:
    if "quantization_config" in read_json(base / "config.json"):
        raise UsageError(
            f"{base} holds quantised weights, into which an adapter would be rounded away.\n"
            "Export without --merge and let PEFT put the adapter on it, or train on the full-precision model."
        )
    with safe_open(next(iter(sorted(base.glob("*.safetensors")))), framework="pt") as file:
        dtype = file.get_tensor(next(iter(file.keys()))).dtype
    names: dict[torch.dtype, Dtype] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    if dtype not in names:
        raise UsageError(f"{base} holds weights in {dtype}; an adapter can be merged into {', '.join(names.values())}.")
    return names[dtype]


def _check_memory(base: Path) -> None:
    needed = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    if needed > (free := available_memory_bytes()):
        raise UsageError(
            f"Merging holds one copy of the model in host memory: {needed:,} bytes, and {free:,} are available.\n"
            "Merge on a machine with more memory, or export without --merge."
        )
