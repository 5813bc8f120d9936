"""Chats of several dialects become one form; what is no chat is named with its place."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.data.chat import chat_from_turns, normalise_chat
from lockstep.foundation.errors import UsageError


def test_both_dialects_give_the_same_chat():
    openai = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello"}]
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    wanted = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert normalise_chat(openai, "x") == normalise_chat(sharegpt, "x") == wanted


def test_neighbours_of_one_role_are_joined_and_empty_messages_left_out():
    raw = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "  "},
        {"role": "user", "content": "Anyone?"},
        {"role": "assistant", "content": "Yes"},
    ]
    assert normalise_chat(raw, "x")[0] == {"role": "user", "content": "Hi\nAnyone?"}


def test_whoever_speaks_first_is_the_user():
    turns = [("b", "Hello"), ("b", "there"), ("a", "Hi"), ("b", "Bye")]
    assert [message["role"] for message in chat_from_turns(turns)] == ["user", "assistant", "user"]
    assert chat_from_turns([]) == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("Hi", "expected a list of messages"),
        ([], "expected a list of messages"),
        (["Hi"], "message 1: expected an object"),
        ([{"role": "user"}], "role and content must both be there"),
        ([{"role": "asistant", "content": "x"}], "Did you mean 'assistant'"),
    ],
)
def test_what_is_no_chat_is_named_with_its_place(raw: Any, said: str):
    with pytest.raises(UsageError, match=said) as caught:
        normalise_chat(raw, "chats.jsonl:7")
    assert "chats.jsonl:7" in str(caught.value)
