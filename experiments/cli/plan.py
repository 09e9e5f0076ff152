"""``cluster-sim plan``: search for the fastest parallel plans that fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from experiments.cli.progress import progress

if TYPE_CHECKING:
    from workloads.search import Search

Batch = Annotated[int, typer.Option("--global-batch", help="Sequences of one optimizer step.")]
Top = Annotated[int, typer.Option("--top", min=1, help="Plans to show.")]
Finalists = Annotated[
    int | None, typer.Option("--finalists", min=1, help="Plans to simulate; default twice --top.")
]
Each = Annotated[
    str | None,
    typer.Option("--each", metavar="FIELDS", help="Best plan of each, as tp,pp or recompute."),
]
Best = Annotated[
    Path | None,
    typer.Option("--best", metavar="FILE.yaml", help="Write the first plan for train --plan."),
]


def plan(
    model: field.Model,
    cluster: field.Cluster,
    global_batch: Batch,
    top: Top = 10,
    finalists: Finalists = None,
    each: Each = None,
    best: Best = None,
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
    microbatch: field.Microbatch = None,
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
    variant: Variant = None,
    catalogue: Overlay = None,
    engine: Engine = "fast",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Estimate every plan that fits in memory, simulate the best in full, and rank them.

    Fields of a plan that are given are kept; all others are varied.
    """
    asked = request("plan", locals())
    found = _search(asked)

    from experiments.reports.plan import document, write
    from workloads.training.plan.plan_file import write_plan

    if best is not None:
        write_plan(found.finalists[0].plan, best)
    asked.answer(
        lambda: document(found, top, model),
        show=lambda: _print(found, top, model),
        write=lambda run: write(run, found, top, model),
    )


def _search(asked: Request) -> Search:
    """What was found."""
    from topologies.catalogue.catalogue import choose
    from topologies.clusters.names import machine
    from workloads.models.huggingface import model as read_model
    from workloads.search import search

    given = asked.given

    def watch(items: Sequence[Any], what: str) -> Iterable[Any]:
        return progress(items, what, quiet=given["quiet"])

    stated = field.stated(given)
    return search(
        read_model(given["model"]),
        machine(given["cluster"], catalogue=choose(given["variant"] or (), given["catalogue"])),
        stated.pop("global_batch"),
        stated=stated,
        lnc=given["lnc"],
        finalists=given["finalists"] or 2 * given["top"],
        each=[name.strip().replace("-", "_") for name in (given["each"] or "").split(",") if name],
        engine=given["engine"],
        watch=watch,
    )


def _print(found: Search, top: int, model: str) -> None:
    from experiments.reports.plan import headline, remarks, shared, sifted, table, train_command

    print_table(headline(found), *table(found, top), left=0)
    typer.echo(shared(found, top))
    print_table("", *sifted(found))
    for line in (*remarks(found), f"Run the first: {train_command(found, model)}"):
        typer.echo(line)
