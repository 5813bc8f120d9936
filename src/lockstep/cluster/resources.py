"""What a run needs of the cluster, as words for sbatch and for the batch script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.cluster.attempt import processes_per_node
from lockstep.cluster.image import image_file
from lockstep.cluster.intent import Intent
from lockstep.params.stages import stage_spec


def resource_words(intent: Intent, num_nodes: int, settings: Mapping[str, str], excluded: Sequence[str]) -> list[str]:
    """Nodes, CPUs, GPUs, the warning before the end, nodes to keep away from. A stage of one process takes one node.

    Raises UsageError where the processes cannot be spread evenly over the nodes.
    """
    experiment = intent.experiment
    num_processes = intent.options.get("elastic") or stage_spec(intent.stage).num_processes(experiment)
    num_nodes = num_nodes if num_processes > 1 else 1
    num_local = processes_per_node(num_processes, num_nodes)
    words = [
        f"--nodes={num_nodes}",
        f"--cpus-per-task={int(settings.get('LOCKSTEP_CPUS_PER_PROCESS', '1')) * num_local}",
        f"--job-name=lockstep-{intent.stage}",
        f"--signal=B:USR2@{settings.get('LOCKSTEP_SIGNAL_LEAD_S', '300')}",
    ]
    if getattr(experiment.environment, intent.stage) == "cuda":
        words.append(settings.get("LOCKSTEP_GPU_OPTION", "--gpus-per-node=%d").replace("%d", str(num_local)))
    if excluded:
        words.append(f"--exclude={','.join(excluded)}")
    return words


def script_words(intent: Intent, settings: Mapping[str, str]) -> list[str]:
    """Where the batch script finds checkout, runs and image. Raises UsageError when the image is not there."""
    words = ["--checkout", str(intent.checkout), "--runs", str(intent.runs)]
    if settings.get("LOCKSTEP_ENGINE", "apptainer") == "host":
        return words
    flavour = str(getattr(intent.experiment.environment, intent.stage))
    return [*words, "--image", str(image_file(intent.checkout, flavour, settings))]
