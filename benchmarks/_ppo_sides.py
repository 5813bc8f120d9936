"""One side of benchmarks/ppo_vs_trl.py in a process of its own: `_ppo_sides.py lockstep|trl speed|memory JOB.json`.

Both sides see the same model folder, prompts, batch shapes, LoRA shape, learning rate and reward (a Python function of
the text), on the same number of threads. Prints one JSON line.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from lockstep.models.loading import load_tokenizer
from lockstep.planning.live import LiveMemory
from lockstep.planning.results import Kind

LORA = {"r": 16, "lora_alpha": 32}
KL_COEF = 0.05


class SharedReward:
    """What both sides are paid for: praise by VADER for real text, the share of even words for the tiny model's."""

    def __init__(self, kind: str) -> None:
        from lockstep.training.ppo.rewards.lexicon import LexiconReward

        self._lexicon = LexiconReward() if kind == "lexicon" else None

    def score(self, texts: list[str]) -> list[float]:
        if self._lexicon is not None:
            return self._lexicon.score(texts)
        return [sum(word[1:].isdigit() and int(word[1:]) % 2 == 0 for word in t.split()) / 48 for t in texts]


@contextmanager
def measured(mode: str, models: Callable[[], list[nn.Module]]) -> Iterator[dict[str, float]]:
    """Fills in peak live tensor bytes (mode memory, which is slow) and peak resident bytes."""
    memory = LiveMemory() if mode == "memory" else None
    if memory is not None:
        memory.mark(Kind.PARAMETERS, [list(model.parameters()) for model in models()])
    found: dict[str, float] = {}
    with memory if memory is not None else nullcontext():
        yield found
    if memory is not None:
        found["peak live tensor bytes"] = float(memory.peak_bytes)
    found["peak resident bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def run_lockstep(job: dict[str, Any], mode: str) -> dict[str, float]:
    """Our engine: one backbone, the critic a head on it."""
    from lockstep.params.ppo import PpoParams
    from lockstep.training.ppo.engine import PpoEngine
    from lockstep.training.ppo.parallel import Replicas
    from lockstep.training.ppo.prompts import Prompts
    from lockstep.training.ppo.roles import Adapters, build_backbone

    batch = job["batch_size"]
    params = PpoParams.model_validate(
        {
            "max_steps": job["num_steps"], "rollout_batch_size": batch, "per_device_rollout_batch_size": batch,
            "per_device_train_batch_size": batch, "num_mini_batches": 1, "num_ppo_epochs": 2,
            "max_prompt_length": job["prompt_length"], "max_new_tokens": job["response_length"],
            "learning_rate": job["learning_rate"], "lora": LORA, "kl_coef": KL_COEF,
            "guards": {"on_violation": "warn"},
        }
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, local_files_only=True)
    backbone = build_backbone(model, Adapters(), params.lora, seed=job["seed"])
    engine = PpoEngine(
        backbone, SharedReward(job["reward"]), load_tokenizer(Path(job["model"])), Prompts(job["prompts"], job["seed"]),
        params, job["seed"], Replicas(),
    )  # fmt: skip
    ends, scores = [], []
    with measured(mode, lambda: [backbone.peft_model, engine.value_head]) as found:
        for _ in range(job["num_steps"]):
            scores.append(engine.step().metrics["objective/score"])
            ends.append(time.perf_counter())
    return found | _summary(ends, scores, batch)


def run_trl(job: dict[str, Any], mode: str) -> dict[str, float]:
    """TRL 1.12.0's experimental PPO: a policy with LoRA (adapter off: the reference) and a value model of full size."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = load_tokenizer(Path(job["model"]))
    tokenizer.padding_side = "left"
    reward = _RewardModule(SharedReward(job["reward"]), tokenizer)
    policy = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, local_files_only=True)
    value = AutoModelForSequenceClassification.from_pretrained(
        job["model"], num_labels=1, dtype=torch.float32, local_files_only=True
    )
    ends: list[float] = []
    scores: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **__: Any) -> None:
            if "objective/scores" in logs:
                scores.append(logs["objective/scores"])

    batch = job["batch_size"]
    dataset = Dataset.from_dict({"input_ids": job["prompts"]})
    trainer = PPOTrainer(
        args=PPOConfig(
            output_dir=job["folder"], use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            per_device_train_batch_size=batch, gradient_accumulation_steps=1, num_mini_batches=1, num_ppo_epochs=2,
            total_episodes=batch * job["num_steps"], response_length=job["response_length"], temperature=1.0,
            local_rollout_forward_batch_size=batch, num_sample_generations=0, stop_token="eos", save_strategy="no",
            learning_rate=job["learning_rate"], lr_scheduler_type="constant", kl_coef=KL_COEF, seed=job["seed"],
            logging_steps=1, disable_tqdm=True,
        ),
        processing_class=tokenizer, model=policy, ref_model=None, reward_model=reward, value_model=value,
        train_dataset=dataset, eval_dataset=dataset, peft_config=LoraConfig(**LORA, target_modules="all-linear"),
        callbacks=[Clock()],
    )  # fmt: skip
    with measured(mode, lambda: [trainer.model]) as found:
        trainer.train()
    return found | _summary(ends, scores, batch)


class _RewardModule(nn.Module):
    """A Python reward in the shape that TRL wants: a backbone that hands on token ids, and a score of them."""

    base_model_prefix = "backbone"

    def __init__(self, reward: SharedReward, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self._reward, self._tokenizer = reward, tokenizer
        self.backbone = _Echo()

    def score(self, tokens: Tensor) -> Tensor:
        scores = self._reward.score(self._tokenizer.batch_decode(tokens, skip_special_tokens=True))
        return torch.tensor(scores)[:, None, None].expand(-1, tokens.shape[1], 1)


class _Echo(nn.Module):
    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=[input_ids])


def _summary(ends: list[float], scores: list[float], batch: int) -> dict[str, float]:
    """The first step warms up; the reward is the mean of the last quarter of the steps."""
    last = scores[-max(1, len(scores) // 4) :]
    return {
        "samples per second": batch * (len(ends) - 1) / (ends[-1] - ends[0]),
        "mean score of the last quarter": sum(last) / len(last),
    }


if __name__ == "__main__":
    side, measuring, job_file = sys.argv[1:]
    description = json.loads(Path(job_file).read_text())
    torch.set_num_threads(description["num_threads"])
    result = {"lockstep": run_lockstep, "trl": run_trl}[side](description, measuring)
    print("RESULT " + json.dumps(result), flush=True)
