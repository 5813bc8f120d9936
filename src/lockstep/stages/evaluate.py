"""Stage `evaluate`: perplexity before and after SFT → reference and policy on held-out prompts → outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lockstep.data.store import TokenStore, read_prompts
from lockstep.evaluation.perplexity import held_out, tuned_model
from lockstep.evaluation.policy import Comparer, Sample, policy_metrics
from lockstep.evaluation.roles import trained_backbone
from lockstep.foundation.errors import StoppedAfterSave, UsageError
from lockstep.models.loading import load_model, load_tokenizer
from lockstep.models.sharding import Layout
from lockstep.models.weights import read_manifest
from lockstep.runs.job import Job
from lockstep.stages._outputs import Outputs
from lockstep.stages._worker import main
from lockstep.training.common.determinism import derived_seed, make_deterministic
from lockstep.training.common.ranks import Ranks, joined_ranks
from lockstep.training.common.stopping import StopFlag
from lockstep.training.ppo.build import Folders
from lockstep.training.ppo.parallel import Replicas
from lockstep.training.ppo.rewards import build_judge, build_reward


def run(job: Job) -> None:
    """Measures what the stages before it made. Raises StoppedAfterSave on a stop; nothing is kept of half of it."""
    outputs = Outputs(job)
    if not job.params.evaluate.enabled:
        outputs.skip("samples.json")
        return
    make_deterministic()
    with joined_ranks(job.params.run.collective_timeout_s) as ranks:
        stop = StopFlag(job.directory.control, job.attempt)
        metrics: dict[str, Any] = {"sft": _perplexities(job, ranks, stop.poll)}
        samples = _compare(job, ranks, stop) if _was_made(job, "ppo") else []
        stop.settle()
    if samples:
        metrics["ppo"] = policy_metrics(samples)
    if job.is_main:
        outputs.json("metrics.json", metrics)
        outputs.json("samples.json", [asdict(sample) for sample in samples[: job.params.evaluate.num_samples_shown]])
        outputs.publish({})
        job.write_outcome({"reason": "complete", "start_step": 0, "end_step": 0})


def _was_made(job: Job, name: str) -> bool:
    return read_manifest(job.inputs[name])["kind"] != "none"


def _perplexities(job: Job, ranks: Ranks, stop_requested: Callable[[], bool]) -> dict[str, Any]:
    params, base = job.params, job.inputs["model"]
    store = TokenStore.open(job.inputs["tokens"] / "eval")
    if not len(store):
        raise UsageError(f"{store.path} holds no rows, so there is no perplexity to measure.")
    layout = Layout(ranks.world_size)
    size = params.evaluate.per_device_eval_batch_size
    untuned = load_model(base, params.model, device=ranks.device, layout=layout)
    before = held_out(untuned, store, base, ranks, size, stop_requested)
    del untuned
    after = before
    if _was_made(job, "sft"):
        tuned = tuned_model(base, job.inputs["sft"], params.model, ranks)
        after = held_out(tuned, store, base, ranks, size, stop_requested)
    return {
        "perplexity_base": before.perplexity,
        "perplexity_tuned": after.perplexity,
        "perplexity_ratio": after.perplexity / before.perplexity,
        "num_eval_tokens": before.num_tokens,
    }


def _compare(job: Job, ranks: Ranks, stop: StopFlag) -> list[Sample]:
    params = job.params

    def poll() -> None:
        if stop.poll():
            raise StoppedAfterSave("stopped; an evaluation keeps nothing and starts again")

    folders = Folders.of(job.inputs, job.project)
    backbone = trained_backbone(folders, job.inputs["ppo"], params, ranks.device)
    tokenizer = load_tokenizer(folders.backbone)
    source = params.ppo.reward
    reward = build_reward(
        source,
        project=folders.project,
        reviews=folders.reviews,
        reward_weights=folders.reward_adapter,
        backbone=backbone,
        tokenizer=tokenizer,
    )
    comparer = Comparer(
        backbone=backbone,
        tokenizer=tokenizer,
        reward=reward,
        judge=build_judge(source, folders.reviews),
        params=params.ppo,
        max_new_tokens=params.evaluate.max_new_tokens,
        seed=derived_seed(params.seed, "evaluate"),
        poll=poll,
    )
    prompts = [prompt.text for prompt in read_prompts(job.inputs["prompts"] / "eval.jsonl")]
    return comparer.compare(prompts[: params.evaluate.num_prompts], Replicas.current())


if __name__ == "__main__":
    main(run)
