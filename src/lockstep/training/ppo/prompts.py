"""The prompts of a step: an endless shuffled pass over the locked prompts, addressed by a cursor."""

from __future__ import annotations

from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from lockstep.foundation.errors import UsageError
from lockstep.training.ppo.sampling import Stream, permutation


class Prompts:
    """Tokenised prompts in an order that is a pure function of (seed, cursor), so that a resume needs no replay."""

    def __init__(self, token_ids: list[list[int]], seed: int) -> None:
        """Raises UsageError when there is none, or one is empty."""
        if not token_ids or not all(token_ids):
            raise UsageError("There are no prompts, or one of them has no token; look at results/prepare/metrics.json.")
        self._token_ids = token_ids
        self._order = lru_cache(maxsize=2)(
            lambda epoch: permutation(seed, Stream.PROMPTS, epoch, 0, len(self._token_ids))
        )

    def __len__(self) -> int:
        return len(self._token_ids)

    def at(self, cursor: int) -> list[int]:
        """The token ids of the prompt at a cursor, which counts prompts from the first step on, across epochs."""
        epoch, offset = divmod(cursor, len(self))
        return self._token_ids[self._order(epoch)[offset]]


def tokenize_prompts(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[list[int]]:
    """Token ids of each prompt; of a longer one the last `max_length` tokens."""
    return [ids[-max_length:] for ids in tokenizer(texts)["input_ids"]] if texts else []
