"""``cluster-sim run-job``: a training job of weeks with failures, checkpoints and spares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from experiments.cli.commands.run_job.tables import print_job
from experiments.cli.commands.train import PlanInputs, RunInputs, run_step
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import CatalogueInputs, ModelOnCluster
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from workloads.options.job import JobInputs
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.job import JobResult
    from workloads.job.plan import JobPlan
    from workloads.training.iteration import Iteration

LISTED = ("curve", "plan", "without_effect", "notes", "searched", "remarks")
"""Keys of the document that are no numbers of the table of results."""


def run_job(
    inputs: ModelOnCluster,
    stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)],
    plan: PlanInputs,
    how: JobInputs,
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Run a training job of weeks through its failures.

    Checkpoints, detection, restarts, spares, repairs and slow servers are simulated as well.

    If no degree such as --tp or --pp is stated, the plan search chooses the plan.
    """
    from experiments.reports.remarks import left_out_framework
    from workloads.job import run_job as run
    from workloads.training.plan.plan_file import read_any_plan

    catalogue = catalogue_inputs.read(inputs.cluster)
    filed = read_any_plan(plan.plan) if plan.plan else None
    cluster = inputs.read_cluster(catalogue)
    _job_plan(how, cluster, cluster.chips, call.seed)  # a mistake in it before a plan is searched
    step = run_step(inputs, stated, plan, RunInputs(), catalogue, call, search="always")
    result = run(step, _job_plan(how, cluster, step.chips, call.seed))
    document = {**result.document(), **_plan_document(step)}
    document |= filed.document() if filed else {}
    goodput = f"a goodput of {result.goodput:.1%}"
    call.answer(
        lambda: document,
        lambda: print_job(result, document),
        lambda directory: _write(directory, result, document),
        rankings=sure.rank(
            lambda moved: _goodput(step, how, moved), catalogue, quiet=call.quiet, what=goodput
        ),
        notes=(filed.sentence if filed else "", left_out_framework(step, filed), *result.notes),
    )


def _goodput(step: Iteration, how: JobInputs, catalogue: Catalogue) -> float:
    """Expected goodput under another catalogue, with the same step."""
    from dataclasses import replace

    from workloads.job.front import expected_job_goodput

    cluster = replace(step.cluster, catalogue=catalogue)
    plan = _job_plan(how, cluster, step.chips, 0)
    return expected_job_goodput(replace(step, cluster=cluster), plan)


def _job_plan(how: JobInputs, cluster: Cluster, chips: int, seed: int) -> JobPlan:
    from dataclasses import asdict

    from workloads.job.plan import JobPlan, plan_with

    return plan_with(JobPlan(seed=seed), asdict(how), cluster, chips)


def _plan_document(step: Iteration) -> dict[str, Any]:
    """Return the plan, the stated fields of it that change nothing, and the remarks on its step."""
    from experiments.reports.idle import idle_entry
    from experiments.reports.remarks import remarks_entry
    from experiments.reports.training import stated

    return {"plan": stated(step.plan), **idle_entry(step.without_effect), **remarks_entry(step)}


def _write(run: Run, result: JobResult, document: Mapping[str, Any]) -> None:
    import pandas as pd

    from experiments.figures.job import causes_figure, curve_figure, timeline_figure
    from experiments.reports.training import metrics

    ends = dict(document["interval"])
    cells = {name: value for name, value in document.items() if name not in LISTED}
    of_others = {f"{name}_interval": ends.pop(name) for name in list(ends) if name in cells}
    flat = {**cells, **of_others, "interval": ends}
    run.table("metrics", metrics(flat), title="Results")
    headline = (
        f"{document['model']} on {document['chips']:,} chips of {document['cluster']}: "
        f"goodput {result.goodput:.1%}"
    )
    run.figure("timeline", timeline_figure(result, headline), title="Where the time goes")
    if result.curve is not None:
        run.figure("interval", curve_figure(result), title="Goodput against checkpoint interval")
        run.table("curve", pd.DataFrame(result.curve_rows()), title="Checkpoint intervals")
    run.figure("failures", causes_figure(result), title="Failures by cause")
    run.table("runs", result.frame(), title="Runs", note="varied: failure rates drawn")
    run.table("timeline", result.timeline(), title="Timeline of the first run")
    run.json("results", document, title="Results")
