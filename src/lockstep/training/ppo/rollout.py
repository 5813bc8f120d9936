"""Rollouts: batched completions of left-padded prompts with a KV cache, and what is known about each one.

Where a completion ends is known by its length, never by a pad id: pad and end-of-text are often one id, and a mask made
from ids would hide the end-of-text token from the objective, so that no policy could learn to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerBase

from lockstep.training.ppo.roles import Backbone, Role
from lockstep.training.ppo.sampling import draw

POLL_EVERY = 16
"""Positions between two polls of the stop flag. Ranks poll equally often, wherever their completions end."""


@dataclass(frozen=True)
class Completions:
    """Prompts and what was generated after them. P is the padded prompt length, T the completion budget."""

    tokens: Tensor
    """(batch, P + T) token ids: prompts left-padded, completions right-padded."""
    prompt_lengths: Tensor
    """(batch,) tokens of each prompt."""
    lengths: Tensor
    """(batch,) tokens of each completion, the end-of-text token included."""
    finished: Tensor
    """(batch,) whether the completion ended with an end-of-text token."""
    num_new_tokens: int
    """T."""

    @cached_property
    def mask(self) -> Tensor:
        """(batch, T) true on tokens that were generated, the end-of-text token included."""
        positions = torch.arange(self.num_new_tokens, device=self.tokens.device)
        return positions < self.lengths.unsqueeze(1)

    @property
    def targets(self) -> Tensor:
        """(batch, T) the generated tokens."""
        return self.tokens[:, -self.num_new_tokens :]

    @cached_property
    def attention_mask(self) -> Tensor:
        """(batch, P + T) 1 on real tokens."""
        return torch.cat([_prompt_mask(self.prompt_lengths, self._padded), self.mask], dim=1).long()

    @property
    def position_ids(self) -> Tensor:
        """(batch, P + T) counted from each prompt's first token."""
        return positions_of(self.attention_mask)

    @property
    def _padded(self) -> int:
        return self.tokens.shape[1] - self.num_new_tokens

    def rows(self, index: Tensor | slice) -> Self:
        """The chosen rows."""
        chosen = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "num_new_tokens"}
        return type(self)(**chosen, num_new_tokens=self.num_new_tokens)

    def token_lists(self) -> list[tuple[list[int], list[int]]]:
        """(prompt, completion) token ids of each row, without padding."""
        pairs = []
        for row, prompt, new in zip(
            self.tokens.tolist(), self.prompt_lengths.tolist(), self.lengths.tolist(), strict=True
        ):
            pairs.append((row[self._padded - prompt : self._padded], row[self._padded : self._padded + new]))
        return pairs


def _prompt_mask(prompt_lengths: Tensor, padded: int) -> Tensor:
    return torch.arange(padded, device=prompt_lengths.device) >= (padded - prompt_lengths).unsqueeze(1)


def positions_of(attention_mask: Tensor) -> Tensor:
    """Position ids of left- and right-padded rows: zero on padding before the first real token."""
    return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)


@torch.no_grad()
def generate(
    backbone: Backbone,
    role: Role,
    prompts: list[list[int]],
    noise: Tensor,
    *,
    eos_token_ids: list[int],
    pad_token_id: int,
    temperature: float,
    batch_size: int,
    poll: Callable[[], None] = lambda: None,
) -> Completions:
    """Completes each prompt under `role`, `batch_size` prompts at a time.

    prompts: token ids; noise: (len(prompts), T) uniform numbers, one per prompt and position (`sampling.uniforms`).
    All prompts are padded to the longest of them, so that a row does not depend on its neighbours in the micro-batch.
    poll: called at regular positions; may raise to abandon the rollout.
    """
    padded = max(len(prompt) for prompt in prompts)
    parts = []
    with backbone.role(role), backbone.generating():
        for start in range(0, len(prompts), batch_size):
            rows = slice(start, start + batch_size)
            parts.append(
                _generate_batch(
                    backbone,
                    _left_pad(prompts[rows], padded, pad_token_id).to(backbone.device),
                    torch.tensor([len(prompt) for prompt in prompts[rows]], device=backbone.device),
                    noise[rows].to(backbone.device),
                    torch.tensor(eos_token_ids, device=backbone.device),
                    pad_token_id,
                    temperature,
                    poll,
                )
            )
    return _concatenate(parts)


def _generate_batch(
    backbone: Backbone,
    prompt_tokens: Tensor,
    prompt_lengths: Tensor,
    noise: Tensor,
    eos: Tensor,
    pad_token_id: int,
    temperature: float,
    poll: Callable[[], None],
) -> Completions:
    batch, num_new_tokens = noise.shape
    new_tokens = prompt_tokens.new_full((batch, num_new_tokens), pad_token_id)
    lengths = prompt_lengths.new_zeros(batch)
    finished = torch.zeros(batch, dtype=torch.bool, device=prompt_tokens.device)
    attention_mask = _prompt_mask(prompt_lengths, prompt_tokens.shape[1]).long()
    positions = positions_of(attention_mask)
    cache, tokens = DynamicCache(config=backbone.model.config), prompt_tokens
    for t in range(num_new_tokens):
        if t % POLL_EVERY == 0:
            poll()
        if finished.all():
            continue
        hidden = backbone.hidden_states(tokens, attention_mask, positions, cache)
        sampled = draw(backbone.logits(hidden[:, -1]), noise[:, t], temperature)
        new_tokens[:, t] = torch.where(finished, new_tokens[:, t], sampled)
        lengths += ~finished
        # A finished row goes on behind the mask; its later tokens are padding and are never scored.
        attention_mask = torch.cat([attention_mask, (~finished).long().unsqueeze(1)], dim=1)
        positions = positions[:, -1:] + 1
        tokens = new_tokens[:, t : t + 1]
        finished |= torch.isin(sampled, eos) & ~finished
    return Completions(torch.cat([prompt_tokens, new_tokens], dim=1), prompt_lengths, lengths, finished, num_new_tokens)


def eos_token_ids(backbone: Backbone, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end a text: those of the generation config (it may name several), else the tokenizer's."""
    ids = backbone.model.generation_config.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    return list(ids) if isinstance(ids, list) else [int(ids)]


def _left_pad(prompts: list[list[int]], length: int, pad_token_id: int) -> Tensor:
    return torch.tensor([[pad_token_id] * (length - len(prompt)) + prompt for prompt in prompts])


def _concatenate(parts: list[Completions]) -> Completions:
    names = [f.name for f in fields(Completions) if f.name != "num_new_tokens"]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Completions(**joined, num_new_tokens=parts[0].num_new_tokens)
