"""A sequence classifier with its own tokenizer as reward: it reads text, so it may come from another model family."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lockstep.foundation.errors import UsageError


class ClassifierReward:
    """The log-odds of one label of a local Hugging Face classifier, in fp32."""

    def __init__(self, folder: Path, label: int, *, batch_size: int, max_length: int, device: torch.device) -> None:
        """Loads model and tokenizer from `folder`. Raises UsageError when it is not there or lacks the label."""
        if not (folder / "config.json").is_file():
            raise UsageError(f"ppo.reward.path: {folder} holds no Hugging Face model (no config.json)")
        self._tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side="left", local_files_only=True)
        self._model = AutoModelForSequenceClassification.from_pretrained(
            folder, use_safetensors=True, local_files_only=True, dtype=torch.float32
        )
        self._model.eval().requires_grad_(False).to(device)
        num_labels = self._model.config.num_labels
        if num_labels > 1 and label >= num_labels:
            raise UsageError(f"ppo.reward.label: {folder} has labels 0 to {num_labels - 1}, not {label}")
        self._label, self._batch_size, self._max_length, self._device = label, batch_size, max_length, device

    @torch.no_grad()
    def score(self, texts: list[str]) -> list[float]:
        """log P(label) - log P(any other); a classifier with one output gives that output."""
        scores: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(
                texts[start : start + self._batch_size],
                padding=True,
                truncation=True,
                max_length=self._max_length,
                return_tensors="pt",
            ).to(self._device)
            scores += self._log_odds(self._model(**batch).logits.float()).tolist()
        return scores

    def _log_odds(self, logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[1] == 1:
            return logits[:, 0]
        others = torch.cat([logits[:, : self._label], logits[:, self._label + 1 :]], dim=1)
        return logits[:, self._label] - others.logsumexp(dim=1)
