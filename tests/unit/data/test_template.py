"""The loss mask covers what the assistant says and the mark that ends its turn, whatever the template looks like."""

from __future__ import annotations

from typing import Any

import pytest

from data_worlds import tiny_tokenizer
from lockstep.data.template import CHATML, choose_template, render
from lockstep.foundation.errors import UsageError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "See you"},
    {"role": "user", "content": "never answered"},
]
WITHOUT_SYSTEM = MESSAGES[1:]
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BRACKETS = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<s>[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + ' </s>' }}{% endif %}{% endfor %}"
)
WITH_MARKS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def said(template: str, messages: list[dict[str, str]]) -> list[str]:
    rendered = render(tiny_tokenizer(), template, messages, "chats.jsonl:1")
    return [rendered.text[start:end] for start, end in rendered.spans]


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM, WITH_MARKS])
@pytest.mark.parametrize("messages", [MESSAGES, WITHOUT_SYSTEM])
def test_spans_are_the_assistants_turns_with_their_end_marks(template: str, messages: list[dict[str, str]]):
    assert said(template, messages) == ["Hello<|im_end|>", "See you<|im_end|>"]


def test_a_template_without_an_assistant_header_works_too():
    assert said(BRACKETS, WITHOUT_SYSTEM) == [" Hello </s>", " See you </s>"]


def test_the_text_ends_with_the_last_assistant_turn():
    assert render(tiny_tokenizer(), CHATML, MESSAGES, "x").text.endswith("See you<|im_end|>")


def test_rendering_can_stop_early():
    rendered = render(tiny_tokenizer(), CHATML, MESSAGES, "x", enough=lambda text: "Hello" in text)
    assert len(rendered.spans) == 1


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}", "could not learn to stop"),
        ("{% for m in messages[-2:] %}{{ m['content'] + '</s>' }}{% endfor %}", "changes earlier turns"),
        ("{{ raise_exception('only cats may speak') }}", "refuses this chat.*only cats"),
    ],
)
def test_unusable_templates_are_refused_with_the_line(template: str, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        said(template, WITHOUT_SYSTEM)
    assert "chats.jsonl:1" in str(caught.value)


def test_todays_date_does_not_enter_locked_data():
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}" + CHATML
    assert render(tiny_tokenizer(), dated, WITHOUT_SYSTEM, "x").text.startswith("01 Jan 2025")


class Bare:
    """A tokenizer that brings no template; its vocabulary may know ChatML's marks."""

    chat_template = None
    unk_token_id = 0

    def __init__(self, known: bool) -> None:
        self.known = known

    def convert_tokens_to_ids(self, token: str) -> int:
        return 5 if self.known and token.startswith("<|im_") else self.unk_token_id


def test_the_chosen_file_comes_first_then_the_tokenizers_own_then_chatml(tmp_path: Any):
    file = tmp_path / "own.jinja"
    file.write_text("mine")
    assert choose_template(tiny_tokenizer(), file) == "mine"
    assert choose_template(tiny_tokenizer(), None) == tiny_tokenizer().chat_template
    assert choose_template(Bare(known=True), None) == CHATML
    with pytest.raises(UsageError, match="chat_template_path"):
        choose_template(Bare(known=False), None)
    with pytest.raises(UsageError, match="not here"):
        choose_template(tiny_tokenizer(), tmp_path / "absent.jinja")
