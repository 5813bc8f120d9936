"""The model card of an export: a Hugging Face README.md that says what the weights are, from what, and how good."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ruamel.yaml import YAML

from lockstep.reporting.card_sections import SECTIONS, again
from lockstep.reporting.family import Family, family
from lockstep.reporting.material import Material, StageFacts, commit_name
from lockstep.reporting.record import public_remote
from lockstep.reporting.words import number, percent
from lockstep.runs.directory import RunDirectory
from lockstep.tracking.described import model_name

_LICENCES = {"Apache-2.0": "apache-2.0", "MIT": "mit"}
"""What a fetched model's manifest says → what a model card calls it. Others are described in words."""
_DONE = {"sft": "fine-tuned", "reward": "reward model", "ppo": "aligned with PPO"}


@dataclass(frozen=True)
class Exported:
    """What was exported."""

    kind: Literal["model", "adapter", "merged"]
    weights_sha256: str
    step: int | None = None
    """The checkpoint's; None for the result of a complete run."""
    merge_error: float | None = None
    """Distance of merged logits from the adapter's, as a part of what the adapter changes."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """`source` and `licence` of the base model, as noted when it was fetched."""

    @property
    def what(self) -> str:
        """In words."""
        return {"model": "a full model", "adapter": "a PEFT adapter", "merged": "a model with its adapter merged in"}[
            self.kind
        ]

    @property
    def flags(self) -> str:
        """What the command line was given beyond run and folder."""
        step = f" --step {self.step}" if self.step is not None else ""
        return f"{step}{' --merge' if self.kind == 'merged' else ''}"


def model_card(directory: RunDirectory, exported: Exported) -> str:
    """The whole README.md for the weights of the run in `directory`.

    Evaluations measured the result of the complete run; a card for an earlier checkpoint leaves them out.
    """
    recorded = (directory.read() or {}).get("result", {}).get("weights_sha256")
    is_result = exported.step is None or exported.weights_sha256 == recorded
    of = family(directory, measured=is_result)
    run, material = of.run, of.material
    title = f"{model_name(material.params)}, {_DONE[run.name]}"
    parts = [_introduction(run, material, exported, is_result), _use(run, material, exported)]
    parts += [made for section in SECTIONS if (made := section(of))]
    parts.append(again(of, f"./lockstep export {run.name} FOLDER{exported.flags}", exported.step))
    return f"{_front_matter(of, exported)}\n# {title}\n\n" + "\n\n".join(parts) + "\n"


def _front_matter(of: Family, exported: Exported) -> str:
    run, material = of.run, of.material
    repository = _hub_name(material.params["model"]["source"])
    datasets = _hub_datasets(material)
    facts: dict[str, Any] = {
        "license": _LICENCES.get(str(exported.base.get("licence"))),
        "base_model": repository,
        "base_model_relation": ("adapter" if exported.kind == "adapter" else "finetune") if repository else None,
        "library_name": "peft" if exported.kind == "adapter" else "transformers",
        "pipeline_tag": "text-generation" if run.name != "reward" else "text-classification",
        "tags": ["lockstep", run.name, *(["lora"] if exported.kind != "model" else [])],
        "datasets": datasets or None,
        "model-index": _model_index(of),
    }
    stream = io.StringIO()
    yaml = YAML()
    yaml.dump({name: value for name, value in facts.items() if value}, stream)
    return f"---\n{stream.getvalue()}---\n"


def _model_index(of: Family) -> list[dict[str, Any]] | None:
    """What was measured, as the hub reads it (model-index of huggingface_hub's ModelCardData)."""
    measured = [
        {"type": kind, "name": name, "value": value} for kind, name, value in _measured(of) if value is not None
    ]
    if not measured:
        return None
    task = {"type": "text-generation" if of.run.name != "reward" else "text-classification"}
    dataset = {"type": "held-out", "name": f"held out by {_prepared(of.material)}"}
    result = {"task": task, "dataset": dataset, "metrics": measured}
    return [{"name": f"{model_name(of.material.params)}-{of.run.run_id}", "results": [result]}]


def _measured(of: Family) -> list[tuple[str, str, float | None]]:
    """(type, name, value) of what was measured of this run's own result."""
    compared = of.evaluation.metrics.get(of.run.name, {}) if of.evaluation else {}
    if of.run.name == "sft":
        perplexity = compared.get("perplexity_tuned", of.run.metrics.get("eval_perplexity"))
        return [("perplexity", "Perplexity of held-out chats", perplexity)]
    if of.run.name == "reward":
        return [("accuracy", "Held-out pairs ranked right", of.run.metrics.get("eval_accuracy"))]
    return [
        ("reward", "Mean reward of held-out prompts", compared.get("reward_policy")),
        ("reward_gain", "Reward gain over the reference", compared.get("reward_gain")),
        ("kl", "KL to the reference, nats per token", compared.get("kl_per_token")),
    ]


def _prepared(material: Material) -> str:
    return f"prepare {material.stages['prepare'].run_id}" if "prepare" in material.stages else "the prepare stage"


def _introduction(run: StageFacts, material: Material, exported: Exported, is_result: bool) -> str:
    source = exported.base.get("source") or material.params["model"]["source"]
    remote = public_remote(material)
    made_by = f"made by the `{run.name}` run `{run.run_id}` of {f'[Lockstep]({remote})' if remote else 'Lockstep'}"
    lines = [
        f"This is {exported.what}, {made_by}, commit `{commit_name(run.record)}`, from the base model `{source}`.",
        f"sha256 over all its weights: `{exported.weights_sha256}`.",
    ]
    if licence := exported.base.get("licence"):
        lines.append(f"Licence of the base model: {licence}.")
    if exported.step is not None:
        other = "" if is_result else " What was measured of the run's result does not hold for it and is left out."
        lines.append(f"It is the checkpoint after step {exported.step}{_of_steps(run)}.{other}")
    if exported.merge_error is not None:
        lines.append(
            "On a fixed row of tokens its logits are those of base and adapter together, but for "
            f"{percent(exported.merge_error, 2)} of what the adapter changes (checked when it was written)."
        )
    return "\n".join(lines)


def _of_steps(run: StageFacts) -> str:
    planned = run.record["params"].get(run.name, {}).get("max_steps")
    return f" of {number(planned)}" if planned else ""


def _use(run: StageFacts, material: Material, exported: Exported) -> str:
    if exported.kind != "adapter":
        lines = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_FOLDER")',
            'tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")',
        ]
        return _section("Use it", _code("python", lines))
    lines = [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f'base = AutoModelForCausalLM.from_pretrained("{_base_to_load(run, material)}")',
        'model = PeftModel.from_pretrained(base, "PATH_OF_THIS_FOLDER")',
    ]
    return _section("Use it", _code("python", lines), *([_BESIDE[run.name]] if run.name in _BESIDE else []))


