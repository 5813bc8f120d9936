"""Held-out perplexity of the model before and after fine-tuning, on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from lockstep.data.collator import RowCollator
from lockstep.data.store import TokenStore
from lockstep.foundation.errors import StoppedAfterSave
from lockstep.models.adapters import load_adapter
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.models.sharding import Layout
from lockstep.models.weights import read_manifest
from lockstep.params.model import ModelParams
from lockstep.training.common.ranks import Ranks
from lockstep.training.sft.evaluation import HeldOut, evaluate
from lockstep.training.sft.loss import SupervisedHead

ADAPTER = "sft"


def tuned_model(base: Path, weights: Path, params: ModelParams, ranks: Ranks) -> PreTrainedModel | PeftModel:
    """The result of `sft`: its own full model, the base with its adapter, or the bare base where sft was skipped."""
    kind = read_manifest(weights)["kind"]
    layout = Layout(ranks.world_size)
    model = load_model(weights if kind == "model" else base, params, device=ranks.device, layout=layout)
    return load_adapter(model, weights, adapter_name=ADAPTER) if kind == "adapter" else model


def held_out(
    model: PreTrainedModel | PeftModel,
    store: TokenStore,
    tokenizer_folder: Path,
    ranks: Ranks,
    batch_size: int,
    stop_requested: Callable[[], bool],
) -> HeldOut:
    """exp(sum of NLL / supervised tokens) over every held-out row; collective. Raises StoppedAfterSave on a stop."""
    collate = RowCollator(load_tokenizer(tokenizer_folder).pad_token_id, model.config._attn_implementation)
    found = evaluate(model, SupervisedHead(model), store.dataset, collate, ranks, batch_size, stop_requested)
    if found is None:
        raise StoppedAfterSave("stopped; an evaluation keeps nothing and starts again")
    return found
