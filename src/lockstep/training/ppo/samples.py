"""Texts for people to look at: tables of what the policy wrote and what it got for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.experience import Experience, decode
from lockstep.training.ppo.roles import Role
from lockstep.training.ppo.sampling import Stream, uniforms

NUM_ROWS = 8


def sample_table(experience: Experience) -> list[dict[str, Any]]:
    """The first rows of a step: whole text, score, KL in nats per token, tokens."""
    kl = (experience.kl.sum(dim=1) / experience.completions.lengths).tolist()
    rows = zip(experience.texts, experience.scores.tolist(), kl, experience.completions.lengths.tolist(), strict=True)
    return [
        {"text": text, "score": round(score, 4), "kl_per_token": round(nats, 4), "num_tokens": length}
        for text, score, nats, length in list(rows)[:NUM_ROWS]
    ]


def side_by_side(engine: PpoEngine) -> list[dict[str, Any]]:
    """The first prompts completed by reference and policy with the same noise, and what the reward gave each."""
    ids = list(range(min(NUM_ROWS, len(engine.prompts))))
    prompts = [engine.prompts.at(cursor) for cursor in ids]
    noise = uniforms(engine.seed, Stream.EVALUATION, 0, ids, engine.params.max_new_tokens)
    rows: list[dict[str, Any]] = [{"prompt": engine.tokenizer.decode(tokens)} for tokens in prompts]
    for role in (Role.REFERENCE, Role.POLICY):
        texts = decode(engine.complete(role, prompts, noise), engine.tokenizer)
        for row, text, score in zip(rows, texts, engine.reward.score(texts), strict=True):
            row[role.value], row[f"score_{role.value}"] = text, round(score, 4)
    return rows


def read_sample_tables(path: Path) -> list[dict[str, Any]]:
    """The tables by step; a step that was replayed after a resume counts once, a torn last line not at all."""
    tables: dict[int, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                table = json.loads(line)
            except json.JSONDecodeError:
                continue
            tables[table["step"]] = table
    return [tables[step] for step in sorted(tables)]
