"""A PPO job of seconds: a random Llama over words, prompts, a reward that counts words, and the stage itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lockstep.foundation.files import write_json
from lockstep.models.weights import write_manifest
from lockstep.params.experiment import Experiment
from lockstep.params.model import LoraParams
from lockstep.params.ppo import PpoParams
from lockstep.runs.directory import RunDirectory
from lockstep.runs.job import Job
from lockstep.training.ppo.engine import PpoEngine
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.prompts import Prompts
from lockstep.training.ppo.rewards import Reward
from lockstep.training.ppo.roles import Adapters, Backbone, build_backbone
from tiny_llama import experiment

VOCABULARY = 256
EOS = 2
GOOD = frozenset(f"w{index}" for index in range(3, 64))
"""A quarter of the words; the reward is their share."""
REWARD_FILE = """
def score(texts):
    return [sum(word in GOOD for word in text.split()) / max(1, len(text.split())) for text in texts]

GOOD = {f"w{index}" for index in range(3, 64)}
"""


def tiny_model(*, dropout: float = 0.0, vocabulary: int = VOCABULARY, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama whose logits are spread enough to learn from in a few steps."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            vocab_size=vocabulary,
            max_position_embeddings=256,
            initializer_range=0.1,
            attention_dropout=dropout,
            tie_word_embeddings=True,
            pad_token_id=EOS,
            bos_token_id=1,
            eos_token_id=EOS,
        )
    ).eval()


def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """Words w3, w4, …; pad and end-of-text are one token, as in many real models."""
    words = {name: index for index, name in enumerate(["<unk>", "<s>", "</s>"])}
    words |= {f"w{index}": index for index in range(3, VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


class ShareOfGoodWords:
    """The reward of REWARD_FILE as an object."""

    def score(self, texts: list[str]) -> list[float]:
        return [sum(word in GOOD for word in text.split()) / max(1, len(text.split())) for text in texts]


def tiny_params(**changes: Any) -> PpoParams:
    """Two steps of eight prompts; `changes` as in params.yaml."""
    values: dict[str, Any] = {
        "max_steps": 2,
        "rollout_batch_size": 8,
        "per_device_rollout_batch_size": 8,
        "per_device_train_batch_size": 4,
        "num_mini_batches": 2,
        "max_prompt_length": 8,
        "max_new_tokens": 8,
        "learning_rate": 1e-2,
        "logprob_chunk_size": 16,
        "lora": {"r": 4, "lora_alpha": 8},
        "guards": {"min_distinct": None, "min_length": None},
    }
    return PpoParams.model_validate({**values, **changes})


def tiny_backbone(params: PpoParams | None = None, **model: Any) -> Backbone:
    """The tiny model with fresh adapters."""
    params = params or tiny_params()
    lora: LoraParams = params.lora
    return build_backbone(tiny_model(**model), Adapters(), lora, seed=0, value_adapter=params.value.adapter)


def tiny_prompts(count: int = 40) -> list[list[int]]:
    """Prompts of one to five tokens, never end-of-text."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 6, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def tiny_engine(
    params: PpoParams | None = None,
    *,
    seed: int = 0,
    reward: Reward | None = None,
    backbone: Backbone | None = None,
    prompts: list[list[int]] | None = None,
    replicas: Replicas | None = None,
) -> PpoEngine:
    """An engine on the tiny backbone."""
    params = params or tiny_params()
    return PpoEngine(
        backbone or tiny_backbone(params),
        reward or ShareOfGoodWords(),
        tiny_tokenizer(),
        Prompts(prompts or tiny_prompts(), seed),
        params,
        seed,
        replicas or Replicas(),
    )


def write_inputs(project: Path) -> dict[str, Path]:
    """The folders that a PPO job reads, with SFT and reward stages switched off."""
    model = project / "model"
    tiny_model().save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    write_manifest(model, model, "model", "0" * 64)
    tokenizer = tiny_tokenizer()
    for split in ("train", "eval"):
        rows = [
            {"id": str(number), "text": tokenizer.decode(ids), "source": "tiny", "label": None}
            for number, ids in enumerate(tiny_prompts())
        ]
        write_lines(project / "prompts" / f"{split}.jsonl", rows)
        write_lines(project / "reviews" / f"{split}.jsonl", [])
    for stage in ("sft", "reward"):
        write_json(project / stage / "manifest.json", {"kind": "none", "files": {}, "weights_sha256": None})
    (project / "rewards").mkdir()
    (project / "rewards" / "words.py").write_text(REWARD_FILE)
    return {name: project / name for name in ("model", "sft", "reward", "prompts", "reviews")}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ppo_job(project: Path, name: str, *, attempt: int = 1, **sections: Any) -> Job:
    """An attempt of the `ppo` stage in `project`/runs/ppo/`name`; `sections` change the experiment."""
    ppo = tiny_params(reward={"kind": "function", "file": "rewards/words.py:score"}, **sections.pop("ppo", {}))
    sources = {part: {"sources": [{"source": "jsonl:lines.jsonl"}]} for part in ("sft", "prompts", "preferences")}
    params: Experiment = experiment(data=sources, ppo=ppo.model_dump(), **sections)
    directory = RunDirectory(project / "runs" / "ppo" / name)
    for folder in (directory.control, directory.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    inputs = {name: project / name for name in ("model", "sft", "reward", "prompts", "reviews")}
    return Job(
        stage="ppo",
        run_id=name,
        attempt=attempt,
        params=params,
        project=project,
        inputs=inputs,
        input_hashes=dict.fromkeys(inputs, "0" * 64),
        directory=directory,
    )
