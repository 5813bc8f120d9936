"""Stage `report`: the results and records of all stages → one page for people. Holds times, so it is no DVC out."""

from __future__ import annotations

from lockstep.foundation.files import write_atomic
from lockstep.params.stages import STAGES
from lockstep.reporting.material import Material, load_stage
from lockstep.reporting.page import page
from lockstep.runs.job import Job
from lockstep.stages._worker import main

REPORT = "report.html"


def run(job: Job) -> None:
    """Writes `report.html` among the outputs of the run; the launcher copies it to results/report."""
    path = job.directory.outputs / REPORT
    write_atomic(path, page(gather(job)))
    job.write_outcome({"reason": "complete", "start_step": 0, "end_step": 0})


def gather(job: Job) -> Material:
    """Reads what the stages left: results from the checkout, records and curves from the runs folder."""
    runs_root = job.directory.root.parent.parent
    stages = {name: load_stage(name, job.inputs[name], runs_root) for name in STAGES if name in job.inputs}
    producers = {
        name: {key: made.stage for key, made in STAGES[name].inputs(job.params).items() if made.stage}
        for name in stages
    }
    return Material(job.params.model_dump(), stages, producers)


if __name__ == "__main__":
    main(run)
