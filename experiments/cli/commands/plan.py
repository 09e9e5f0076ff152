"""``cluster-sim plan``: a search for the fastest parallel plans that fit in memory."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from cluster_sim.progress import progress
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import CatalogueInputs, TrainedModel
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from experiments.cli.output.job_amounts import print_whole_job
from experiments.cli.output.printing import print_table, print_text
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from experiments.reports.idle import option_name
from topologies.errors import InputError
from topologies.options import setting
from topologies.units import format_seconds
from workloads.options.job import TokensInputs
from workloads.training.frameworks.conditions import Conditions
from workloads.training.plan.fields import SEARCHED
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from workloads.search import Search


@dataclass(frozen=True)
class SearchInputs(Conditions):
    """The extent of the search, and the plans that it shows."""

    top: int = setting(10, "Number of plans to show", least=1)
    finalists: int | None = setting(
        None, "Number of plans to simulate in full", least=1, default="twice --top"
    )
    each: str | None = setting(
        None,
        "Keep only the best plan for each combination of these fields, such as tp,pp or recompute",
        metavar="FIELDS",
    )
    objective: str = setting(
        "time", "Quantity by which simulated plans are ranked", choices=("time", "cost", "energy")
    )
    memory_margin: float = setting(
        0.0, "Share of a rank's memory that a plan must leave free, such as 0.1"
    )
    with_plan: str | None = setting(
        None,
        "Rank your own plan beside the others: a file as --plan of train takes it, or its "
        "options in quotes, such as '--tp 8 --pp 4'. Its precision, framework and the like "
        "hold for all plans",
        metavar="FILE|OPTIONS",
        name="with",
    )
    lnc: int | None = setting(None, "Physical cores of one logical NeuronCore (Trainium2 and 3)")
    best: Path | None = setting(
        None,
        "Write the best plan to this file, for train --plan",
        metavar="FILE.yaml",
        recorded=False,
    )


def plan(
    inputs: TrainedModel,
    stated: Annotated[
        Mapping[str, Any],
        Stated(
            ParallelPlan,
            required=("global_batch",),
            without=("stage_layers", "recompute_every"),
            searched=SEARCHED,
        ),
    ],
    how: SearchInputs,
    length: TokensInputs,
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Search for the fastest parallel plans that fit in memory.

    Of the plans that fit, each that may be among the best is estimated; the best are simulated in
    full and ranked. Stated fields of the plan are kept, and the others are searched. Several
    clusters, written --cluster A,B,C, are compared side by side by their first plans.
    """
    from experiments.reports.plan import document, first_step, write
    from workloads.training.plan.plan_file import write_plan

    names = cluster_names(inputs.cluster)
    if len(names) > 1:

        def answer(name: str, catalogue: Catalogue) -> dict[str, Any]:
            """Document of the first plan on one of the clusters."""
            result = _search(replace(inputs, cluster=name), stated, how, catalogue, call)
            return {**first_step(result, inputs.model), **_whole_job(result, length, call)}

        answer_beside(
            *("train", f"{inputs.model}: the best plan on each of {len(names)} clusters", names),
            answer,
            {"--sensitivity": sure.sensitivity, "--with": how.with_plan, "--best": how.best},
            *(catalogue_inputs.read_side_by_side, call.answer),
        )
        return
    catalogue = catalogue_inputs.read(inputs.cluster)
    result = _search(inputs, stated, how, catalogue, call)
    if how.best is not None:
        write_plan(result.finalists[0].plan, how.best)
    rankings = sure.rank(
        lambda moved: _first_s(result, inputs, moved, call.engine),
        catalogue,
        quiet=call.quiet,
        what=f"the first plan's step of {format_seconds(result.finalists[0].iteration_s)}",
    )
    results = {**document(result, how.top, inputs.model), **_whole_job(result, length, call)}
    call.answer(
        lambda: results,
        show=lambda: _print(result, how.top, inputs.model, results),
        write=lambda run: write(run, result, how.top, results),
        rankings=rankings,
    )


