"""``cluster-sim train``: one optimizer step of a model on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from cluster_sim.progress import progress_bars
from experiments.cli.options.from_fields import Stated
from experiments.cli.options.inputs import Invocation, PricedInputs, SensitivityInputs, TrainedModel
from experiments.cli.output.printing import (
    print_paragraphs,
    print_table,
    print_text,
    print_whole_job,
)
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from experiments.reports.certainty import price_sentences
from experiments.reports.formatting import idle_sentences, table_text
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.support.errors import InputError, check_choice
from topologies.support.options import setting
from topologies.support.units import format_seconds
from workloads.models.model import PREDICTION
from workloads.options.job import TokensInputs
from workloads.training.frameworks.conditions import Conditions
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from experiments.validation.reading.tool_outputs import MeasuredSteps
    from workloads.search.choice import When
    from workloads.training.detail import Detail
    from workloads.training.iteration import Iteration
    from workloads.training.nodes import Drain
    from workloads.training.plan.other_tools import OtherPlan


LEVELS = ("auto", "chunk", "flow", "collective", "rank-vector")


@dataclass(frozen=True)
class PlanInputs(Conditions):
    """File of a plan, its chips, and conditions of the run."""

    chips: int | None = setting(
        None, "Chips that the plan uses, the first of the cluster", least=1, default="all of them"
    )

    lnc: int | None = setting(None, "Physical cores of one logical NeuronCore (Trainium2 and 3)")
    plan: Path | None = setting(
        None,
        "Plan from a file: a field on each line, or arguments of Megatron-LM, YAML of NeMo, NxD "
        "Training, axolotl or MaxText, TOML of torchtitan, JSON of DeepSpeed, or a recipe in "
        "Python as 'CONFIG=llama3_8b recipes.py'. Options take precedence",
        metavar="FILE",
    )

    def fields(self, stated: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
        """Return the fields of the plan that file, options and conditions state together."""
        from workloads.training.usual_plan import runnable_fields

        plan_fields = {**(runnable_fields(self.plan, cluster) if self.plan else {}), **stated}
        written = {**plan_fields, "chips": self.chips}
        return {**plan_fields, "framework": self.framework_text(written, cluster)}

    def file_beside(self, step: Iteration) -> OtherPlan | None:
        """Return what the file of the plan says beside the step that it gave; None for no file."""
        from workloads.training.plan.other_tools import read_any_plan
        from workloads.training.write_other_tools import beside_the_plan

        filed = read_any_plan(self.plan) if self.plan else None
        return filed and beside_the_plan(filed, step.plan, step.model, step.cluster)


@dataclass(frozen=True)
class RunInputs:
    """Level of detail at which a step is simulated, and its disturbances."""

    level: str = setting("auto", "Level of detail of the simulation", choices=LEVELS)
    unfolded: bool = setting(
        False, "Simulate every rank, instead of one of each set of equal ranks"
    )
    allow_oversized: bool = setting(False, "Simulate even a plan that does not fit in memory")
    jitter: str = setting(
        "",
        "Standard deviation of kernel times over their mean, such as 0.01; or causes of uneven "
        "chips, such as typical or chips,hosts (`cluster-sim list jitter`)",
        metavar="NUMBER|CAUSES",
    )
    straggler: tuple[str, ...] = setting(
        (),
        "Slow rank, such as 17:1.2 for one that takes 1.2 times as long; may be repeated",
        metavar="RANK:FACTOR",
    )
    fault: tuple[str, ...] = setting(
        (),
        "Cable, adapter, chip, server, or resource by its name in the trace, that dies or "
        "slows down, such as cable:0-1@0s:slow=1/2 or engine:0@1ms:dead; may be repeated",
        metavar="RESOURCE@TIME:dead|slow=P/Q",
    )
    nodes: Path | None = setting(
        None,
        "Measured speed of each node, in the order of ranks: columns node and tflops, speed or "
        "time_s for kernels, within_gb_s or between_gb_s for collectives. Says which nodes to "
        "drain first, and what each costs the step",
        metavar="FILE.csv",
    )
    later_stages: str = setting(
        "",
        "Cluster with chips of another kind for the later stages of the pipeline, or several "
        "clusters, A,B; layers are divided by the chips' speed and memory",
        metavar="CLUSTER",
    )
    iterations: int = setting(
        1,
        "Steps to simulate in a row, whose mean is the result; with causes of jitter, steps to "
        "draw, whose median is the result",
        least=1,
        most=1000,
    )
    chakra: Path | None = setting(
        None,
        "Write the work of every rank as Chakra .et files, with --unfolded",
        metavar="DIR",
        recorded=False,
    )
    explain: bool = setting(
        False, "Show the steps of a rank and the source of every number", recorded=False
    )

    def __post_init__(self) -> None:
        check_choice("--level", self.level, LEVELS)
        others = {"--jitter": self.jitter, "--straggler": self.straggler, "--fault": self.fault}
        others["--later-stages"] = self.later_stages
        beside = next((name for name, stated in others.items() if stated), None)
        if self.nodes is not None and beside:
            raise InputError(
                f"--nodes {self.nodes} is for a step on chips of one kind, disturbed by nothing "
                f"else. Leave {beside} out."
            )

    def detail(self, call: Invocation) -> Detail:
        """Return the detail of a step, and what disturbs it."""
        from cluster_sim.hardware.faults import parse_fault
        from workloads.training.detail import Detail
        from workloads.training.execution.jitter import disturbance

        return Detail(
            engine=call.engine,
            folded=not self.unfolded,
            allow_oversized=self.allow_oversized,
            iterations=self.iterations,
            faults=[parse_fault(text) for text in self.fault],
            disturbed=disturbance(self.jitter, call.seed, self.straggler),
            level=self.level,
        )

    def drained(self, step: Iteration, call: Invocation) -> Drain | None:
        """Return which measured nodes to take out first; None where none were measured."""
        if self.nodes is None:
            return None
        from workloads.training.nodes import drained, read_nodes

        nodes = read_nodes(self.nodes)
        with progress_bars(quiet=call.quiet):
            return drained(step, nodes, self.detail(call))

    @property
    def later(self) -> list[str]:
        """Names of the clusters of the later stages."""
        return cluster_names(self.later_stages) if self.later_stages else []


@dataclass(frozen=True)
class BesideInputs(TokensInputs):
    """Measured step to compare with, and the length of a whole job."""

    compare: str | None = setting(
        None,
        "Measured time of the step, such as 3.2s, or a file with it: a log of Megatron-LM, NeMo, "
        "torchtitan, DeepSpeed, MaxText or Transformers, or the JSON of neuron-monitor; two of "
        "them, as in 11.2s,12.9s, are compared with each other too",
        metavar="TIME|FILE",
    )

    def measured(self) -> list[MeasuredSteps]:
        """Read the measured steps of one run or of two, the later one last; empty without one."""
        if self.compare is None:
            return []
        from experiments.validation.reading.tool_outputs import read_runs

        return read_runs(self.compare)


@dataclass(frozen=True)
class AskedStep:
    """Options of one training step."""

    inputs: TrainedModel
    stated: Mapping[str, Any]  # fields of the plan
    plan: PlanInputs
    how: RunInputs = RunInputs()

    def run(self, catalogue: Catalogue, call: Invocation, search: When = "compared") -> Iteration:
        """Simulate the step of the options; where these leave the plan open, it may be searched."""
        from workloads.remarks import remarks
        from workloads.training.iteration import iteration
        from workloads.training.plan.stages import check_chips
        from workloads.training.usual_plan import complete, is_open

        inputs, plan, how = self.inputs, self.plan, self.how
        model, cluster = inputs.read_model(), inputs.read_cluster(catalogue)
        if plan.chips is not None:
            check_chips(plan.chips, cluster)
        detail, fields = how.detail(call), plan.fields(self.stated, cluster)
        size = {"lnc": plan.lnc, "chips": plan.chips}
        if how.later_stages:
            from workloads.search.unlike import unlike_step

            clusters = [cluster, *(machine(name, catalogue=catalogue) for name in how.later)]
            fields["chips"] = plan.chips
            with progress_bars(quiet=call.quiet) as report:
                step = unlike_step(model, clusters, fields, detail, lnc=plan.lnc, progress=report)
            return replace(step, tell=remarks)
        if is_open(fields) and not (plan.plan or how.allow_oversized):
            from workloads.search.choice import usual_or_searched  # costly, and seldom needed

            chosen, choice = usual_or_searched(
                fields, model, cluster, search=search, watch=call.watch, **size
            )
        else:
            chosen, choice = complete(fields, model, cluster, **size), None
        with progress_bars(quiet=call.quiet) as report:
            part = plan.chips is not None
            step = iteration(model, cluster, chosen, detail, partial=part, progress=report)
        return replace(step, choice=choice, tell=remarks)


def train(
    inputs: TrainedModel,
    stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)],
    plan: PlanInputs,
    how: RunInputs,
    beside: BesideInputs,
    sure: SensitivityInputs,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Simulate one optimizer step and say where its time goes.

    Fields of the plan that are not stated have defaults; --dp fills the cluster. Where no degree
    is stated and that plan does not fit in memory, the plan is searched. Several clusters, written
    --cluster A,B,C, are compared side by side.
    """
    from experiments.reports.training import document

    step_options = AskedStep(inputs, stated, plan, how)
    if len(cluster_names(inputs.cluster)) > 1:
        _side_by_side(step_options, beside, sure, catalogue_inputs, call)
        return
    catalogue = catalogue_inputs.watched(inputs.cluster, *how.later)
    measured, step = beside.measured(), step_options.run(catalogue, call)
    quietly = replace(call, quiet=True)  # the ranking shows a progress bar of its own
    # Other numbers of the catalogue change the time of this plan, not which plan it is.
    same = replace(step_options, stated={name: getattr(step.plan, name) for name in PLAN_FIELDS})
    rankings = sure.rank(
        lambda moved: same.run(moved, quietly).iteration_s,
        catalogue,
        call,
        f"the step of {format_seconds(step.iteration_s)}",
    )
    if how.chakra is not None:
        from workloads.traces.chakra import training_recording, write_chakra

        write_chakra(training_recording(step), how.chakra, name=step.model.name)
    filed = plan.file_beside(step)
    answered = {**document(step, call.engine), **job_of(step, beside, call)}
    answered |= _compared(step, measured)
    drain = how.drained(step, call)
    answered |= drain.document() if drain else {}
    answered |= catalogue_inputs.other_prices(answered, catalogue, inputs.cluster)
    more = {**(_explained(step) if how.explain else {}), **(filed.document() if filed else {})}
    call.answer(
        {**answered, **more},
        show=lambda results: _print(step, results, filed, drain),
        write=lambda directory, _: _write(directory, step, answered, drain),
        rankings=rankings,
    )


