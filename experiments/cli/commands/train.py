"""``cluster-sim train``: one optimizer step of a model on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from cluster_sim.progress import progress_bars
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import CatalogueInputs, ModelOnCluster
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from experiments.cli.output.printing import print_paragraphs, print_table, print_text
from experiments.cli.output.side_by_side import cluster_names
from experiments.reports.assumed import left_out_framework
from experiments.reports.idle import idle_sentences
from topologies.options import option
from workloads.training.frameworks.conditions import Conditions
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from topologies.files.table import Table
    from workloads.training.iteration import Iteration
    from workloads.training.plan.other_tools import OtherPlan

LEVELS = ("auto", "chunk", "flow", "collective", "rank-vector")


@dataclass(frozen=True)
class PlanInputs(Conditions):
    """File with fields of a plan, the chips it has, and conditions that a plan does not say."""

    chips: int | None = field(
        default=None,
        metadata=option(
            "Chips that the plan uses, the first of the cluster", least=1, default="all of them"
        ),
    )

    lnc: int | None = field(
        default=None,
        metadata=option("Physical cores of one logical NeuronCore (Trainium2 and 3)"),
    )
    plan: Path | None = field(
        default=None,
        metadata=option(
            "Plan from a file: fields one a line, or arguments of Megatron-LM, YAML of NeMo or NxD "
            "Training, TOML of torchtitan, JSON of DeepSpeed. Options take precedence",
            metavar="FILE",
        ),
    )

    def fields(self, stated: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
        """Return the fields of the plan that file, options and conditions state together."""
        from workloads.training.frameworks.framework import framework
        from workloads.training.plan.plan_file import read_any_plan

        filed = read_any_plan(self.plan) if self.plan else None
        plan_fields = {**(filed.fields if filed else {}), **stated}
        implied = filed.implied if filed and "framework" not in stated else ""
        if implied and not framework(implied).trains_on(cluster):
            del plan_fields["framework"]  # the answer says so
        return {**plan_fields, "framework": self.framework_text(plan_fields, cluster)}


@dataclass(frozen=True)
class RunInputs:
    """Level of detail at which a step is simulated, and its disturbances."""

    level: str = field(
        default="auto", metadata=option("Level of detail of the simulation", choices=LEVELS)
    )
    unfolded: bool = field(
        default=False,
        metadata=option("Simulate every rank, instead of one of each set of equal ranks"),
    )
    allow_oversized: bool = field(
        default=False, metadata=option("Simulate even a plan that does not fit in memory")
    )
    jitter: float = field(
        default=0.0,
        metadata=option("Standard deviation of kernel times, relative to their mean"),
    )
    straggler: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Slow rank, such as 17:1.2 for one that takes 1.2 times as long; may be repeated",
            metavar="RANK:FACTOR",
        ),
    )
    fault: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Cable, adapter, chip, server, or resource by its name in the trace, that dies or "
            "slows down, such as cable:0-1@0s:slow=1/2 or engine:0@1ms:dead; may be repeated",
            metavar="RESOURCE@TIME:dead|slow=P/Q",
        ),
    )
    iterations: int = field(
        default=1,
        metadata=option(
            "Steps to simulate in a row; results are the mean of a step", least=1, most=1000
        ),
    )
    chakra: Path | None = field(
        default=None,
        metadata=option(
            "Write the work of every rank as Chakra .et files, with --unfolded",
            metavar="DIR",
            recorded=False,
        ),
    )
    explain: bool = field(
        default=False,
        metadata=option("Show the steps of a rank and the source of every number", recorded=False),
    )

    def __post_init__(self) -> None:
        from topologies.errors import InputError, suggestion

        if self.level not in LEVELS:
            near = suggestion(self.level, LEVELS)
            raise InputError(f"--level {self.level!r} is none of {', '.join(LEVELS)}.{near}")


def train(
    inputs: ModelOnCluster,
    stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)],
    plan: PlanInputs,
    how: RunInputs,
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Simulate one optimizer step and say where its time goes.

    Fields of the plan that are not stated have defaults; --dp fills the cluster. Several clusters,
    written --cluster A,B,C, are compared side by side.
    """
    from experiments.reports.training import write
    from topologies.units import format_seconds

    catalogue = catalogue_inputs.read(*cluster_names(inputs.cluster))
    if len(cluster_names(inputs.cluster)) > 1:
        _side_by_side(inputs, stated, plan, (how, sure), catalogue, call)
        return
    step = _run(inputs, stated, plan, how, catalogue, call)
    quietly = replace(call, quiet=True)  # the ranking shows a progress bar of its own
    rankings = sure.rank(
        lambda moved: _run(inputs, stated, plan, how, moved, quietly).iteration_s,
        catalogue,
        quiet=call.quiet,
        what=f"the step of {format_seconds(step.iteration_s)}",
    )
    filed = _filed(plan.plan)
    if how.chakra is not None:
        _write_chakra(step, how.chakra)
    call.answer(
        lambda: {**_document(step, how, call), **(filed.document() if filed else {})},
        show=lambda: _print(step, how.explain, filed),
        write=lambda directory: write(directory, step, call.engine),
        rankings=rankings,
    )


