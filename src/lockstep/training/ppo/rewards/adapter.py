"""The reward stage's adapter and head on the policy's own backbone: no second model in memory."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.training.ppo.heads import ScalarHead
from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.rollout import positions_of


class AdapterReward:
    """The head's number at the end-of-text token of a text, under the reward role."""

    def __init__(
        self,
        backbone: Backbone,
        head: ScalarHead,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int,
        max_length: int,
    ) -> None:
        """`max_length`: the last this many tokens of a text are read, the end-of-text token included."""
        self._backbone, self._head, self._tokenizer = backbone, head, tokenizer
        self._batch_size, self._max_length = batch_size, max_length

    @torch.no_grad()
    def score(self, texts: list[str]) -> list[float]:
        """The reward of each text, ended as the pairs were that the head was trained on."""
        scores: list[float] = []
        with self._backbone.role(Role.REWARD), self._backbone.generating():
            for start in range(0, len(texts), self._batch_size):
                scores += self._score_batch(texts[start : start + self._batch_size])
        return scores

    def _score_batch(self, texts: list[str]) -> list[float]:
        rows = [self._tokens(text) for text in texts]
        longest = max(len(row) for row in rows)
        device = self._backbone.device
        # Left padding puts every text's last token at the end, whatever the pad id is.
        tokens = torch.tensor([[row[-1]] * (longest - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
        hidden = self._backbone.hidden_states(tokens, mask, positions_of(mask))
        return [float(score) for score in self._head(hidden[:, -1])]

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        return [*tokens, self._tokenizer.eos_token_id][-self._max_length :]
