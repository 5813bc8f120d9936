"""A tokenizer trained on the experiment's own texts, for models that start from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lockstep.data.reading import Section, chat_or_text, read_section
from lockstep.data.template import CHATML

_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer (Sennrich et al., 2016) of `vocab_size` tokens at most, with ChatML as its template.

    End of text is <|im_end|>; padding has a token of its own, so that it is never mistaken for the end.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PAD, _START, _END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=_END, pad_token=_PAD)
    tokenizer.chat_template = CHATML
    return tokenizer


def texts_of(section: Section) -> Iterator[str]:
    """A section's chats, message by message with its role, and texts, in reading order."""
    for document in read_section(section, chat_or_text):
        if "messages" in document.payload:
            yield from (f"{message['role']}\n{message['content']}" for message in document.payload["messages"])
        else:
            yield document.payload["text"]
