"""``cluster-sim plan``: a search for the fastest parallel plans that fit in memory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from experiments.cli.commands.train import job_of
from experiments.cli.options.from_fields import Stated, as_options
from experiments.cli.options.inputs import (
    Invocation,
    PricedInputs,
    SensitivityInputs,
    TrainedModel,
    target_of,
)
from experiments.cli.output.printing import print_rows, print_table, print_text, print_whole_job
from experiments.cli.output.side_by_side import answer_beside, cluster_names
from experiments.reports.certainty import price_sentences
from experiments.reports.formatting import Column, number, option_name
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from topologies.support.files.writing import check_target, whole_file
from topologies.support.options import setting
from topologies.support.units import format_seconds
from workloads.options.job import LEAST_DAYS, MOST_DAYS, TokensInputs
from workloads.training.frameworks.conditions import Conditions
from workloads.training.plan.plan import SEARCHED, ParallelPlan

if TYPE_CHECKING:
    from workloads.search.search import Estimates, Search
    from workloads.training.write_other_tools import Tool


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
    chips: int | None = setting(
        None, "Chips that plans use, the first of the cluster", least=1, default="all of them"
    )
    days: float | None = setting(
        None,
        "Days within which the job of --tokens must end: plans are searched on the fewest units "
        "of the machine that manage it, at most COUNT of --cluster NAME:COUNT; with --budget, on "
        "the number of units that trains most in these days",
        least=LEAST_DAYS,
        most=MOST_DAYS,
    )
    best: Path | None = setting(
        None,
        "Write the best plan to this file, which is replaced, for train --plan",
        metavar="FILE.yaml",
        recorded=False,
    )
    write: str | None = setting(
        None,
        "Write the best plan as the file that another tool launches: megatron, nemo, torchtitan, "
        "deepspeed, nxd or maxtext; plans are searched with the tool's framework. PATH is a file, "
        "which is replaced, or a folder (default the current one), where no file is replaced",
        metavar="TOOL[:PATH]",
        recorded=False,
    )
    rank: int | None = setting(
        None,
        "Place in the ranking of the plan that --best and --write write",
        least=1,
        default="1, or the first that the tool can run",
        recorded=False,
    )

    @property
    def alone(self) -> dict[str, Any]:
        """Options that are for one cluster alone."""
        return {"--with": self.with_plan, "--best": self.best, "--write": self.write}

    def __post_init__(self) -> None:
        if self.rank is not None and self.best is None and self.write is None:
            raise InputError(
                f"--rank {self.rank} is the plan that --best or --write writes. State one of them."
            )
        self.check_rank(self.finalists or 2 * self.top)
        if self.best is not None:
            check_target(self.best)
        if self.write is not None:
            self.target()

    def target(self) -> tuple[Tool, Path]:
        """Return the tool and the file of ``--write``."""
        from workloads.training.write_other_tools import tool_named

        tool = tool_named((self.write or "").partition(":")[0])
        return tool, target_of(self.write or "", tool.file)

    def check_rank(self, simulated: int) -> None:
        """Refuse the rank of a plan that is not among those that are simulated."""
        if self.rank is not None and self.rank > simulated:
            raise InputError(
                f"--rank {self.rank}: {simulated} plans are simulated. State a lower rank, or more "
                "--finalists."
            )


def plan(
    inputs: TrainedModel,
    stated: Annotated[
        Mapping[str, Any],
        Stated(
            ParallelPlan,
            defaults={"global_batch": "that of --with; has to be stated without it"},
            without=("stage_layers", "recompute_every"),
            searched=SEARCHED,
        ),
    ],
    how: SearchInputs,
    length: TokensInputs,
    sure: SensitivityInputs,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Search for the fastest parallel plans that fit in memory.

    Of the plans that fit, each that may be among the best is estimated; the best are simulated in
    full and ranked. Stated fields of the plan are kept, and the others are searched. Several
    clusters, written --cluster A,B,C, are compared side by side by their first plans.
    """
    from experiments.reports.plan import document, first_step, write

    names = cluster_names(inputs.cluster)
    if len(names) > 1:

        def answer(name: str, catalogue: Catalogue) -> dict[str, Any]:
            """Document of the first plan on one of the clusters."""
            one, result, job = _Question(inputs, stated, how, catalogue, call).on(name).job(length)
            return {**first_step(result, _as_written(one.inputs, catalogue_inputs)), **job}

        answer_beside(
            *("train", f"{inputs.model}: the best plan on each of {len(names)} clusters", names),
            answer,
            {"--sensitivity": sure.sensitivity, **how.alone},
            *(catalogue_inputs.read_side_by_side, call.answer),
        )
        return
    catalogue = catalogue_inputs.watched(inputs.cluster)
    question, result, job = _Question(inputs, stated, how, catalogue, call).job(length)
    inputs = question.inputs
    rankings = sure.rank(
        lambda moved: _first_s(result, inputs, moved, call.engine),
        catalogue,
        call,
        f"the first plan's step of {format_seconds(result.finalists[0].iteration_s)}",
    )
    words = _as_written(inputs, catalogue_inputs)
    results = {**document(result, how.top, words), **job}
    results |= _written(result, how, words)
    results |= catalogue_inputs.other_prices(results, catalogue, inputs.cluster)
    results |= question.on_fewer(result)
    call.answer(
        results,
        show=lambda _: _print(result, how.top, results),
        write=lambda run, _: write(run, result, how.top, results),
        rankings=rankings,
    )