def job_of(step: Iteration, length: TokensInputs, call: Invocation) -> dict[str, Any]:
    """Return length, price and energy of the job of a step; empty without its length."""
    if not length.length:
        return {}
    from workloads.job.front import whole_job

    return whole_job(step, call.seed, **length.length)


def _side_by_side(
    step_options: AskedStep,
    beside: BesideInputs,
    sure: SensitivityInputs,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Answer for several clusters, the first of which may have a measured step."""
    from experiments.reports.training import document

    inputs, stated = step_options.inputs, step_options.stated
    plan, how = step_options.plan, step_options.how
    names = cluster_names(inputs.cluster)
    measured = beside.measured()
    if measured and (len(measured) > 1 or not (plan.plan or "global_batch" in stated)):
        raise InputError(
            f"--compare {beside.compare}: beside several clusters it is one step, measured on "
            "the first. State its --global-batch too."
        )
    first: list[tuple[dict[str, Any], Iteration]] = []

    def answer(name: str, catalogue: Catalogue, **batch: int) -> dict[str, Any]:
        """Document of the step on one of the clusters, perhaps of another batch."""
        there = replace(inputs, cluster=name)
        step = AskedStep(there, {**stated, **batch}, plan, how).run(catalogue, call)
        row = {**document(step, call.engine), **job_of(step, beside, call)}
        return {**row, **_measured_there(measured, first, step, row.get("remarks", []))}

    alone = {"--sensitivity": sure.sensitivity, "--chakra": how.chakra}
    alone |= {"--explain": how.explain, "--nodes": how.nodes}
    later = f", with later stages on {how.later_stages}" if how.later_stages else ""
    title = f"{inputs.model}: one optimizer step on {len(names)} clusters{later}"
    read = catalogue_inputs.read_side_by_side
    answer_beside("train", title, names, answer, alone, read, call.answer)


def _measured_there(
    measured: list[MeasuredSteps],
    first: list[tuple[dict[str, Any], Iteration]],
    step: Iteration,
    remarks: list[str],
) -> dict[str, Any]:
    """Return what a step measured on the first cluster says of the step on one of several."""
    if not measured:
        return {}
    from experiments.validation.comparison import carried_over
    from workloads.remarks import comparison_sentence

    if not first:
        first.append((_compared(step, measured)["compared"], step))
        sentence = comparison_sentence(first[0][0], step)
        return {"compared": first[0][0], "remarks": [*remarks, sentence]}
    by_first = carried_over(*first[0], step)
    time, *ends = (format_seconds(by_first[name]) for name in ("iteration_s", "low", "high"))
    sentence = (
        f"If its step is as far from the prediction as the one measured on "
        f"{by_first['measured_on']}, it takes {time} (80 %: {' – '.join(ends)})."
    )
    return {"by_measured": by_first, "remarks": [*remarks, sentence]}


def _compared(step: Iteration, measured: list[MeasuredSteps]) -> dict[str, Any]:
    """Return the key ``compared`` of the answer; empty without a measured step."""
    if not measured:
        return {}
    from experiments.validation.comparison import compared_steps

    return {"compared": compared_steps(measured, step)}


def _print_left_out(step: Iteration, filed: OtherPlan | None) -> None:
    from workloads.remarks import left_out_framework

    for sentence in filter(None, (filed and filed.sentence, left_out_framework(step, filed))):
        click.echo(sentence)
    if step.model.left_out:
        trains = any(PREDICTION in words for words in step.model.left_out)
        remedy = " --prediction-heads trains such layers." if trains else ""
        click.echo(f"Left out of {step.model.name}: {', '.join(step.model.left_out)}.{remedy}")


def _print(
    run: Iteration, answered: Mapping[str, Any], filed: OtherPlan | None, drain: Drain | None
) -> None:
    from experiments.reports.training import (
        STAGE_HEADINGS,
        beside_rows,
        headline,
        network_note,
        packed,
        results,
        shares,
        slowed_note,
        slowed_rows,
        stage_rows,
    )
    from workloads.remarks import assumed_sentences
    from workloads.training.usual_plan import describe

    _print_left_out(run, filed)
    if filed:
        stack = f", framework {run.plan.framework}" if run.plan.framework else ""
        batch = f"{run.plan.global_batch:,} × {run.plan.seq:,} tokens{packed(run.plan)}"
        print_text(f"Read as {describe(run.plan)}, {batch} in {run.plan.precision}{stack}.")
    # A file has all fields of its form, so that those without effect are no news.
    fields = filed.fields if filed else {}
    idle = {name: why for name, why in run.without_effect.items() if name not in fields}
    for line in idle_sentences(idle):
        click.echo(line)
    print_table(headline(run), ["result", "value"], results(run), left=2)
    remarks = answered.get("remarks", ())
    for line in (*price_sentences(answered), *remarks, *assumed_sentences(run)):
        print_text(line)
    if slowed := slowed_rows(run):
        of_faults = ["collectives that cross a fault", "groups", "calls", "without it", "with it"]
        print_table("", of_faults, slowed)
        print_text(slowed_note(run))
    if run.unlike:
        print_table("", STAGE_HEADINGS, stage_rows(run), left=2)
        print_table("", ["the same step", "chips", "time", "ratio"], beside_rows(run))
        print_text(network_note(run))
    columns = ["where the time goes, mean over ranks", "time", "share"]
    parts = [(part, format_seconds(s), f"{share:.1%}") for part, s, share in shares(run)]
    print_table("", columns, parts)
    grades = ", ".join(f"{name} {grade}" for name, grade in run.provenance.items())
    click.echo(f"Inputs: {grades}.")
    if "steps" in answered:
        _print_explained(answered)
    print_whole_job(answered)
    if compared := answered.get("compared"):
        _print_compared(compared, run)
    if drain:
        title, columns, rows = _drain_table(drain)
        print_table(title, columns, rows)
        print_text(drain.note)


def _drain_table(drain: Drain) -> tuple[str, list[str], list[list[str]]]:
    """Return title, headings and rows of the nodes in the order in which to drain them."""
    kinds = list(drain.nodes.slower)
    columns = ["drained", *(f"{kind} slower" for kind in kinds)]
    columns += ["alone costs", "step", "gain", "80 % from", "to"]
    none = ["" for _ in kinds]
    rows = [["none", *none, "", format_seconds(drain.step_s), "", "", ""]]
    for number, each in enumerate(drain.order):
        gains = (each.gain_s, each.gain_low_s, each.gain_high_s)
        shares = [f"{100 * share:+.1f} %" for share in each.slower.values()]
        alone, *parts = (f"{100 * time / drain.step_s:.1f} %" for time in (each.alone_s, *gains))
        name = f"{'and ' * (number > 0)}{each.node}"
        rows.append([name, *shares, alone, format_seconds(each.step_s), *parts])
    return f"{len(drain.nodes.names):,} measured nodes", columns, rows


def _measured_beside(
    compared: Mapping[str, Any], run: Iteration
) -> tuple[str, list[dict[str, Any]]]:
    """Return title and rows of the table of a measured step beside the predicted one."""
    before, sources = compared.get("before"), list[str]()
    rows: dict[str, tuple[Any, ...]] = {}
    for each, name in ((before, "measured first"), (compared, "measured then")):
        if each is None:
            continue
        source, row = "as typed", (each["measured_s"], None, None)
        if each["source"]:
            source = f"median of {each['steps']} by {each['tool']} in {each['source']}"
            row = (each["measured_s"], each["p10_s"], each["p90_s"])
        sources += [source] * (source not in sources)
        rows[name if before else "measured"] = row
    rows["predicted"] = (run.iteration_s, run.interval.low, run.interval.high)
    title = f"Measured step{'s' * bool(before)}, {'; '.join(sources)}"
    keys = ("step_s", "low_s", "high_s")
    return title, [{"run": name, **dict(zip(keys, rows[name], strict=True))} for name in rows]


def _print_compared(compared: Mapping[str, Any], run: Iteration) -> None:
    from workloads.remarks import comparison_sentence

    title, rows = _measured_beside(compared, run)
    cells = [
        [name, *("" if time_s is None else format_seconds(time_s) for time_s in times)]
        for name, *times in map(dict.values, rows)
    ]
    print_table(title, ["", "step", "80 % from", "to"], cells)
    print_text(comparison_sentence(compared, run))


def _write(
    directory: Run, step: Iteration, results: Mapping[str, Any], drain: Drain | None
) -> None:
    from experiments.reports.training import write
    from workloads.remarks import comparison_sentence

    write(directory, step, results)
    if compared := results.get("compared"):
        title, rows = _measured_beside(compared, step)
        note = comparison_sentence(compared, step)
        directory.table("compared", rows, title=title, note=note)
    if drain:
        _, columns, cells = _drain_table(drain)
        shown = [dict(zip(columns, row, strict=True)) for row in cells]
        directory.table("nodes", shown, title="Nodes to drain", note=drain.note)


def _explained(run: Iteration) -> dict[str, Any]:
    from workloads.training.explain import input_table, step_table

    return {"steps": step_table(run), "inputs": input_table(run)}


def _print_explained(tables: Mapping[str, Any]) -> None:
    import pandas as pd

    steps = pd.DataFrame(tables["steps"])
    print_table("Steps of one rank of each stage", *table_text(steps), left=3)
    # A table would need more columns than fit side by side, and part a number from its note.
    paragraphs = [
        (
            "{part}.{quantity} {value}, {grade}".format_map(row),
            "[{source}] {note}".format_map(row).rstrip(),
        )
        for row in tables["inputs"]
    ]
    print_paragraphs("Numbers behind them, each with its source", paragraphs)
