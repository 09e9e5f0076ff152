"""``cluster-sim run-job``: a training job of weeks with failures, checkpoints and spares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from experiments.cli.commands.train import AskedStep, PlanInputs
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import Invocation, PricedInputs, SensitivityInputs, TrainedModel
from experiments.cli.output.printing import SPENT, print_table, print_text
from experiments.reports.certainty import facts, price_sentences
from experiments.reports.formatting import Column, days_text, idle_entry, idle_sentences
from topologies.catalogue.catalogue import Catalogue
from workloads.options.job import JobInputs, budget_entry
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.job import JobResult
    from workloads.training.iteration import Iteration


def print_job(result: JobResult, document: Mapping[str, Any]) -> None:
    """Print a job's goodput, where its time goes, and its failures by cause."""
    from experiments.reports.training import degrees
    from workloads.remarks import assumed_sentences

    plan, ends = result.step.plan, result.interval
    title = (
        f"{document['model']} on {document['cluster']}, {document['chips']:,} "
        f"chip{'s' * (document['chips'] > 1)} ({degrees(plan)}), {document['days']:,.4g} "
        f"day{'s' * (document['days'] != 1)}"
    )
    for line in idle_sentences(document.get("without_effect", {})):
        click.echo(line)
    # The tokens of a run whose length follows from them are stated, not predicted.
    sure = {name: span for name, span in document["interval"].items() if name != "tokens"}
    spares = document["spares"]
    of_chips = (
        f"unit{'s' * (spares != 1)} of {result.unit_chips} chip{'s' * (result.unit_chips > 1)}"
    )
    shown = {**document, "spares": f"{spares:,} {of_chips}"}
    shown |= {} if result.goal is None else {"interval": sure}
    print_table(title, ["result", "value"], facts(RESULTS, shown, "run-job"), left=2)
    basis = document.get("price_basis")
    first = [f"Price: {basis}."] if basis else []
    remarks = (*document.get("remarks", ()), *assumed_sentences(result.step))
    for line in (*first, *price_sentences(document), *remarks):
        print_text(line)
    parts = result.breakdown.items()
    shares = [[part.replace("_", " "), f"{share:.2%}"] for part, share in parts]
    print_table("", ["where the time goes", "share"], shares)
    causes = sorted(result.failures_by_cause.items(), key=lambda item: -item[1])
    rows = [[name.replace("_", " "), f"{count:,.1f}"] for name, count in causes]
    print_table("", ["failures", "in the run"], rows)
    low, high = f"{ends.low:.1%}", f"{ends.high:.1%}"
    between = f"between {low} and {high}" if low != high else f"at {low}"
    print_text(f"80 % of runs lie {between}: {ends.basis}.")


RESULTS = (
    Column("goodput", "goodput", write="{:.1%}".format),
    Column("failures", "failures", write="{:,.1f}".format),
    Column("mtbf_s", "  one expected every"),
    Column("failure_cost_s", "  one costs on average"),
    Column("checkpoint_interval_s", "checkpoint every"),
    Column("best_checkpoint_interval_s", "  best"),
    Column("young_daly_interval_s", "  Young and Daly"),
    Column("checkpoint_bytes", "  its size"),
    Column("checkpoint_stall_s", "  stall"),
    Column("checkpoint_write_s", "  write"),
    Column("peer_copy_interval_s", "copies with peers every"),
    Column("peer_copy_s", "  in"),
    Column("peer_bytes_per_server", "  in host memory of a server", like="_bytes"),
    Column("host_bytes_per_server", "  of", like="_bytes"),
    Column("peer_pairs_lost", "  pairs lost, back to the store", write="{:,.2g}".format),
    Column("detection_s", "detection"),
    Column("restart_s", "restart"),
    Column("peer_restart_s", "  from a peer's copy"),
    Column("warm_restart_s", "  with warm standbys"),
    Column("repair_s", "repair"),
    Column("elastic", "after a failure",
           write=lambda elastic: "other replicas go on" if elastic else "all replicas wait"),
    Column("maintenance", "maintenance", write=", ".join),
    Column("spares", "spares"),
    Column("spare_chips", "  chips"),
    Column("iteration_s", "step"),
    Column("days", "length", write=days_text),
    Column("tokens", "tokens"),
    *SPENT,
)  # fmt: skip
LISTED = ("curve", "plan", "plans_without_units", "without_effect", "notes", "searched", "remarks")
"""Keys of the document that are no numbers of the table of results."""


def run_job(
    inputs: TrainedModel,
    stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)],
    plan: PlanInputs,
    how: JobInputs,
    sure: SensitivityInputs,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Run a training job of weeks through its failures.

    Checkpoints, detection, restarts, spares, repairs and slow servers are simulated as well.

    If no degree such as --tp or --pp is stated, the plan search chooses the plan.
    """
    from experiments.reports.training import stated as plan_document
    from workloads.job import read_failures
    from workloads.job import run_job as run
    from workloads.remarks import left_out_framework, remarks_entry

    catalogue = catalogue_inputs.watched(inputs.cluster)
    cluster = inputs.read_cluster(catalogue)
    if how.failures is not None:
        read_failures(how.failures, cluster, cluster.chips)  # refused before a plan is searched
    step = AskedStep(inputs, stated, plan).run(catalogue, call, search="always")
    filed = plan.file_beside(step)
    result = run(step, how, seed=call.seed)
    document = {
        **result.document(),
        "plan": plan_document(step.plan),
        **idle_entry(step.without_effect),
        **remarks_entry(step),
        **(filed.document() if filed else {}),
    }
    whole = {**document, "job": {**document, **budget_entry(how.budget)}}
    document |= catalogue_inputs.other_prices(whole, catalogue, inputs.cluster)
    goodput = f"a goodput of {result.goodput:.1%}"
    call.answer(
        document,
        lambda _: print_job(result, document),
        lambda directory, _: _write(directory, result, document),
        rankings=sure.rank(lambda moved: _goodput(step, how, moved), catalogue, call, goodput),
        notes=(filed.sentence if filed else "", left_out_framework(step, filed), *result.notes),
    )


def _goodput(step: Iteration, how: JobInputs, catalogue: Catalogue) -> float:
    from workloads.job.front import expected_job_goodput

    cluster = replace(step.cluster, catalogue=catalogue)
    moved = replace(step, joined=replace(step.joined, clusters=(cluster,)))
    return expected_job_goodput(moved, how)


def _write(run: Run, result: JobResult, document: Mapping[str, Any]) -> None:
    import pandas as pd

    from experiments.figures.jobs import causes_figure, curve_figure, timeline_figure
    from experiments.reports.training import metrics
    from workloads.job.job import MAINTENANCE

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
    shares = {MAINTENANCE: f"{MAINTENANCE}_share"}  # units of a fleet have a column of this name
    runs, timeline = (each.rename(columns=shares) for each in (result.frame(), result.timeline()))
    run.table("runs", runs, title="Runs", note="varied: failure rates drawn")
    run.table("timeline", timeline, title="Timeline of the first run")
    run.json("results", document, title="Results")
