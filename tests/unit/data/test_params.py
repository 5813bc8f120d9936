"""Mistakes in the data section are refused with how to mend them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.params.data import DataParams, SftDataParams, SourceParams

COMMIT = "8049631c405ae6576f93f445c6b8166f76f5505a"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"source": "hub:HuggingFaceH4/ultrachat_200k@main", "files": ["*"]}, "never a branch"),
        ({"source": f"hub:HuggingFaceH4/ultrachat_200k@{COMMIT[:12]}", "files": ["*"]}, "40 hex digits"),
        ({"source": "hub:HuggingFaceH4/ultrachat_200k", "files": ["*"]}, "pinned to a commit"),
        ({"source": f"hub:a/b@{COMMIT}"}, "`files` names the files"),
        ({"source": "package:chitchat_dataset"}, "Did you mean 'chitchat-dataset'"),
        ({"source": "jsonl:../secret.jsonl"}, "lies below it"),
        ({"source": "jsonl:/etc/passwd"}, "lies below it"),
        ({"source": "chats.jsonl"}, "write package:NAME, jsonl:FILE or hub:NAME@COMMIT"),
        ({"source": "jsonl:a.jsonl", "weight": 0}, "greater than 0"),
    ],
)
def test_sources_are_checked(source: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        SourceParams.model_validate(source)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sources": []}, "name at least one"),
        ({"content_range": [0.5, 0.5]}, "not a range inside"),
        ({"content_range": [0.0]}, "at least 2 items"),
        ({"eval_fraction": 0.0}, "greater than 0"),
        ({"filters": {"min_chars": 9, "max_chars": 8}}, "below min_chars"),
        ({"sources": [{"source": "jsonl:a"}, {"source": "jsonl:a"}]}, "listed twice"),
        ({"max_lenght": 4}, "Extra inputs"),
    ],
)
def test_the_sft_section_is_checked(changes: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        SftDataParams.model_validate({"sources": [{"source": "jsonl:a"}], **changes})


def test_prompt_lengths_are_ordered():
    with pytest.raises(ValidationError, match="max_prompt_tokens is below"):
        DataParams.model_validate(
            {"sft": {"sources": [{"source": "jsonl:a"}]}, "prompts": {"min_prompt_tokens": 9, "max_prompt_tokens": 8}}
        )
