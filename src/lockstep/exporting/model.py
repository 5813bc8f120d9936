"""A full model, out of a checkpoint or of a complete run, a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.checkpoints.reading import WholeTensors
from lockstep.data.store import TokenStore
from lockstep.exporting.order import Order
from lockstep.foundation.errors import DoNotRetryError
from lockstep.foundation.files import read_json
from lockstep.models.export import model_config
from lockstep.models.loading import load_config
from lockstep.models.model_folder import WeightFiles, write_model_folder
from lockstep.models.precision import DTYPES
from lockstep.models.sharding import build_model
from lockstep.models.weights import MANIFEST
from lockstep.params.model import ModelParams
from lockstep.training.sft.resume import WEIGHTS_PREFIX


def blank_model(base: Path, params: ModelParams) -> PreTrainedModel:
    """The model of `base` without weights: names, shapes and configuration, and no memory."""
    config = load_config(base, params.model_copy(update={"attn_implementation": "eager"}))
    with torch.device("meta"):
        return build_model(config, DTYPES[params.master_dtype])


def export_checkpoint(order: Order, tensors: WholeTensors, folder: Path) -> dict[str, Any]:
    """The model as it stood at a checkpoint; holds one file of the result in memory. Returns its manifest."""
    base = order.input("model")
    model = blank_model(base, order.experiment.model)
    return write_model_folder(
        _weights(model, tensors, base),
        model_config(model, base),
        base,
        folder,
        chat_template=chat_template(order),
        max_shard_bytes=order.max_shard_bytes,
    )


def export_result(order: Order, folder: Path) -> dict[str, Any]:
    """The model that a complete run made, in files of the size asked for. Returns its manifest.

    Raises DoNotRetryError where its weights are not those that the run recorded.
    """
    made, recorded = order.directory.model, read_json(order.directory.outputs / "weights" / MANIFEST)
    weights, config = WeightFiles(made), read_json(made / "config.json")
    manifest = write_model_folder(weights, config, made, folder, max_shard_bytes=order.max_shard_bytes)
    if manifest["weights_sha256"] != recorded["weights_sha256"]:
        raise DoNotRetryError(
            f"The weights in {made} are not those that the run recorded (their hash differs): a file was changed.\n"
            f"Get them again with: ./lockstep pull {order.record['run_id']}"
        )
    return manifest


def chat_template(order: Order) -> str | None:
    """The template that the training texts were written in."""
    return TokenStore.open(order.input("tokens") / "train").chat_template


def _weights(model: PreTrainedModel, tensors: WholeTensors, base: Path) -> Iterator[tuple[str, Tensor]]:
    """What `models.weights.named_weights` would give of the trained model; buffers are never trained."""
    saved = set(model.state_dict())
    for name, parameter in model.named_parameters():
        yield name, tensors.read(WEIGHTS_PREFIX + name, tuple(parameter.shape))
    for name, _ in model.named_buffers():
        if name in saved:
            yield name, WeightFiles(base).read(name)
