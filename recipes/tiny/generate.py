"""Writes the texts of the tiny recipe: a small world of outings, meals and films, all of it made up here.

Run it as `python recipes/tiny/generate.py`; its output is committed, so nobody needs to. Everything follows from the
lists below and one seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
TIMES = [
    "Last night",
    "On Monday",
    "This morning",
    "After lunch",
    "One rainy day",
    "Before dinner",
    "In spring",
    "Today",
]
SIZES = ["little", "old", "new", "long", "quiet", "second", "green"]
THINGS = [
    "film",
    "soup",
    "garden",
    "story",
    "train ride",
    "museum",
    "song",
    "picnic",
    "teacher",
    "dinner",
    "walk",
    "play",
]
PLACES = ["by the river", "near my house", "in the village", "at the harbour", "behind the school", "on the hill"]
GOOD = ["wonderful", "lovely", "great", "happy", "charming", "brilliant", "delightful", "funny", "perfect", "beautiful"]
BAD = ["terrible", "boring", "awful", "sad", "horrible", "ugly", "dreadful", "disappointing", "stupid", "bad"]
GLAD = ["I loved it.", "I smiled all the way home.", "I would gladly go again.", "It was the best hour of my week."]
SORRY = ["I hated it.", "I left early and angry.", "I would never go again.", "It was the worst hour of my week."]
QUESTIONS = [
    "How was the {thing}?",
    "Did you like the {thing}?",
    "What about the {thing}?",
    "Tell me about the {thing}.",
]
THANKS = ["Thank you!", "Good to know.", "And then?", "Really?"]
REPLIES = ["You are welcome.", "Any time.", "Then I went home.", "Yes, really."]


def opening(random: Random, thing: str | None = None) -> str:
    """A start of a sentence that does not tell how it ends."""
    time, size, any_thing, place = (random.choice(words) for words in (TIMES, SIZES, THINGS, PLACES))
    return f"{time} the {size} {thing or any_thing} {place} was"


def ending(random: Random, label: int) -> str:
    """The rest of it: two words of one mood and a sentence that agrees with them."""
    first, second = random.sample(GOOD if label else BAD, 2)
    return f" {first} and {second}. {random.choice(GLAD if label else SORRY)}"


def review(random: Random, label: int) -> dict[str, Any]:
    """A labelled text."""
    return {"text": opening(random) + ending(random, label), "label": label}


def pair(random: Random) -> dict[str, Any]:
    """One opening with a good and a bad end."""
    return {"prompt": opening(random), "chosen": ending(random, 1), "rejected": ending(random, 0)}


def chat(random: Random) -> dict[str, Any]:
    """One or two exchanges."""
    thing = random.choice(THINGS)
    words = random.sample(random.choice([GOOD, BAD]), 2)
    answer = f"{opening(random, thing)} {words[0]} and {words[1]}."
    turns = [("user", random.choice(QUESTIONS).format(thing=thing)), ("assistant", answer)]
    if random.random() < 0.5:
        turns += [("user", random.choice(THANKS)), ("assistant", random.choice(REPLIES))]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write(name: str, records: list[dict[str, Any]]) -> None:
    """One JSON object per line."""
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def main() -> None:
    """Writes all four files."""
    random = Random(2026)
    write("sft/chats.jsonl", [chat(random) for _ in range(400)])
    write("prompts/prompts.jsonl", [review(random, number % 2) for number in range(400)])
    write("preferences/pairs.jsonl", [pair(random) for _ in range(240)])
    write("reviews/reviews.jsonl", [review(random, number % 2) for number in range(400)])


if __name__ == "__main__":
    main()