def _whole_job(search: Search, length: TokensInputs, call: Invocation) -> dict[str, Any]:
    """Return length, price and energy of the job of the first plan; empty without its tokens."""
    if length.tokens is None:
        return {}
    from workloads.job.front import whole_job
    from workloads.training.iteration import iteration

    plan = search.finalists[0].plan
    step = iteration(search.model, search.cluster, plan, engine=call.engine, trace=False)
    return whole_job(step, length.tokens, call.seed)


def _first_s(search: Search, inputs: TrainedModel, catalogue: Catalogue, engine: str) -> float:
    """Time of a step of the best plan under another catalogue [s]."""
    from workloads.training.iteration import iteration

    cluster, best = inputs.read_cluster(catalogue), search.finalists[0]
    return iteration(inputs.read_model(), cluster, best.plan, engine=engine).iteration_s


def _search(
    inputs: TrainedModel,
    stated: Mapping[str, Any],
    how: SearchInputs,
    catalogue: Catalogue,
    call: Invocation,
) -> Search:
    from workloads.search import search
    from workloads.search.search import own_plan
    from workloads.training.usual_plan import complete

    def watch(items: Sequence[Any], what: str) -> Iterable[Any]:
        return progress(items, what, quiet=call.quiet)

    mine = {} if how.with_plan is None else _own_fields(how.with_plan, stated)
    common = {name: value for name, value in mine.items() if name not in (*SEARCHED, *OF_ONE_PLAN)}
    batch = {"global_batch": stated["global_batch"]}
    kept = {name: value for name, value in {**common, **stated}.items() if name not in batch}
    model, cluster = inputs.read_model(), inputs.read_cluster(catalogue)
    kept["framework"] = how.framework_text(kept, cluster)
    result = search(
        model,
        cluster,
        stated["global_batch"],
        stated=kept,
        lnc=how.lnc,
        objective=how.objective,
        memory_margin=how.memory_margin,
        finalists=how.finalists or 2 * how.top,
        each=[name.strip().replace("-", "_") for name in (how.each or "").split(",") if name],
        engine=call.engine,
        watch=watch,
    )
    if not mine:
        return result
    # What the search has in common: its sequence, framework and ranks of a chip among them.
    best = result.finalists[0].plan
    same = {name: getattr(best, name) for name in ("seq", "framework", "ranks_per_chip")}
    try:
        plan = complete({**kept, **mine, **same, **batch}, model, cluster, lnc=how.lnc)
        return replace(result, own_plan=own_plan(result, plan, call.engine))
    except InputError as mistake:
        raise InputError(f"your own plan: {mistake}") from None


OF_ONE_PLAN = ("global_batch", "stage_layers", "recompute_every")
"""Fields that belong to the division of one plan, beside those that are searched."""


def _own_fields(text: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the user's own plan, from a file or from options in one text."""
    from experiments.cli.options.from_fields import as_options
    from workloads.training.plan.plan_file import field_value, read_plan

    mine: dict[str, Any] = {}

    def options(stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)]) -> None:
        mine.update(stated)

    if not text.lstrip().startswith("-"):
        mine = read_plan(Path(text))
    else:
        try:
            as_options("train", options).main(shlex.split(text), standalone_mode=False)
        except (click.UsageError, ValueError) as mistake:
            raise InputError(
                f"--with {text[:80]!r}: {getattr(mistake, 'message', mistake)} Write options of "
                "train, such as '--tp 8 --pp 4', or name a file."
            ) from None
    if not mine:
        raise InputError(f"--with {text[:80]!r} states no field of a plan. Write '--tp 8 --pp 4'.")
    for name, value in mine.items():
        stated_value = stated.get(name)
        if stated_value is not None and field_value(name, stated_value) != field_value(name, value):
            raise InputError(
                f"the plan of --with has {name.replace('_', ' ')} {value}, and {option_name(name)} "
                f"is {stated_value}. Compare plans of one question: state one of the two."
            )
    return mine


def _print(search: Search, top: int, model: str, results: Mapping[str, Any]) -> None:
    from experiments.reports.plan import headline, remarks, shared, sifted, table, train_command

    print_table(headline(search), *table(search, top), left=1)
    click.echo(shared(search, top))
    print_table("", *sifted(search))
    for line in remarks(search):
        print_text(line)
    click.echo(f"Run the first: {train_command(search, model)}")
    print_whole_job(results)
