"""``cluster-sim collective``: time, bandwidth and bound of one collective at one or many sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster_sim.progress import progress
from experiments.cli.commands.collective.idle import check_issued, idle_options
from experiments.cli.commands.collective.inputs import CollectiveInputs, CompareInputs, RankInputs
from experiments.cli.commands.collective.switches import beside_best, tell_switches
from experiments.cli.options.inputs import CatalogueInputs, SeveralMachines
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from experiments.cli.output.printing import print_table
from experiments.reports.idle import idle_entry, idle_sentences

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster_sim.collectives import Group
    from cluster_sim.trace.trace import Trace
    from experiments.cli.commands.collective.groups import Measure
    from experiments.reports.run_directory import Run
    from experiments.validation.reading.nccl_tests import Measured
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.confidence.interval import Interval


SHOWN = (
    ("size_bytes", "size"),
    ("algorithm", "algorithm"),
    ("time_s", "time"),
    ("low", "80 % from"),
    ("high", "to"),
    ("algbw_bytes_per_s", "algbw"),
    ("busbw_bytes_per_s", "busbw"),
    ("lower_bound_s", "lower bound"),
    ("bound", "set by"),
    ("steps", "steps"),
    ("ops", "ops"),
    ("semantics", "semantics"),
)
"""Columns of the printed table."""
UNIT_OF = {"low": "time_s", "high": "time_s", "measured_time_s": "time_s"}
"""Columns with the unit of another column."""


MEASURED_SHOWN = (
    *SHOWN[:5],
    ("measured_time_s", "measured"),
    ("normal", "is"),
    ("error", "error"),
    ("busbw_bytes_per_s", "busbw"),
    ("measured_busbw_bytes_per_s", "measured busbw"),
    *SHOWN[7:9],
)
"""Columns of the printed table with ``--compare``."""


def collective(
    inputs: CollectiveInputs,
    machine: SeveralMachines,
    ranks: RankInputs,
    catalogue_inputs: CatalogueInputs,
    compared: CompareInputs,
    sure: SensitivityInputs,
    call: Invocation,
) -> None:
    """Simulate a collective at one or many sizes.

    The table has the columns of nccl-tests (time, algorithm bandwidth, bus bandwidth) and the lower
    bound that links and memory set. Several clusters, written A,B,C, are compared side by side.
    """
    catalogue = catalogue_inputs.read(*machine.names)
    if len(machine.names) > 1:
        _side_by_side(inputs, machine, ranks, catalogue, (compared, sure), call)
        return
    cluster, groups = _groups(inputs, machine, ranks, catalogue)
    catalogue_inputs.check_used(cluster)
    measured = _read(compared.compare, inputs.op, groups[0].ranks)
    watched = call.out is not None
    sizes, measure = _how_to_measure(inputs, groups, call.engine, watched=watched)
    wanted = sizes or _sizes(inputs.size, measured)
    what = f"{inputs.op} on {machine.name}"
    results = [measure(algorithm) for algorithm in progress(wanted, what, quiet=call.quiet)]
    rows = [
        beside_best(row, inputs, groups, lambda: _best(inputs, groups, call.engine))
        for row, _ in results
    ]
    rows = [_as_issued(row, cluster, inputs.op, inputs.runtime) for row in rows]
    timed = measured is not None
    ends = [_interval(inputs, cluster, groups[0], row, timed=timed) for row in rows]
    rows = [{**row, "low": e.low, "high": e.high} for row, e in zip(rows, ends, strict=True)]
    summary: dict[str, Any] = {}
    if measured is not None:
        crosses = len(groups[0].domains) > 1
        rows, summary["summary"] = _compared(rows, measured, str(compared.compare), crosses)

    def first_s(changed: Catalogue) -> float:
        groups = _groups(inputs, machine, ranks, changed)[1]
        _, measure = _how_to_measure(inputs, groups, call.engine)
        return float(measure(wanted[0])[0]["time_s"])

    idle = idle_options(inputs, ranks, cluster, groups)
    call.answer(
        lambda: {"rows": rows, "interval": ends[0].document(), **summary, **idle_entry(idle)},
        show=lambda: _show(f"{what}, {_who(groups)}", rows, summary, idle),
        write=lambda run: _write(run, rows, results[-1][1], cluster),
        rankings=sure.rank(first_s, catalogue, quiet=call.quiet, what="the time of the first size"),
    )


def _side_by_side(
    inputs: CollectiveInputs,
    machine: SeveralMachines,
    ranks: RankInputs,
    catalogue: Catalogue,
    others: tuple[CompareInputs, SensitivityInputs],
    call: Invocation,
) -> None:
    """Measure the collective on several clusters, and show them in one table."""
    from experiments.cli.output import side_by_side as beside
    from topologies.errors import InputError

    compared, sure = others
    if compared.compare is not None or sure.sensitivity:
        option = "--sensitivity" if sure.sensitivity else "--compare"
        raise InputError(f"{option} is for one cluster, not {len(machine.names)}. Name one.")

    def answer(name: str) -> list[dict[str, Any]]:
        """Rows of one of the clusters."""
        single = replace(machine, cluster=name, clusters=None)
        cluster, groups = _groups(inputs, single, ranks, catalogue)
        sizes, measure = _how_to_measure(inputs, groups, call.engine)
        wanted = sizes or _sizes(inputs.size, None)
        measured = progress(wanted, f"{inputs.op} on {name}", quiet=call.quiet)
        rows = [
            beside_best(
                measure(size)[0], inputs, groups, lambda: _best(inputs, groups, call.engine)
            )
            for size in measured
        ]
        rows = [_as_issued(row, cluster, inputs.op, inputs.runtime) for row in rows]
        ends = [_interval(inputs, cluster, groups[0], row) for row in rows]
        named = idle_entry(idle_options(inputs, ranks, cluster, groups))
        both = zip(rows, ends, strict=True)
        return [{**row, "low": e.low, "high": e.high, **named} for row, e in both]

    rows = beside.each(machine.names, answer)
    title = f"{inputs.op} on {len(machine.names)} clusters"
    call.answer(
        lambda: beside.document(rows),
        lambda: beside.show_collectives(title, rows),
        lambda run: beside.write_collectives(run, title, rows),
    )


def _best(inputs: CollectiveInputs, groups: list[Group], engine: str) -> Measure:
    """Return a function that measures the fastest algorithm of a size."""
    return _how_to_measure(replace(inputs, algorithm="best"), groups, engine)[1]


def _show(
    title: str,
    rows: list[dict[str, Any]],
    summary: Mapping[str, Any],
    idle: Mapping[str, str],
) -> None:
    _print(title, rows, **summary)
    tell_switches(rows)
    for line in idle_sentences(idle):
        click.echo(line)


def _as_issued(row: Mapping[str, Any], cluster: Cluster, kind: str, runtime: str) -> dict[str, Any]:
    """Return a row with the time under its runtime, and the bandwidths for that time."""
    if runtime == "compiled":
        return dict(row)
    from workloads.kernels.runtime import collective_seen_by_host

    seconds = collective_seen_by_host(
        cluster.chip or "", row["time_s"], runtime, kind=kind, catalogue=cluster.catalogue
    )
    if seconds == row["time_s"]:
        return dict(row)
    slower = row["time_s"] / seconds
    rates = {name: row[name] * slower for name in row if name.endswith("bw_bytes_per_s")}
    return {**row, **rates, "time_s": seconds}


def _interval(
    inputs: CollectiveInputs,
    cluster: Cluster,
    group: Group,
    row: Mapping[str, Any],
    *,
    timed: bool = False,
) -> Interval:
    """Interval of the time of one row; ``timed`` says whether the vendor's own test measured it."""
    from workloads.confidence.answers import collective_interval
    from workloads.confidence.timing_tool import vendors_test

    tool = "" if inputs.runtime == "compiled" else inputs.runtime
    return collective_interval(
        *(cluster, group.ranks, row["size_bytes"], row["time_s"]),
        ideal=inputs.ideal,
        tool=vendors_test(cluster.chip) if timed and cluster.chip else tool,
        crosses=len(group.domains) > 1,
    )


