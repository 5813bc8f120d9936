"""Rules that tell a usable text from a poor one. Each is a few lines, so that what it drops can be explained."""

from __future__ import annotations

from lockstep.params.data import FilterParams

_MIN_ASCII_SHARE = 0.9
_MIN_COMMON_SHARE = 0.1
_NUM_WORDS_TO_JUDGE = 20
# fmt: off
_COMMON_ENGLISH = frozenset((
    "a", "about", "all", "an", "and", "are", "as", "at", "be", "but", "by", "can", "do", "for", "from", "get", "had",
    "has", "have", "he", "her", "his", "how", "i", "if", "in", "is", "it", "its", "just", "like", "me", "my", "no",
    "not", "of", "on", "one", "or", "out", "she", "so", "that", "the", "them", "there", "they", "this", "to", "up",
    "was", "we", "were", "what", "when", "which", "who", "will", "with", "would", "you", "your",
))
# fmt: on


def reason_to_drop(text: str, filters: FilterParams) -> str | None:
    """The first rule that a text fails (`too_short`, `too_many_chars`, `repetitive`, `not_english`), or None."""
    if len(text.strip()) < filters.min_chars:
        return "too_short"
    if filters.max_chars is not None and len(text) > filters.max_chars:
        return "too_many_chars"
    if filters.max_repetition < 1 and repetition(text) > filters.max_repetition:
        return "repetitive"
    if filters.language == "en" and not looks_english(text):
        return "not_english"
    return None


def repetition(text: str) -> float:
    """The share of word trigrams that repeat an earlier one: 0 where all differ, near 1 for a loop."""
    words = text.casefold().split()
    num_trigrams = len(words) - 2
    if num_trigrams < 1:
        return 0.0
    distinct = set(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(distinct) / num_trigrams


def looks_english(text: str) -> bool:
    """At least nine letters in ten are ASCII and, from 20 words on, one word in ten is a common English one.

    A short text is judged by its letters alone; other languages in plain Latin letters pass while they are short.
    """
    letters = [char for char in text if char.isalpha()]
    if letters and sum(char.isascii() for char in letters) / len(letters) < _MIN_ASCII_SHARE:
        return False
    words = [word.strip(".,;:!?\"'()").casefold() for word in text.split()]
    if len(words) < _NUM_WORDS_TO_JUDGE:
        return True
    return sum(word in _COMMON_ENGLISH for word in words) / len(words) >= _MIN_COMMON_SHARE
