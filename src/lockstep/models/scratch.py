"""A small model with random weights, for tests and for trying things out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from lockstep.foundation.errors import UsageError

_INIT_SEED = 0


def initialise_model(architecture: Path, tokenizer: Any, folder: Path) -> None:
    """Writes a randomly initialised model of the given architecture, and its tokenizer, to `folder`.

    `architecture` is a Hugging Face config.json; the vocabulary's size and special tokens follow from the tokenizer.
    The weights depend on the architecture alone: the experiment's seed is for training, and its variants share a base.
    Raises UsageError for a file that describes no causal language model.
    """
    facts = json.loads(architecture.read_text(encoding="utf-8"))
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    try:
        config = AutoConfig.for_model(**{**facts, **ids, "vocab_size": len(tokenizer)})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_INIT_SEED)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{architecture} does not describe a causal language model: {error}") from None
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