def _as_written(*inputs: TrainedModel | PricedInputs) -> list[str]:
    """Return the options that inputs stand for, without those that have their defaults."""
    words = []
    for group in inputs:
        for each in fields(group):
            value = getattr(group, each.name)
            for one in value if isinstance(value, tuple) else (value,):
                if one not in (None, each.default):
                    words += [option_name(each.name), str(one)]
    return words


def _written(search: Search, how: SearchInputs, words: Sequence[str]) -> dict[str, Any]:
    """Write the plan of a rank to files; return tool, file, rank, and why it is not the first."""
    from workloads.training.plan.other_tools import plan_yaml

    how.check_rank(len(search.finalists))
    written: dict[str, Any] = {}
    if how.write is not None:
        tool, path = how.target()
        rank, text, why = _first_that_runs(search, how.write.partition(":")[0], how.rank, words)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(text)
        written = {"tool": tool.name, "file": str(path), "rank": rank, "why_not_first": why}
    if how.best is not None:
        with whole_file(how.best) as part:
            part.write_text(plan_yaml(search.finalists[(how.rank or 1) - 1].plan))
    return {"written": written} if written else {}


def _first_that_runs(
    search: Search, tool: str, rank: int | None, words: Sequence[str]
) -> tuple[int, str, str]:
    """Return rank and file of the first plan that a tool can run, and why it is not the first."""
    from experiments.reports.plan import train_command
    from workloads.training.write_other_tools import launch_file

    why = ""
    for place in range(1, 1 + len(search.finalists)) if rank is None else [rank]:
        ranked = search.finalists[place - 1]
        about = [
            f"{search.model.name} on {search.cluster.name}, {search.chips:,} chips: "
            f"{format_seconds(ranked.iteration_s)} a step is predicted by",
            train_command(search, words, place),
        ]
        try:
            return place, launch_file(tool, ranked.plan, search.model, search.cluster, about), why
        except InputError as mistake:
            why = why or str(mistake)
    many = len(search.finalists)
    others = f" Nor does it run any other of the {many} simulated plans." if rank is None else ""
    raise InputError(f"--write {tool}: {why}{others} State the options that it would run.")


