"""An example of a reward of one's own: short sentences score higher.

Use it with, in params.yaml:

    ppo:
      reward: {kind: function, file: "rewards/brevity.py:score"}

A reward gets the whole texts (prompt and completion) and returns one number for each. Its source is part of the run id.
"""

from __future__ import annotations


def score(texts: list[str]) -> list[float]:
    """Minus the mean number of words per sentence, in tens."""
    return [-_words_per_sentence(text) / 10 for text in texts]


def _words_per_sentence(text: str) -> float:
    sentences = [part for part in text.replace("!", ".").replace("?", ".").split(".") if part.strip()]
    return sum(len(part.split()) for part in sentences) / max(1, len(sentences))
