"""Reference and result of a run as two voices that answer the same prompt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.evaluation.perplexity import tuned_model
from lockstep.evaluation.roles import trained_backbone
from lockstep.foundation.errors import UsageError
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.models.weights import read_manifest
from lockstep.runs.job import Job
from lockstep.training.common.ranks import Ranks
from lockstep.training.ppo.build import Folders
from lockstep.training.ppo.roles import Role


@dataclass(frozen=True)
class Voice:
    """One model, or one role on a shared backbone, that can be spoken to."""

    name: str
    model: Any
    active: Callable[[], AbstractContextManager[Any]]

    def answer(
        self,
        tokenizer: PreTrainedTokenizerBase,
        token_ids: list[int],
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> str:
        """The text generated after `token_ids`; temperature 0 takes the likeliest token each time."""
        tokens = torch.tensor([token_ids], device=self.model.device)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        torch.manual_seed(seed)
        with self.active(), torch.no_grad():
            generated = self.model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                use_cache=True,
                **sampling,
            )
        return str(tokenizer.decode(generated[0, len(token_ids) :], skip_special_tokens=True))


def voices_of(job: Job, ranks: Ranks) -> tuple[PreTrainedTokenizerBase, list[Voice]]:
    """The tokenizer, and reference and result of a complete `sft` or `ppo` run.

    Raises UsageError for a run of another stage, or one without a result.
    """
    weights = job.directory.outputs / "weights"
    if job.stage not in ("sft", "ppo") or not weights.exists():
        raise UsageError(f"{job.stage} {job.run_id} has no text to give; name a complete run of sft or ppo.")
    tokenizer = load_tokenizer(job.inputs["model"])
    if job.stage == "ppo":
        return tokenizer, _roles(job, ranks)
    base = load_model(job.inputs["model"], job.params.model, device=ranks.device)
    folder = job.directory.model if read_manifest(weights)["kind"] == "model" else weights
    tuned = tuned_model(job.inputs["model"], folder, job.params.model, ranks)
    return tokenizer, [Voice("base", base, nullcontext), Voice("fine-tuned", tuned, nullcontext)]


def _roles(job: Job, ranks: Ranks) -> list[Voice]:
    folders = Folders.of(job.inputs, job.project)
    backbone = trained_backbone(folders, job.directory.outputs / "weights", job.params, ranks.device)
    return [Voice(role.value, backbone.model, partial(backbone.role, role)) for role in (Role.REFERENCE, Role.POLICY)]
