"""``cluster-sim plan``: search for the fastest parallel plans that fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.common import (
    Engine,
    Json,
    Out,
    Overlay,
    Quiet,
    Seed,
    Variant,
    print_json,
    print_table,
    progress,
)

if TYPE_CHECKING:
    from workloads.search import Search

Degree = int | None


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def plan(
    model: Annotated[str, _option("--model", "A config.json, or a named model.")],
    cluster: Annotated[str, _option("--cluster", "Named machine or YAML; all of it is used.")],
    global_batch: Annotated[int, _option("--global-batch", "Sequences of one optimizer step.")],
    seq: Annotated[Degree, _option("--seq", "Tokens of a sequence, default 4096.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Plans to show.")] = 10,
    finalists: Annotated[
        Degree, typer.Option("--finalists", min=1, help="Plans to simulate; default twice --top.")
    ] = None,
    each: Annotated[
        str | None,
        typer.Option("--each", metavar="FIELDS", help="Best plan of each, as tp,pp or recompute."),
    ] = None,
    tp: Annotated[Degree, _option("--tp", "Only this tensor parallel degree.")] = None,
    pp: Annotated[Degree, _option("--pp", "Only this pipeline parallel degree.")] = None,
    vpp: Annotated[Degree, _option("--vpp", "Model chunks of a stage, default 1.")] = None,
    dp: Annotated[Degree, _option("--dp", "Only this data parallel degree.")] = None,
    cp: Annotated[Degree, _option("--cp", "Context parallel degree, default 1.")] = None,
    ep: Annotated[Degree, _option("--ep", "Expert parallel degree, default 1.")] = None,
    zero: Annotated[Degree, _option("--zero", "Only this sharding over dp.")] = None,
    sequence_parallel: Annotated[
        bool | None,
        _option("--sequence-parallel/--no-sequence-parallel", "Only with, or only without."),
    ] = None,
    schedule: Annotated[str | None, _option("--schedule", "Only this pipeline.")] = None,
    microbatch: Annotated[Degree, _option("--microbatch", "Only this size.")] = None,
    recompute: Annotated[str | None, _option("--recompute", "Only this kind.")] = None,
    precision: Annotated[str | None, _option("--precision", "bf16 (default) or fp8.")] = None,
    overlap: Annotated[str | None, _option("--overlap", "none, dp or all (default).")] = None,
    attention: Annotated[str | None, _option("--attention", "fused (default), unfused.")] = None,
    lnc: Annotated[Degree, _option("--lnc", "Physical cores of a logical NeuronCore.")] = None,
    ranks_per_chip: Annotated[
        Degree, _option("--ranks-per-chip", "Default 1; Trainium1 2.")
    ] = None,
    order: Annotated[
        str | None, _option("--order", "Only this order of axes, as tp-cp-dp-pp.")
    ] = None,
    variant: Variant = None,
    catalogue: Overlay = None,
    engine: Engine = "fast",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Estimate every plan that fits in memory, simulate the best in full, and rank them."""
    given = dict(locals())

    from experiments.plan_report import document
    from experiments.run_directory import refuse_foreign
    from topologies.catalogue import choose
    from topologies.machines import cluster as machine
    from workloads.huggingface import model as read_model
    from workloads.search import search

    if out:
        refuse_foreign(out)

    def watch(places: Sequence[int]) -> Iterable[int]:
        return progress(places, "simulated", quiet=quiet)

    found = search(
        read_model(model),
        machine(cluster, catalogue=choose(variant or (), catalogue)),
        global_batch,
        stated={name: given[name] for name in STATED},
        lnc=lnc,
        finalists=finalists or 2 * top,
        each=[name.strip().replace("-", "_") for name in each.split(",")] if each else (),
        engine=engine,
        watch=watch,
    )
    if out:
        _write(out, found, top, {name: given[name] for name in (*ASKED, *STATED)}, seed)
    if json:
        print_json(document(found, top, model))
    else:
        _print(found, top, model)


STATED = (
    "tp", "pp", "vpp", "dp", "cp", "ep", "zero", "sequence_parallel", "schedule", "microbatch",
    "seq", "recompute", "precision", "overlap", "attention", "ranks_per_chip", "order",
)  # fmt: skip
"""Options that are fields of a plan: what is given is not varied."""

ASKED = (
    "model", "cluster", "global_batch", "top", "finalists", "each", "lnc", "variant", "catalogue",
    "engine",
)  # fmt: skip
"""Other options that results depend on."""


def _print(found: Search, top: int, model: str) -> None:
    from experiments.plan_report import headline, remarks, shared, table, train_command

    print_table(headline(found), *table(found, top), left=0)
    for line in (
        shared(found, top),
        *remarks(found),
        f"Run the first: {train_command(found, model)}",
    ):
        typer.echo(line)


def _write(out: Path, found: Search, top: int, inputs: dict[str, Any], seed: int) -> None:
    from experiments.plan_report import document, figure, frame, headline, remarks
    from experiments.run_directory import run_directory

    rows = frame(found, top)
    with run_directory(out, command="plan", inputs=inputs, seed=seed) as run:
        run.figure("plans", figure(rows), title="The best plans", note=headline(found))
        run.table("metrics", rows, title="Ranked plans", note=" ".join(remarks(found)))
        run.json("results", document(found, top, str(inputs["model"])), title="Results")
