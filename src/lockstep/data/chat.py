"""Chats as they come, and as the templates want them: known roles, one message per turn, text only."""

from __future__ import annotations

from typing import Any

from lockstep.foundation.errors import UsageError, nearest

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "prompter": "user"}
_KNOWN = ("system", "user", "assistant")


def normalise_chat(raw: Any, where: str) -> list[Message]:
    """Messages with known roles, in which no two neighbours have the same role (theirs are joined by a line break).

    Takes `{"role", "content"}` and `{"from", "value"}` messages. Empty messages are left out.
    Raises UsageError naming `where` for anything that is not a list of such messages.
    """
    if not isinstance(raw, list) or not raw:
        raise UsageError(f"{where}: expected a list of messages, each with role and content.")
    merged: list[Message] = []
    for number, item in enumerate(raw, start=1):
        role, content = _read_message(item, f"{where}, message {number}")
        if not content:
            continue
        if merged and merged[-1]["role"] == role:
            merged[-1] = {"role": role, "content": f"{merged[-1]['content']}\n{content}"}
        else:
            merged.append({"role": role, "content": content})
    return merged


def chat_from_turns(turns: list[tuple[str, str]]) -> list[Message]:
    """A chat between people, as (speaker, text) pairs: who speaks first is the user, all others are the assistant."""
    first = turns[0][0] if turns else ""
    raw = [{"role": "user" if speaker == first else "assistant", "content": text} for speaker, text in turns]
    return normalise_chat(raw, "chat") if raw else []


def has_assistant(messages: list[Message]) -> bool:
    """Whether there is a turn to learn from."""
    return any(message["role"] == "assistant" for message in messages)


def text_of(messages: list[Message]) -> str:
    """All that is said, one message per line: what filters and content hashes look at."""
    return "\n".join(message["content"] for message in messages)


def identity_of(messages: list[Message]) -> str:
    """Who said what, as one text: equal for equal chats only."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _read_message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise UsageError(f"{where}: expected an object with role and content, found {type(item).__name__}.")
    role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if not isinstance(role, str) or not isinstance(content, str):
        raise UsageError(f"{where}: role and content must both be there, as text.")
    role = _ROLES.get(role, role)
    if role not in _KNOWN:
        raise UsageError(f"{where}: unknown role '{role}'.{nearest(role, _KNOWN)} Known: {', '.join(_KNOWN)}.")
    return role, content.strip()