@dataclass(frozen=True)
class _Question:
    """Question for the best plans on one cluster."""

    inputs: TrainedModel
    stated: Mapping[str, Any]
    how: SearchInputs
    catalogue: Catalogue
    call: Invocation

    def on(self, cluster: str) -> _Question:
        """Return the same question about another cluster."""
        return replace(self, inputs=replace(self.inputs, cluster=cluster))

    def job(self, length: TokensInputs) -> tuple[_Question, Search, dict[str, Any]]:
        """Search, for a deadline on the fewest units, which the question returned is about."""
        call, inputs, days = self.call, self.inputs, self.how.days
        if days is None:
            result = self.search()
            return self, result, job_of(result.first, length, call)
        from workloads.search.sizes import Offer

        shared = _batch_of_a_job(self.how, self.stated, length) * inputs.read_model().layers
        offer = Offer(
            lambda name: self.on(name).estimates()[0],
            *(inputs.read_cluster(self.catalogue), inputs.cluster, shared, days),
            finish=lambda weighed: weighed.simulate(call.engine, call.watch),
            seed=call.seed,
        )
        sizes = offer.for_job(length.length)
        entries = {"sizes": sizes.document(), "job": sizes.job}
        return self.on(sizes.search.cluster.name), sizes.search, entries

    def estimates(self) -> tuple[Estimates, dict[str, Any], dict[str, Any]]:
        """Return the plans that fit, by their estimates; the user's own fields; and those kept."""
        from workloads.search.search import estimates
        from workloads.training.plan.stages import check_chips

        how, stated, cluster = self.how, self.stated, self.inputs.read_cluster(self.catalogue)
        if how.chips is not None:
            check_chips(how.chips, cluster)
        mine = {} if how.with_plan is None else _own_fields(how.with_plan, stated, cluster)
        kept = {name: mine[name] for name in mine if name not in (*SEARCHED, *OF_ONE_PLAN)}
        kept |= stated
        batch = kept.pop("global_batch", mine.get("global_batch"))
        if batch is None:
            raise InputError(
                "--global-batch is not stated: plans are compared for one batch. State its "
                "sequences, such as --global-batch 512, or a plan with it as --with."
            )
        if how.write is not None and not kept.get("framework"):
            from workloads.training.write_other_tools import own_framework

            kept["framework"] = own_framework(how.write.partition(":")[0], cluster)
        kept["framework"] = how.framework_text(kept, cluster)
        weighed = estimates(
            *(self.inputs.read_model(), cluster, batch),
            stated=kept,
            lnc=how.lnc,
            chips=how.chips,
            objective=how.objective,
            memory_margin=how.memory_margin,
            finalists=how.finalists or 2 * how.top,
            each=[name.strip().replace("-", "_") for name in (how.each or "").split(",") if name],
            watch=self.call.watch,
        )
        return weighed, mine, {**kept, "global_batch": batch}

    def search(self) -> Search:
        """Return the best plans as simulated, with the user's own beside them if it is stated."""
        from workloads.search.search import own_plan
        from workloads.training.frameworks.framework import framework_of
        from workloads.training.usual_plan import complete

        weighed, mine, kept = self.estimates()
        result = weighed.simulate(self.call.engine, self.call.watch)
        if not mine:
            return result
        # What the search has in common: its sequence and ranks of a chip among them, and its
        # framework if that can run the plan.
        model, cluster, best = result.model, weighed.bare, result.finalists[0].plan
        same = {name: getattr(best, name) for name in ("seq", "ranks_per_chip", "global_batch")}
        fields, size = {**kept, **mine, **same}, {"lnc": self.how.lnc, "chips": self.how.chips}
        try:
            plan = complete(fields, model, cluster, **size)
            runs_it = not any(framework_of(best, cluster).lacks(plan))
            fields["framework"] = best.framework if runs_it else framework_of(plan, cluster).text
            plan = complete(fields, model, cluster, **size)
            return replace(result, own_plan=own_plan(result, plan, self.call.engine))
        except InputError as mistake:
            raise InputError(f"your own plan: {mistake}") from None

    def on_fewer(self, search: Search) -> dict[str, Any]:
        """Return the time of a step on fewer scale-up domains, where all of them divide worse."""
        from workloads.search.sizes import divides_well

        # Where a few domains of many are lost, all that are left may be a prime number of them.
        domains, (name, _, count) = search.cluster.domains, self.inputs.cluster.partition(":")
        if count != str(domains) or divides_well(domains) or self.how.chips:
            return {}
        fewer = next(number for number in range(domains - 1, 0, -1) if divides_well(number))
        smaller, alone = f"{name}:{fewer}", replace(self.how, finalists=1, with_plan=None)
        try:
            of_fewer = replace(self, how=alone).on(smaller).search()
        except InputError:
            return {}
        step_s, all_s = (each.finalists[0].iteration_s for each in (of_fewer, search))
        return {"fewer": {"cluster": smaller, "iteration_s": step_s}} if step_s < all_s else {}


def _batch_of_a_job(how: SearchInputs, stated: Mapping[str, Any], length: TokensInputs) -> int:
    """Return the batch of a job with a deadline, and refuse one that is not stated in full."""
    batch = stated.get("global_batch")
    if batch is None or not length.length:
        flag = "--global-batch" if length.length else "--tokens or --budget"
        raise InputError(f"--days {how.days:g} is the time of a whole job: state {flag} too.")
    if how.with_plan is not None or how.chips is not None:
        flag = "--with" if how.chips is None else "--chips"
        raise InputError(f"{flag} is for one size of the cluster. Leave out --days.")
    if how.objective == "energy":
        raise InputError("--objective energy may choose plans too slow for --days. Leave one out.")
    return int(batch)


