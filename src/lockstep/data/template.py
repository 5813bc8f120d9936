"""A chat as one text, and which of its characters the model learns to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from lockstep.data.chat import Message
from lockstep.foundation.errors import UsageError

CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""The template for tokenizers that bring none; their vocabulary needs <|im_start|> and <|im_end|>."""
_DATE = "01 Jan 2025"


@dataclass(frozen=True)
class Rendered:
    """A chat as text. `spans` are the (start, end) characters of the assistant's turns, end-of-turn marks included."""

    text: str
    spans: list[tuple[int, int]]


def choose_template(tokenizer: Any, chosen: Path | None) -> str:
    """The template that renders the chats: the chosen file, the tokenizer's own, or ChatML.

    Raises UsageError for a file that is not there, and where ChatML's marks are no tokens of the vocabulary.
    """
    if chosen is not None:
        if not chosen.exists():
            raise UsageError(f"data.sft.chat_template_path: {chosen} is not here.\nPut it there, or leave the key out.")
        return chosen.read_text(encoding="utf-8")
    if tokenizer.chat_template:
        return str(tokenizer.chat_template)
    if tokenizer.convert_tokens_to_ids("<|im_end|>") in (None, tokenizer.unk_token_id):
        raise UsageError(
            "The tokenizer has no chat template, and its vocabulary lacks ChatML's <|im_start|> and <|im_end|>.\n"
            "Write a template with its own special tokens and name it in data.sft.chat_template_path."
        )
    return CHATML


def render(
    tokenizer: Any,
    template: str,
    messages: list[Message],
    where: str,
    enough: Callable[[str], bool] | None = None,
) -> Rendered:
    """Renders a chat up to its last assistant turn, or the first one at which `enough(text)`, and finds the spans.

    A turn's span is what the template adds between "everything before, with the assistant's header" and "everything
    up to this turn", without trailing white space. So it works for any template that only ever appends, whether or
    not it has {% generation %} marks. Raises UsageError, naming `where`, for a template that refuses the chat, rewrites
    earlier turns, or closes no assistant turn (the model would never learn to stop).
    """
    spans: list[tuple[int, int]] = []
    text = ""
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _apply(tokenizer, template, messages[:turn], where, header=True)
        after = _apply(tokenizer, template, messages[: turn + 1], where, header=False)
        if not after.startswith(before) or not before.startswith(text):
            raise UsageError(_NOT_APPENDING.format(where=where))
        text = after.rstrip()
        spans.append((len(before), len(text)))
        if enough is not None and enough(text):
            break
    _check_closed(text, messages, len(spans), where)
    return Rendered(text, spans)


def _apply(tokenizer: Any, template: str, messages: list[Message], where: str, header: bool) -> str:
    # Some templates write today's date; locked data must not depend on the day it was made.
    fixed = {"date_string": _DATE} if "strftime_now" in template else {}
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=header, **fixed
            )
        )
    except TemplateError as error:
        raise UsageError(f"{where}: the chat template refuses this chat ({error}).") from None


def _check_closed(text: str, messages: list[Message], num_turns: int, where: str) -> None:
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    if num_turns and text.endswith(said[num_turns - 1].rstrip()):
        raise UsageError(
            f"{where}: the chat template puts nothing behind an assistant's turn: the model could not learn to stop.\n"
            "Add the end-of-turn token to it, or name another template in data.sft.chat_template_path."
        )


_NOT_APPENDING = (
    "{where}: the chat template changes earlier turns when later ones are added, so what the assistant said cannot be "
    "told from the rest.\nName a template that only appends in data.sft.chat_template_path."
)
