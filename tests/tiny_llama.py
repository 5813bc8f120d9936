"""A model, a tokenizer and rows of tokens small enough to train in seconds; the same on every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lockstep.data.store import TokenStore
from lockstep.params.experiment import Experiment, parse_experiment

VOCABULARY = 512


def write_model(folder: Path, *, tied: bool = True, num_layers: int = 2) -> Path:
    """A random Llama (hidden 64) with a tokenizer whose tokens are words w0, w1, …"""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are words w0, w1, …"""
    names = ["<pad>", "<s>", "</s>", *(f"w{index}" for index in range(3, VOCABULARY))]
    words = {name: index for index, name in enumerate(names)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def token_store(num_rows: int, *, seed: int, max_length: int = 48) -> TokenStore:
    """Rows of uneven length in memory; about half of the tokens carry loss, some rows hold two samples."""
    generator = torch.Generator().manual_seed(seed)
    rows: dict[str, list[Any]] = {"input_ids": [], "labels": [], "seq_lengths": []}
    for number in range(num_rows):
        length = int(torch.randint(8, max_length, (), generator=generator))
        tokens = torch.randint(3, VOCABULARY, (length,), generator=generator)
        labels = torch.where(torch.rand(length, generator=generator) < 0.5, tokens, -100)
        lengths = [length // 2, length - length // 2] if number % 3 == 0 else [length]
        starts = [0, lengths[0]][: len(lengths)]
        labels[starts] = -100
        rows["input_ids"].append(tokens.tolist())
        rows["labels"].append(labels.tolist())
        rows["seq_lengths"].append(lengths)
    return TokenStore(Path("memory"), Dataset.from_dict(rows).with_format("numpy"), {})


def experiment(**sections: dict[str, Any]) -> Experiment:
    """A valid experiment with the given keys of its sections replaced."""
    raw: dict[str, Any] = {
        "seed": 7,
        "environment": {},
        "model": {"source": "path:here"},
        "data": {"sft": {"sources": [{"source": "jsonl:chats.jsonl"}]}},
        "sft": {"max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": 0.01, "warmup_steps": 2},
        "reward": {"enabled": False},
        "ppo": {"enabled": False},
        "evaluate": {},
        "run": {"save_steps": 100, "logging_steps": 100},
    }
    for name, values in sections.items():
        raw[name] = {**raw[name], **values}
    return parse_experiment(raw)