def _print_sizes(sizes: Mapping[str, Any]) -> None:
    """Print the sizes of a cluster that were tried for a deadline."""
    chips = {row["units"]: f"{row['chips']:,} chips" for row in sizes["rows"]}
    fewest, sure, unit = sizes["fewest"], sizes["sure"], sizes["unit"]
    if usd := sizes["rows"][0].get("budget_usd"):
        text = f"{fewest:,} of {unit} ({chips[fewest]}) train most for at most {usd:,} USD within "
        print_rows(f"{text}{sizes['days']:g} days.", OF_A_BUDGET, sizes["rows"])
        return
    text = f"{fewest:,} of {unit} ({chips[fewest]}) train on {number(sizes['rows'][0]['tokens'])} "
    text += f"tokens within {sizes['days']:g} days by the prediction, "
    text += f"{sure:,} ({chips[sure]})" if sure else "no number that was tried"
    print_rows(f"{text} also at the upper end of its interval.", SIZES, sizes["rows"])
    if untried := sizes["untried"]:
        print_text(
            f"Only {len(sizes['rows'])} numbers were tried: {' to '.join(map(str, untried))} may "
            f"do as well. Name a number, as --cluster {unit}:{untried[0]} without --days."
        )
    elif (smaller := sizes["next_smaller"]) < fewest - 1:
        print_text(
            f"Between {smaller:,} and {fewest:,} no number divides the batch and the layers: a "
            "--global-batch with factors of 3 or 5 allows others."
        )


SIZES = (
    Column("units", "units"),
    Column("chips", "chips"),
    Column("iteration_s", "step"),
    Column("days", "days"),
    Column("days_low", "80 % from", like="days"),
    Column("days_high", "to", like="days"),
    Column("cost_usd", "USD"),
    Column("energy_joules", "energy"),
)
"""Columns of the sizes that were tried."""
OF_A_BUDGET = (*SIZES[:3], Column("tokens", "tokens"), SIZES[3], *SIZES[6:])


def _first_s(search: Search, inputs: TrainedModel, catalogue: Catalogue, engine: str) -> float:
    """Time of a step of the best plan under another catalogue [s]."""
    from workloads.training.iteration import iteration

    cluster, best = inputs.read_cluster(catalogue), search.finalists[0]
    return iteration(inputs.read_model(), cluster, best.plan, engine=engine).iteration_s


OF_ONE_PLAN = ("global_batch", "microbatches", "stage_layers", "recompute_every")
"""Fields that belong to the division of one plan, beside those that are searched."""


def _own_fields(text: str, stated: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the fields of the user's own plan, from a file or from options in one text."""
    from workloads.training.plan.other_tools import field_value
    from workloads.training.usual_plan import runnable_fields

    mine: dict[str, Any] = {}

    def options(stated: Annotated[Mapping[str, Any], Stated(ParallelPlan)]) -> None:
        mine.update(stated)

    words = r"\w+[= :]\w+"
    if re.fullmatch(rf"{words}([, ]+{words})*", text) and not Path(text).is_file():
        raise InputError(
            f"--with {text[:80]!r} is neither a file nor options. Write options as '--tp 8 --pp 4'."
        )
    if not text.lstrip().startswith("-"):
        mine = runnable_fields(Path(text), cluster)
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
                f"is {stated_value}. All plans answer one question: state one of the two."
            )
    return mine


def _print(search: Search, top: int, results: Mapping[str, Any]) -> None:
    from experiments.reports.plan import headline, remarks, shared, sifted, table

    if sizes := results.get("sizes"):
        _print_sizes(sizes)
    print_table(headline(search), *table(search, top), left=1)
    click.echo(shared(search, top))
    print_table("", *sifted(search))
    of_first = (f"Of the first plan: {line}" for line in results.get("remarks", ()))
    for line in (*price_sentences(results), *remarks(search), *of_first):
        print_text(line)
    if fewer := results.get("fewer"):
        saved = 1 - fewer["iteration_s"] / search.finalists[0].iteration_s
        print_text(
            f"{search.cluster.domains} scale-up domains divide into few shapes: on "
            f"{fewer['cluster']} the best plan takes {format_seconds(fewer['iteration_s'])}, "
            f"{saved:.0%} less."
        )
    click.echo(f"Run the first: {results['train']}")
    if written := results.get("written"):
        why = ""
        if written["rank"] > 1 and written["why_not_first"]:
            first, later = (search.finalists[at].iteration_s for at in (0, written["rank"] - 1))
            why = f" It takes {later / first - 1:.1%} longer than the first: "
            why += written["why_not_first"]
        print_text(
            f"Plan {written['rank']} is written for {written['tool']} to {written['file']}, whose "
            f"keys are read back as this plan.{why}"
        )
    print_whole_job(results)