def _base_to_load(run: StageFacts, material: Material) -> str:
    sft = material.params["sft"]
    if run.name != "sft" and sft["enabled"] and sft["peft"] is None:
        return f"FOLDER_OF_lockstep_export_{run.record.get('made_by', {}).get('sft', 'sft')}"
    return _hub_name(material.params["model"]["source"]) or "FOLDER_OF_THE_BASE_MODEL"


_BESIDE = {
    "reward": "`head.safetensors` beside the adapter holds `weight` (hidden size) and `bias`: the reward of a text is "
    "`hidden @ weight + bias`, in fp32, of the last hidden state (after the final norm) at its last token.",
    "ppo": "`value_head.safetensors` (and `value_adapter/`, if it is there) is PPO's critic; generating needs neither.",
}


def _hub_name(source: str) -> str | None:
    kind, _, name = str(source).partition(":")
    return name.partition("@")[0] if kind == "hub" else None


def _hub_datasets(material: Material) -> list[str]:
    sections = [section for section in material.params.get("data", {}).values() if isinstance(section, Mapping)]
    sources = [str(source["source"]) for section in sections for source in section.get("sources", [])]
    return sorted({name for source in sources if (name := _hub_name(source))})


def _section(title: str, *parts: str) -> str:
    return f"## {title}\n\n" + "\n\n".join(parts)


def _code(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])
