"""``cluster-sim train``: simulate one optimizer step of a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import plan_fields as field
from experiments.cli.answer import Request, request
from experiments.cli.common import (
    Engine,
    Json,
    Out,
    Overlay,
    Quiet,
    Seed,
    Variant,
    print_table,
)
from experiments.cli.progress import telling

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration

LEVELS = ("auto", "chunk", "collective", "rank-vector")
PlanFile = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE.yaml", help="Fields of a plan.")
]
Level = Annotated[str, typer.Option("--level", help="auto, chunk, collective or rank-vector.")]
Unfolded = Annotated[bool, typer.Option("--unfolded", help="Run every rank, equal ones too.")]
AllowOversized = Annotated[
    bool, typer.Option("--allow-oversized", help="Run a plan that does not fit in memory.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show every step and the source of every number.")
]
Jitter = Annotated[
    float, typer.Option("--jitter", help="Standard deviation of kernel times over their mean.")
]
Straggler = Annotated[
    list[str] | None,
    typer.Option("--straggler", help="RANK:FACTOR, such as 17:1.2; may be repeated."),
]
Fault = Annotated[
    list[str] | None,
    typer.Option("--fault", help="RESOURCE@TIME:dead|slow=P/Q; may be repeated."),
]
Iterations = Annotated[
    int,
    typer.Option("--iterations", min=1, max=1000, help="Steps in a row; results are of one."),
]


def train(
    model: field.Model,
    cluster: field.Cluster,
    tp: field.Tp = None,
    pp: field.Pp = None,
    vpp: field.Vpp = None,
    dp: field.Dp = None,
    cp: field.Cp = None,
    ep: field.Ep = None,
    etp: field.Etp = None,
    zero: field.Zero = None,
    reshard: field.Reshard = None,
    sequence_parallel: field.SequenceParallel = None,
    schedule: field.Schedule = None,
    stage_layers: field.StageLayers = None,
    microbatch: field.Microbatch = None,
    global_batch: field.GlobalBatch = None,
    seq: field.Seq = None,
    recompute: field.Recompute = None,
    precision: field.Precision = None,
    overlap: field.Overlap = None,
    bucket_bytes: field.Bucket = None,
    attention: field.Attention = None,
    cp_exchange: field.CpExchange = None,
    routing_skew: field.RoutingSkew = None,
    lnc: field.Lnc = None,
    ranks_per_chip: field.RanksPerChip = None,
    order: field.Order = None,
    plan: PlanFile = None,
    level: Level = "auto",
    unfolded: Unfolded = False,
    allow_oversized: AllowOversized = False,
    explain: Explain = False,
    jitter: Jitter = 0.0,
    straggler: Straggler = None,
    fault: Fault = None,
    iterations: Iterations = 1,
    variant: Variant = None,
    catalogue: Overlay = None,
    engine: Engine = "fast",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Simulate one optimizer step and say where its time goes."""
    _check(level)
    asked = request("train", locals())
    run = _run(asked)

    from experiments.reports.training import document, write

    asked.answer(
        lambda: {**document(run, engine), **(_explained(run) if explain else {})},
        show=lambda: _print(run, explain),
        write=lambda directory: write(directory, run, engine),
    )


def _run(asked: Request) -> Iteration:
    """The step that was asked for."""
    from topologies.catalogue.catalogue import choose
    from topologies.clusters.names import machine
    from workloads.models.huggingface import model as read_model
    from workloads.search.nearest import remedied
    from workloads.training.execution.faults import parse_fault
    from workloads.training.execution.jitter import disturbance
    from workloads.training.iteration import iteration
    from workloads.training.plan.plan_file import complete, read_plan

    given = asked.given
    model = read_model(given["model"])
    cluster = machine(
        given["cluster"], catalogue=choose(given["variant"] or (), given["catalogue"])
    )
    faults = [parse_fault(text) for text in given["fault"] or ()]
    disturbed = disturbance(given["jitter"], given["seed"], given["straggler"] or ())
    filed = read_plan(given["plan"]) if given["plan"] else {}
    stated = {**filed, **field.stated(given)}
    hints = remedied(stated, model, cluster, lnc=given["lnc"])
    with hints, telling(quiet=given["quiet"]) as tell:
        return iteration(
            model,
            cluster,
            complete(stated, model, cluster, lnc=given["lnc"]),
            engine=given["engine"],
            folded=not given["unfolded"],
            allow_oversized=given["allow_oversized"],
            iterations=given["iterations"],
            faults=faults,
            disturbed=disturbed,
            level=given["level"],
            progress=tell,
        )


def _check(level: str) -> None:
    from topologies.errors import InputError, suggestion

    if level not in LEVELS:
        near = suggestion(level, LEVELS)
        raise InputError(f"--level {level!r} is none of {', '.join(LEVELS)}.{near}")


def _print(run: Iteration, explain: bool) -> None:
    from experiments.reports.training import breakdown_rows, headline, results

    print_table(headline(run), ["result", "value"], results(run), left=2)
    columns = ["where the time goes, mean over ranks", "time", "share"]
    print_table("", columns, breakdown_rows(run))
    grades = ", ".join(f"{name} {grade}" for name, grade in run.provenance.items())
    typer.echo(f"Inputs: {grades}.")
    if explain:
        _print_explained(run)


def _explained(run: Iteration) -> dict[str, Any]:
    from workloads.training.explain import inputs, steps

    return {"steps": steps(run).to_dict("records"), "inputs": inputs(run).to_dict("records")}


def _print_explained(run: Iteration) -> None:
    from experiments.reports.formatting import table_text
    from workloads.training.explain import inputs, steps

    print_table("Steps of one rank of each stage", *table_text(steps(run)), left=3)
    numbers = inputs(run)
    print_table("Numbers behind them", list(numbers.columns), numbers.to_numpy().tolist(), left=6)