def _side_by_side(
    inputs: ModelOnCluster,
    stated: Mapping[str, Any],
    plan: PlanInputs,
    others: tuple[RunInputs, SensitivityInputs],
    catalogue: Catalogue,
    call: Invocation,
) -> None:
    """Simulate the step on several clusters, and show them in one table."""
    from experiments.cli.output import side_by_side as beside
    from experiments.reports.training import document
    from topologies.errors import InputError

    how, sure = others
    single = {"--sensitivity": sure.sensitivity, "--chakra": how.chakra, "--explain": how.explain}
    for name, value in single.items():
        if value:
            raise InputError(f"{name} is for one cluster, not several. Name one.")

    def answer(name: str) -> list[dict[str, Any]]:
        step = _run(replace(inputs, cluster=name), stated, plan, how, catalogue, call)
        return [{**document(step, call.engine), "cluster": name}]

    rows = beside.each(beside.cluster_names(inputs.cluster), answer)
    title = f"{inputs.model}: one optimizer step on {len(rows)} clusters"
    call.answer(
        lambda: beside.document(rows),
        lambda: beside.show_steps(title, rows),
        lambda run: beside.write_steps(run, title, rows),
    )


def _filed(path: Path | None) -> OtherPlan | None:
    """Read a plan file with the name of its tool and the keys that are ignored; None without."""
    from workloads.training.plan.plan_file import read_any_plan

    return read_any_plan(path) if path else None


def _print_left_out(step: Iteration, filed: OtherPlan | None) -> None:
    for sentence in filter(None, (filed and filed.sentence, left_out_framework(step, filed))):
        click.echo(sentence)
    if step.model.left_out:
        click.echo(f"Left out of {step.model.name}: {', '.join(step.model.left_out)}.")


def _write_chakra(step: Iteration, directory: Path) -> None:
    from workloads.traces.chakra_export import write_chakra
    from workloads.traces.from_training import training_recording

    write_chakra(training_recording(step), directory, name=step.model.name)


def _document(step: Iteration, how: RunInputs, call: Invocation) -> dict[str, Any]:
    from experiments.reports.training import document

    return {**document(step, call.engine), **(_explained(step) if how.explain else {})}


def _run(
    inputs: ModelOnCluster,
    stated: Mapping[str, Any],
    plan: PlanInputs,
    how: RunInputs,
    catalogue: Catalogue,
    call: Invocation,
) -> Iteration:
    """Simulate the step of the options."""
    from cluster_sim.hardware.fault_text import parse_fault
    from experiments.cli.output.remedies import remedied
    from workloads.training.execution.jitter import disturbance
    from workloads.training.iteration import iteration
    from workloads.training.plan.checks import check_chips
    from workloads.training.usual_plan import complete

    model, cluster = inputs.read_model(), inputs.read_cluster(catalogue)
    if plan.chips is not None:
        check_chips(plan.chips, cluster)
    faults = [parse_fault(text) for text in how.fault]
    disturbed = disturbance(how.jitter, call.seed, how.straggler)
    fields = plan.fields(stated, cluster)
    hints = remedied(fields, model, cluster, lnc=plan.lnc)
    with hints, progress_bars(quiet=call.quiet) as report:
        return iteration(
            model,
            cluster,
            complete(fields, model, cluster, lnc=plan.lnc, chips=plan.chips),
            partial=plan.chips is not None,
            engine=call.engine,
            folded=not how.unfolded,
            allow_oversized=how.allow_oversized,
            iterations=how.iterations,
            faults=faults,
            disturbed=disturbed,
            level=how.level,
            progress=report,
        )


def _print(run: Iteration, explain: bool, filed: OtherPlan | None) -> None:
    from experiments.reports.assumed import assumed_sentences
    from experiments.reports.training import (
        breakdown_rows,
        headline,
        results,
        slowed_note,
        slowed_rows,
        without_effect,
    )

    _print_left_out(run, filed)
    for line in idle_sentences(without_effect(run)):
        click.echo(line)
    print_table(headline(run), ["result", "value"], results(run), left=2)
    for line in assumed_sentences(run):
        print_text(line)
    if slowed := slowed_rows(run):
        of_faults = ["collectives that cross a fault", "groups", "calls", "without it", "with it"]
        print_table("", of_faults, slowed)
        print_text(slowed_note(run))
    columns = ["where the time goes, mean over ranks", "time", "share"]
    print_table("", columns, breakdown_rows(run))
    grades = ", ".join(f"{name} {grade}" for name, grade in run.provenance.items())
    click.echo(f"Inputs: {grades}.")
    if explain:
        _print_explained(run)


def _explained(run: Iteration) -> dict[str, Any]:
    from workloads.training.explain import input_table, step_table

    return {"steps": step_table(run).documents(), "inputs": input_table(run).documents()}


def _print_explained(run: Iteration) -> None:
    from experiments.reports.formatting import table_text
    from workloads.training.explain import input_table, step_table

    print_table("Steps of one rank of each stage", *table_text(step_table(run)), left=3)
    print_paragraphs(
        "Numbers behind them, each with its source", input_paragraphs(input_table(run))
    )


def input_paragraphs(numbers: Table) -> Iterator[tuple[str, str]]:
    """Yield each number of the catalogue on a line, and its source and note for the lines below.

    A table would need more columns than fit side by side, and part a number from its note.
    """
    for part, quantity, value, grade, source, note in numbers.rows():
        yield f"{part}.{quantity} {value}, {grade}", f"[{source}] {note}".rstrip()
