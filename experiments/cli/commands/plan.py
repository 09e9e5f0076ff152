"""``cluster-sim plan``: a search for the fastest parallel plans that fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from cluster_sim.progress import progress
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import CatalogueInputs, ModelOnCluster
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from experiments.cli.output.printing import print_table
from topologies.options import option
from topologies.units import format_seconds
from workloads.training.frameworks.conditions import Conditions
from workloads.training.plan.fields import SEARCHED
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from workloads.search import Search


@dataclass(frozen=True)
class SearchInputs(Conditions):
    """The extent of the search, and the plans that it shows."""

    top: int = field(default=10, metadata=option("Number of plans to show", least=1))
    finalists: int | None = field(
        default=None,
        metadata=option("Number of plans to simulate in full", least=1, default="twice --top"),
    )
    each: str | None = field(
        default=None,
        metadata=option(
            "Keep only the best plan for each combination of these fields, such as tp,pp or "
            "recompute",
            metavar="FIELDS",
        ),
    )
    objective: str = field(
        default="time",
        metadata=option(
            "Quantity by which simulated plans are ranked", choices=("time", "cost", "energy")
        ),
    )
    memory_margin: float = field(
        default=0.0,
        metadata=option("Share of a rank's memory that a plan must leave free, such as 0.1"),
    )
    lnc: int | None = field(
        default=None,
        metadata=option("Physical cores of one logical NeuronCore (Trainium2 and 3)"),
    )
    best: Path | None = field(
        default=None,
        metadata=option(
            "Write the best plan to this file, for train --plan",
            metavar="FILE.yaml",
            recorded=False,
        ),
    )


def plan(
    inputs: ModelOnCluster,
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
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Search for the fastest parallel plans that fit in memory.

    Of the plans that fit, each that may be among the best is estimated; the best are simulated in
    full and ranked. Stated fields of the plan are kept, and the others are searched.
    """
    catalogue = catalogue_inputs.read(inputs.cluster)
    result = _search(inputs, stated, how, catalogue, call)

    from experiments.reports.plan import document, write
    from workloads.training.plan.plan_file import write_plan

    if how.best is not None:
        write_plan(result.finalists[0].plan, how.best)
    rankings = sure.rank(
        lambda moved: _first_s(result, inputs, moved, call.engine),
        catalogue,
        quiet=call.quiet,
        what=f"the first plan's step of {format_seconds(result.finalists[0].iteration_s)}",
    )
    call.answer(
        lambda: document(result, how.top, inputs.model),
        show=lambda: _print(result, how.top, inputs.model),
        write=lambda run: write(run, result, how.top, inputs.model),
        rankings=rankings,
    )


def _first_s(search: Search, inputs: ModelOnCluster, catalogue: Catalogue, engine: str) -> float:
    """Time of a step of the best plan under another catalogue [s]."""
    from workloads.training.iteration import iteration

    cluster, best = inputs.read_cluster(catalogue), search.finalists[0]
    return iteration(inputs.read_model(), cluster, best.plan, engine=engine).iteration_s


def _search(
    inputs: ModelOnCluster,
    stated: Mapping[str, Any],
    how: SearchInputs,
    catalogue: Catalogue,
    call: Invocation,
) -> Search:
    from workloads.search import search

    def watch(items: Sequence[Any], what: str) -> Iterable[Any]:
        return progress(items, what, quiet=call.quiet)

    kept = {name: value for name, value in stated.items() if name != "global_batch"}
    cluster = inputs.read_cluster(catalogue)
    kept["framework"] = how.framework_text(kept, cluster)
    return search(
        inputs.read_model(),
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


def _print(search: Search, top: int, model: str) -> None:
    from experiments.reports.plan import train_command
    from experiments.reports.plan_text import headline, remarks, shared, sifted, table

    print_table(headline(search), *table(search, top), left=1)
    click.echo(shared(search, top))
    print_table("", *sifted(search))
    for line in (*remarks(search), f"Run the first: {train_command(search, model)}"):
        click.echo(line)
