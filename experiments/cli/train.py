"""``cluster-sim train``: simulate one optimizer step of a model on a cluster."""

from __future__ import annotations

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
    teller,
)

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration

Degree = int | None
LEVELS = ("auto", "collective", "rank-vector")


def _option(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def train(
    model: Annotated[str, _option("--model", "A config.json, or a named model.")],
    cluster: Annotated[str, _option("--cluster", "Named machine or YAML.")],
    tp: Annotated[Degree, _option("--tp", "Tensor parallel degree.")] = None,
    pp: Annotated[Degree, _option("--pp", "Pipeline parallel degree.")] = None,
    vpp: Annotated[Degree, _option("--vpp", "Model chunks of a stage.")] = None,
    dp: Annotated[Degree, _option("--dp", "Data parallel degree; what fills the cluster.")] = None,
    cp: Annotated[Degree, _option("--cp", "Context parallel degree.")] = None,
    ep: Annotated[Degree, _option("--ep", "Expert parallel degree.")] = None,
    zero: Annotated[
        Degree, _option("--zero", "0 to 3: shard nothing, optimizer, gradients, all.")
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        _option("--sequence-parallel/--no-sequence-parallel", "Default with tp above 1."),
    ] = None,
    schedule: Annotated[
        str | None, _option("--schedule", "gpipe, 1f1b, interleaved, zero-bubble.")
    ] = None,
    microbatch: Annotated[Degree, _option("--microbatch", "Sequences at once on a rank.")] = None,
    global_batch: Annotated[
        Degree, _option("--global-batch", "Sequences a step; default 16 microbatches.")
    ] = None,
    seq: Annotated[Degree, _option("--seq", "Tokens of a sequence, default 4096.")] = None,
    recompute: Annotated[str | None, _option("--recompute", "none, selective or full.")] = None,
    precision: Annotated[str | None, _option("--precision", "bf16 or fp8.")] = None,
    overlap: Annotated[str | None, _option("--overlap", "none, dp or all.")] = None,
    bucket_bytes: Annotated[
        str | None, _option("--bucket", "Gradients reduced together, as 160MB; as Megatron-LM.")
    ] = None,
    attention: Annotated[str | None, _option("--attention", "fused or unfused kernels.")] = None,
    lnc: Annotated[Degree, _option("--lnc", "Physical cores of a logical NeuronCore.")] = None,
    ranks_per_chip: Annotated[
        Degree, _option("--ranks-per-chip", "Default 1; Trainium1 2.")
    ] = None,
    order: Annotated[
        str | None, _option("--order", "Axes, fastest rank number first: tp-cp-dp-pp.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE.yaml", help="Fields of a plan.")
    ] = None,
    level: Annotated[str, _option("--level", "auto, collective or rank-vector.")] = "auto",
    unfolded: Annotated[bool, _option("--unfolded", "Run every rank, equal ones too.")] = False,
    allow_oversized: Annotated[
        bool, _option("--allow-oversized", "Run a plan that does not fit in memory.")
    ] = False,
    explain: Annotated[
        bool, _option("--explain", "Show every step and the source of every number.")
    ] = False,
    etp: Annotated[Degree, _option("--etp", "Tensor parallel degree of experts; tp.")] = None,
    cp_exchange: Annotated[
        str | None, _option("--cp-exchange", "Keys and values: ring or all-gather.")
    ] = None,
    routing_skew: Annotated[
        float | None, _option("--routing-skew", "Tokens of the busiest rank over the mean.")
    ] = None,
    jitter: Annotated[
        float, _option("--jitter", "Standard deviation of kernel times over their mean.")
    ] = 0.0,
    straggler: Annotated[
        list[str] | None,
        _option("--straggler", "RANK:FACTOR, such as 17:1.2; may be repeated."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        _option("--fault", "RESOURCE@TIME:dead|slow=P/Q; may be repeated."),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option("--iterations", min=1, max=1000, help="Steps in a row; results are of one."),
    ] = 1,
    variant: Variant = None,
    catalogue: Overlay = None,
    engine: Engine = "fast",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Simulate one optimizer step and say where its time goes."""
    given = dict(locals())

    from experiments.run_directory import refuse_foreign, run_directory
    from experiments.training_report import document, write
    from topologies.catalogue import choose
    from topologies.machines import cluster as machine
    from workloads.huggingface import model as read_model
    from workloads.training.faults import parse_fault
    from workloads.training.iteration import iteration
    from workloads.training.jitter import disturbance
    from workloads.training.plan_options import complete, read_plan

    _check(level)
    if out:
        refuse_foreign(out)
    stated = {name: given[name] for name in PLAN if given[name] is not None}
    shape = read_model(model)
    made = machine(cluster, catalogue=choose(variant or (), catalogue))
    whole = complete({**(read_plan(plan) if plan else {}), **stated}, shape, made, lnc=lnc)
    run = iteration(
        shape,
        made,
        whole,
        engine=engine,
        folded=not unfolded,
        allow_oversized=allow_oversized,
        iterations=iterations,
        faults=[parse_fault(text) for text in fault or ()],
        disturbed=disturbance(jitter, seed, straggler or ()),
        level=level,
        progress=None if quiet else teller(),
    )
    if out:
        inputs = {name: given[name] for name in (*ASKED, *PLAN)}
        with run_directory(out, command="train", inputs=inputs, seed=seed) as directory:
            write(directory, run, engine)
    if json:
        print_json({**document(run, engine), **(_explained(run) if explain else {})})
    else:
        _print(run, explain)


PLAN = (
    "tp", "pp", "vpp", "dp", "cp", "ep", "zero", "sequence_parallel", "schedule", "microbatch",
    "global_batch", "seq", "recompute", "precision", "overlap", "attention", "ranks_per_chip",
    "order", "etp", "cp_exchange", "routing_skew", "bucket_bytes",
)  # fmt: skip
"""Options that are fields of a plan."""

ASKED = (
    "model", "cluster", "lnc", "plan", "level", "unfolded", "allow_oversized", "variant",
    "catalogue", "engine", "fault", "iterations", "jitter", "straggler",
)  # fmt: skip
"""Other options that results depend on."""


def _check(level: str) -> None:
    from topologies.errors import InputError, suggestion

    if level == "chunk":
        raise InputError(
            f"--level {level} is not supported: collectives are timed chunk by chunk on their own "
            f"and enter an iteration as one op. Use --level {' or '.join(LEVELS)}, or "
            "cluster-sim collective for the chunks of one."
        )
    if level not in LEVELS:
        near = suggestion(level, LEVELS)
        raise InputError(f"--level {level!r} is none of {', '.join(LEVELS)}.{near}")


def _print(run: Iteration, explain: bool) -> None:
    from experiments.training_report import breakdown_rows, headline, results

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
    from experiments.display import table_text
    from workloads.training.explain import inputs, steps

    print_table("Steps of one rank of each stage", *table_text(steps(run)), left=3)
    numbers = inputs(run)
    print_table("Numbers behind them", list(numbers.columns), numbers.to_numpy().tolist(), left=6)
