"""`python -m lockstep.evaluation.try_out`: the worker behind `lockstep generate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from transformers import PreTrainedTokenizerBase

from lockstep.evaluation.voices import Voice, voices_of
from lockstep.foundation.errors import LockstepError
from lockstep.runs.job import Job
from lockstep.training.common.ranks import joined_ranks


def main() -> None:
    """Answers one prompt, or chats until an empty line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--prompt")
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    try:
        _talk(arguments)
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _talk(arguments: argparse.Namespace) -> None:
    console = Console()
    job = Job.load(arguments.run_dir, arguments.attempt)
    with joined_ranks(job.params.run.collective_timeout_s) as ranks:
        tokenizer, voices = voices_of(job, ranks)
        if arguments.prompt is not None:
            _show(console, tokenizer, voices, list(tokenizer(arguments.prompt)["input_ids"]), arguments)
            return
        console.print("A chat with both; an empty line ends it.")
        while line := console.input("[bold]you: [/bold]").strip():
            token_ids = _chat_tokens(tokenizer, line)
            _show(console, tokenizer, voices, token_ids, arguments)


def _chat_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """One user turn in the model's own chat format. Raises LockstepError for a model without one."""
    if tokenizer.chat_template is None:
        raise LockstepError("This model has no chat format; give it a text to go on from with --prompt.")
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def _show(
    console: Console,
    tokenizer: PreTrainedTokenizerBase,
    voices: list[Voice],
    token_ids: list[int],
    arguments: argparse.Namespace,
) -> None:
    width = max(30, (console.width - 2) // len(voices))
    answers = [
        voice.answer(tokenizer, token_ids, arguments.max_new_tokens, arguments.temperature, arguments.seed)
        for voice in voices
    ]
    panels = [
        Panel(text.strip() or "…", title=voice.name, width=width) for voice, text in zip(voices, answers, strict=True)
    ]
    console.print(Columns(panels))


if __name__ == "__main__":
    main()