def _compared(
    rows: list[dict[str, Any]], measured: Measured, name: str, crosses: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows with measured values beside the simulated ones, and what they say."""
    import pandas as pd

    from experiments.validation.comparison import compare_collectives as comparison

    frame = comparison.beside(pd.DataFrame(rows), measured, name)
    frame["normal"] = comparison.normality(frame)
    both = [
        {str(name): None if value != value else value for name, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]
    verdict = comparison.verdict(frame, crosses=crosses)
    return both, {**comparison.agreement(frame), "verdict": verdict}


def _groups(
    inputs: CollectiveInputs, machine: SeveralMachines, ranks: RankInputs, catalogue: Catalogue
) -> tuple[Cluster, list[Group]]:
    """Return the cluster and the groups of the options, if the Neuron runtime can run them."""
    from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions
    from experiments.cli.commands.collective.groups import check_op, groups_for

    check_op(inputs)
    cluster = machine.read(catalogue)
    check_issued(cluster, inputs.runtime)
    groups = groups_for(cluster, ranks)
    if not ranks.unrestricted:
        groups = [along_ring(group) for group in groups] if inputs.op == "permute" else groups
        check_restrictions(inputs.op, groups)
    return cluster, groups


def _how_to_measure(
    inputs: CollectiveInputs, groups: list[Group], engine: str, *, watched: bool = False
) -> tuple[list[int], Measure]:
    from experiments.cli.commands.collective.groups import how_to_measure

    return how_to_measure(inputs, groups, engine, watched=watched)


def _read(compare: Path | None, op: str, ranks: int) -> Measured | None:
    """Read measurements, which must be of the same operation and number of ranks."""
    if compare is None:
        return None
    from experiments.validation.comparison.compare_collectives import check_same
    from experiments.validation.reading.nccl_tests import read_measured

    measured = read_measured(compare, op)
    check_same(measured, op, ranks, str(compare))
    return measured


def _sizes(size: str | None, measured: Measured | None) -> list[int]:
    """Sizes of the option; by default those of the measurements."""
    from cluster_sim.collectives.group_parsing import parse_sizes
    from topologies.errors import InputError

    if size is not None:
        return parse_sizes(size)
    if measured is None:
        raise InputError("no size is given; add --size 1GiB, or --compare FILE for its sizes")
    from experiments.validation.comparison.compare_collectives import measured_sizes

    return measured_sizes(measured)


def _who(groups: list[Group]) -> str:
    each = f"{groups[0].ranks:,} rank{'s' * (groups[0].ranks > 1)}"
    return each if len(groups) == 1 else f"{len(groups):,} groups of {each}"


def _print(
    title: str, rows: list[dict[str, Any]], summary: Mapping[str, Any] | None = None
) -> None:
    from experiments.reports.formatting import value_text

    shown = SHOWN if summary is None else MEASURED_SHOWN
    cells = [
        [
            _signed(row[name])
            if name == "error"
            else value_text(UNIT_OF.get(name, name), row[name])
            for name, _ in shown
        ]
        for row in rows
    ]
    print_table(title, [heading for _, heading in shown], cells)
    if summary is not None:
        median, ninth, bias = (
            f"{100 * summary[name]:.1f} %" for name in ("median_abs_error", "p90_abs_error", "bias")
        )
        click.echo(
            f"{summary['rows']} rows compared: median error {median}, 90th percentile {ninth}, "
            f"mean {bias} (simulated over measured time, less one)"
        )
        click.echo(summary["verdict"])


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"


def _write(run: Run, rows: list[dict[str, Any]], trace: Trace, machine: Cluster) -> None:
    import pandas as pd

    from experiments.figures.collective import WORDS, figures
    from experiments.reports.slices import slices

    frame = pd.DataFrame(rows)
    if "switches" in frame:
        frame["switches"] = [" ".join(row.get("switches", ())) for row in rows]
    run.table("metrics", frame, title="Results")
    for name, (figure, title, note) in figures(frame, trace, machine).items():
        slice_rows = slices(trace, words=WORDS) if name == "timeline" else None
        run.figure(name, figure, title=title, note=note, slices=slice_rows)
    run.trace(trace)
