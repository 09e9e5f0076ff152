"""``cluster-sim collective``: time, bandwidth and bound of one collective at one or many sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import (
    CatalogueInputs,
    Invocation,
    SensitivityInputs,
    SeveralMachines,
)
from experiments.cli.output import side_by_side as beside
from experiments.cli.output.printing import print_rows
from experiments.reports.formatting import Column, idle_entry, idle_sentences
from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError, check_choice
from topologies.support.options import required, setting
from topologies.support.units import format_bytes, format_seconds
from workloads.confidence.interval import Interval

if TYPE_CHECKING:
    from cluster_sim.collectives import Group
    from cluster_sim.trace.trace import Trace
    from experiments.reports.run_directory import Run
    from experiments.validation.reading.tool_outputs import Measured
    from topologies.support.arrays import IntArray

    Rows = list[dict[str, Any]]


def _algorithms() -> tuple[str, ...]:
    from cluster_sim.collectives.algorithms.registry import ALGORITHMS, AUTO, BEST

    return (AUTO, BEST, *ALGORITHMS)


@dataclass(frozen=True)
class CollectiveInputs:
    """A collective: operation, sizes, algorithm."""

    op: str = required(
        "Operation: all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, "
        "broadcast or permute",
        metavar="OP",
        argument=True,
    )
    size: str | None = setting(
        None,
        "Bytes of the buffer as nccl-tests counts them: 1GiB, a list, or a geometric range "
        "such as 1KiB:1GiB:4",
        metavar="SIZE[,SIZE…]",
    )
    algorithm: str = setting(
        "auto",
        "Algorithm by name; auto for the runtime's choice, best for the fastest of all",
        choices=_algorithms,
    )
    runtime: str = setting(
        "compiled",
        "Way in which Trainium's host issues the collective: inside a compiled graph, by "
        "itself, or through torch-xla",
        choices=("compiled", "eager", "xla"),
    )
    matrix: Path | None = setting(
        None,
        "Bytes that each rank (row) sends to each other (column) in an all-to-all-v",
        name="bytes",
        metavar="FILE.csv",
    )
    skew: float | None = setting(
        None,
        "Skew of an all-to-all-v: rank j receives bytes in proportion to (j + 1)^-SKEW; 0 is even",
    )
    ideal: bool = setting(False, "Use the rates and latencies of links alone, without efficiencies")
    fault: tuple[str, ...] = setting(
        (),
        "Cable, link, adapter or other resource that dies or slows down, such as "
        "cable:0-1@5us:dead or tx:5@0s:slow=1/2; may be repeated",
        metavar="RESOURCE@TIME:dead|slow=P/Q",
    )
    sbuf: bool = setting(False, "Keep buffers in the cores' scratchpads (SBUF) instead of in HBM")


@dataclass(frozen=True)
class RankInputs:
    """Ranks that take part."""

    ranks: int | None = setting(None, "Number of ranks, on the first chips", default="all chips")
    ranks_per_chip: int = setting(1, "Logical cores of a chip that take part as ranks")
    group: str | None = setting(
        None,
        "Chips that take part, such as 0-15,32-47; semicolons separate groups that run at the "
        "same time: 0-3;4-7",
        metavar="CHIPS",
    )
    order: str | None = setting(None, "Chips in the order of their ranks", metavar="FILE|LIST")
    unrestricted: bool = setting(False, "Also run groups that the Neuron runtime refuses")


@dataclass(frozen=True)
class CompareInputs:
    """Measured times beside the simulated ones."""

    compare: str | None = setting(
        None,
        "Output of nccom-test or nccl-tests to compare the simulation with, or measured times of "
        "the sizes of --size, such as 21ms",
        metavar="TIME|FILE",
    )


COLUMNS = (
    Column("size_bytes", "size"),
    Column("cluster", "cluster"),
    Column("ranks", "ranks"),
    Column("algorithm", "algorithm"),
    Column("undisturbed_s", "healthy"),
    Column("time_s", "time"),
    Column("low", "80 % from", like="time_s"),
    Column("high", "to", like="time_s"),
    Column("measured_time_s", "measured"),
    Column("normal", "is"),
    Column("error", "error", write=lambda e: "-" if e is None else f"{100 * e:+.1f} %"),
    Column("algbw_bytes_per_s", "algbw"),
    Column("busbw_bytes_per_s", "busbw"),
    Column("measured_busbw_bytes_per_s", "measured busbw"),
    Column("lower_bound_s", "lower bound"),
    Column("bound", "set by"),
    Column("steps", "steps"),
    Column("ops", "ops"),
    Column("semantics", "semantics"),
    Column("of_first", "of the first", write=lambda ratio: f"{ratio:.3g} ×"),
)
"""Columns of all tables, each of which has those that its rows have, but for some."""
IN_TITLE = ("cluster", "ranks")
DETAILS = ("undisturbed_s", "algbw_bytes_per_s", "steps", "ops", "semantics")
"""Columns that make room for measured times and for other clusters."""


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
    catalogue = catalogue_inputs.watched(*machine.names)
    if len(machine.names) > 1:
        beside.check_single({"--sensitivity": sure.sensitivity, "--compare": compared.compare})
        _side_by_side(inputs, machine, ranks, catalogue, call)
        return
    question = _Question.read(inputs, machine, ranks, catalogue, call.engine)
    measured = _read(compared.compare, inputs, question.group.ranks)
    wanted = question.sizes(measured)
    what = f"{inputs.op} on {machine.name}"
    watched = call.out is not None
    results = [question.measure(size, watched=watched) for size in call.watch(wanted, what)]
    plain = question.beside_healthy([row for row, _ in results])
    rows, ends = question.judged(plain, timed=measured is not None)
    summary: dict[str, Any] = {}
    if measured is not None:
        rows, summary = _compared(rows, measured, compared.compare or "", question.group)

    def first_s(changed: Catalogue) -> float:
        question = _Question.read(inputs, machine, ranks, changed, call.engine)
        return float(question.measure(wanted[0])[0]["time_s"])

    idle = question.idle_options(ranks)
    who = f"{question.group.ranks:,} rank{'s' * (question.group.ranks > 1)}"
    who = f"{len(question.groups):,} groups of {who}" if len(question.groups) > 1 else who
    more = {"summary": summary} if summary else {}
    call.answer(
        {"rows": rows, "interval": ends[0].document(), **more, **idle_entry(idle)},
        show=lambda _: _show(f"{what}, {who}", rows, summary, idle),
        write=lambda run, _: _write(
            run, rows, results[-1][1], question.group.cluster, summary.get("verdict", "")
        ),
        rankings=sure.rank(first_s, catalogue, call, "the time of the first size"),
    )


def _side_by_side(
    inputs: CollectiveInputs,
    machine: SeveralMachines,
    ranks: RankInputs,
    catalogue: Catalogue,
    call: Invocation,
) -> None:
    """Measure the collective on several clusters, and show them in one table."""

    single = {name: replace(machine, cluster=name, clusters=None) for name in machine.names}
    for each in single.values():
        each.read(catalogue)  # a name that is misspelt, before any cluster answers

    def answer(name: str) -> Rows:
        """Rows of one of the clusters."""
        question = _Question.read(inputs, single[name], ranks, catalogue, call.engine)
        sizes = call.watch(question.sizes(), f"{inputs.op} on {name}")
        rows, _ = question.judged([question.measure(size)[0] for size in sizes])
        named = idle_entry(question.idle_options(ranks))
        return [{**row, **named} for row in rows]

    rows = beside.each(machine.names, answer)
    title = f"{inputs.op} on {len(machine.names)} clusters"
    call.answer(
        beside.document(rows),
        lambda _: _show_side_by_side(title, rows),
        lambda run, _: _write_side_by_side(run, title, rows),
    )


@dataclass(frozen=True)
class _Question:
    """The collective of the options, in groups of one cluster."""

    inputs: CollectiveInputs
    groups: Sequence[Group]
    engine: str

    @classmethod
    def read(
        cls,
        inputs: CollectiveInputs,
        machine: SeveralMachines,
        ranks: RankInputs,
        catalogue: Catalogue,
        engine: str,
    ) -> _Question:
        """Return the question of the options, if the Neuron runtime can run it."""
        from cluster_sim.collectives.algorithms.algorithm import is_trainium
        from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions

        check_op(inputs)
        cluster = machine.read(catalogue)
        if inputs.runtime in ("eager", "xla") and not is_trainium(cluster):
            raise InputError(
                f"--runtime {inputs.runtime} is a way to issue work to Trainium, and "
                f"{cluster.name} has {cluster.chip or 'no chips'}. Leave --runtime out."
            )
        groups = groups_for(cluster, ranks)
        if not ranks.unrestricted:
            groups = [along_ring(group) for group in groups] if inputs.op == "permute" else groups
            check_restrictions(inputs.op, groups)
        return cls(inputs, groups, engine)

    @property
    def group(self) -> Group:
        """The first of the groups, which are all on one cluster."""
        return self.groups[0]

    @cached_property
    def matrix(self) -> IntArray | None:
        """Bytes between each two ranks, where the options name a file of them."""
        from cluster_sim.collectives.results import read_matrix

        return None if self.inputs.matrix is None else read_matrix(self.inputs.matrix)

    def sizes(self, measured: Measured | None = None) -> list[int]:
        """Sizes of the matrix or of the option; by default those of the measurements."""
        from cluster_sim.collectives.group_parsing import parse_sizes
        from cluster_sim.collectives.results import buffer_bytes

        if self.matrix is not None:
            return [buffer_bytes(self.matrix)]
        if self.inputs.size is not None:
            return parse_sizes(self.inputs.size)
        if measured is None:
            raise InputError("no size is given; add --size 1GiB, or --compare FILE for its sizes")
        return sorted(set(measured.size_bytes.astype(int).tolist()))

    def measure(self, size: int, *, watched: bool = False) -> tuple[dict[str, Any], Trace]:
        """Return the row and the trace of one size."""
        from cluster_sim.collectives import CollectiveCall, measure
        from cluster_sim.collectives.builder import check_scratchpad
        from cluster_sim.collectives.results import KIND, measure_v, skewed
        from cluster_sim.hardware.faults import parse_fault

        inputs, group = self.inputs, self.group
        how: dict[str, Any] = {"ideal": inputs.ideal, "engine": self.engine}
        how["faults"] = [parse_fault(text) for text in inputs.fault]
        if inputs.op != KIND:
            calls = [CollectiveCall(inputs.op, each, size) for each in self.groups]
            return measure(calls, inputs.algorithm, sbuf=inputs.sbuf, watched=watched, **how)
        if len(self.groups) > 1:
            raise InputError(
                f"{KIND} runs in one group, --group names {len(self.groups)}; give one"
            )
        if inputs.sbuf:
            check_scratchpad(inputs.op, group, 0)
        matrix = self.matrix
        sent = skewed(group.ranks, size, inputs.skew or 0.0) if matrix is None else matrix
        return measure_v(group, sent, inputs.algorithm, **how)

    def beside_healthy(self, rows: Rows) -> Rows:
        """Return rows with the time without the faults in each, where there are faults."""
        if not self.inputs.fault:
            return rows
        from cluster_sim.collectives.duration.nccl import covers

        def undisturbed_s(row: Mapping[str, Any]) -> float:
            # The closed form of NCCL and RCCL has no faults, so it is no measure of what they cost.
            algorithm = row["algorithm"] if covers(self.group.cluster) else self.inputs.algorithm
            healthy = replace(self, inputs=replace(self.inputs, fault=(), algorithm=algorithm))
            return float(self.as_issued(healthy.measure(row["size_bytes"])[0])["time_s"])

        return [{**row, "undisturbed_s": undisturbed_s(row)} for row in rows]

    def beside_best(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add the choice of ``best`` to a row of ``auto`` that is slower near a switch."""
        from cluster_sim.collectives import KINDS, CollectiveCall
        from cluster_sim.collectives.algorithms.registry import switched

        inputs = self.inputs
        if inputs.algorithm != "auto" or inputs.op not in KINDS or inputs.fault:
            return row
        near = switched(CollectiveCall(inputs.op, self.group, row["size_bytes"]))
        if len(near) == 1:
            return row
        at_best = replace(self, inputs=replace(inputs, algorithm="best"))
        best, _ = at_best.measure(row["size_bytes"])
        if best["time_s"] >= row["time_s"]:
            return row
        named = {"best_algorithm": best["algorithm"], "best_time_s": best["time_s"]}
        return {**row, "switches": list(near), **named}

    def as_issued(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with the time under its runtime, and the bandwidths for that time."""
        inputs, cluster = self.inputs, self.group.cluster
        if inputs.runtime == "compiled":
            return row
        from workloads.kernels.times import seen_by_host

        seconds = seen_by_host(
            *(cluster.chip or "", row["time_s"], inputs.runtime),
            collective=inputs.op,
            catalogue=cluster.catalogue,
        )
        if seconds == row["time_s"]:
            return row
        slower = row["time_s"] / seconds
        rates = {name: row[name] * slower for name in row if name.endswith("bw_bytes_per_s")}
        return {**row, **rates, "time_s": seconds}

    def judged(self, rows: Rows, *, timed: bool = False) -> tuple[Rows, list[Interval]]:
        """Return rows as the host sees them, with best algorithm and intervals; and these alone."""
        from workloads.confidence.answers import collective_interval, vendors_test

        cluster, runtime = self.group.cluster, self.inputs.runtime
        tool = "" if runtime == "compiled" else runtime
        seen = [self.as_issued(self.beside_best(row)) for row in rows]
        if timed and cluster.chip:
            tool = vendors_test(cluster.chip)
        ends = [
            collective_interval(
                *(cluster, self.group.ranks, row["size_bytes"], row["time_s"]),
                ideal=self.inputs.ideal,
                tool=tool,
                crosses=len(self.group.domains) > 1,
            )
            for row in seen
        ]
        judged = [{**row, "low": e.low, "high": e.high} for row, e in zip(seen, ends, strict=True)]
        return judged, ends

    def idle_options(self, ranks: RankInputs) -> dict[str, str]:
        """Return each stated option that changes nothing, with the reason.

        >>> from cluster_sim.collectives import Group
        >>> from topologies.clusters.names import cluster
        >>> ring = cluster("ring:4", bandwidth="1GB/s", latency="1us")
        >>> question = CollectiveInputs("all-reduce", ideal=True)
        >>> _Question(question, [Group(ring, range(4))], "fast").idle_options(RankInputs())
        {'ideal': 'a plain shape is ideal already'}
        """
        from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions

        reasons, groups = {}, [*self.groups]
        if self.inputs.ideal and self.group.cluster.plain:
            reasons["ideal"] = "a plain shape is ideal already"
        if ranks.unrestricted:
            try:
                check_restrictions(self.inputs.op, groups)
                moves = self.inputs.op == "permute" and [*map(along_ring, groups)] != groups
            except InputError:
                return reasons
            if not moves:
                reasons["unrestricted"] = "no limit of the Neuron runtime is exceeded"
        return reasons


def _columns(rows: Rows, hidden: Sequence[str]) -> list[Column]:
    """Return the columns that rows have, but for hidden ones."""
    if all(row["low"] == row["high"] for row in rows):
        hidden = (*hidden, "low", "high")  # nobody measured plain shapes, whose times have no error
    return [each for each in COLUMNS if each.name in rows[0] and each.name not in hidden]


def _show(
    title: str, rows: list[dict[str, Any]], summary: Mapping[str, Any], idle: Mapping[str, str]
) -> None:
    print_rows(title, _columns(rows, IN_TITLE + DETAILS if summary else IN_TITLE), rows)
    if summary:
        median, ninth, bias = (
            f"{100 * summary[name]:.1f} %" for name in ("median_abs_error", "p90_abs_error", "bias")
        )
        click.echo(
            f"{summary['rows']} row{'s' * (summary['rows'] != 1)} compared: median error {median}, "
            f"90th percentile {ninth}, mean {bias} (simulated over measured time, less one)"
        )
        click.echo(summary["verdict"])
    for row in rows:
        if row.get("best_time_s") is not None:  # rows beside measurements all have the column
            other = " or ".join(name for name in row["switches"] if name != row["algorithm"])
            click.echo(
                f"{format_bytes(row['size_bytes'])}: the Neuron runtime takes {row['algorithm']} "
                f"by the length of the buffer, and {other} at lengths near it. --algorithm best: "
                f"{row['best_algorithm']}, {format_seconds(row['best_time_s'])}."
            )
    for line in idle_sentences(idle):
        click.echo(line)


def _compared(
    rows: list[dict[str, Any]], measured: Measured, name: str, group: Group
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows with measured values beside the simulated ones, and what they say."""
    import pandas as pd

    from experiments.validation import comparison

    frame = comparison.beside(pd.DataFrame(rows), measured, name)
    errors = frame["error"].dropna().to_numpy(float)
    both = [
        {str(name): None if value != value else value for name, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]
    verdict = comparison.verdict(frame, crosses=len(group.domains) > 1)
    cores = chip_family(group.cluster.chip, group.cluster.catalogue).ranks_per_chip
    if measured.by_core and group.ranks_per_chip == 1 < cores:
        verdict += (
            f" nccom-test counts logical cores, {cores} a chip; here each of its {group.ranks} "
            f"ranks has a chip to itself. Add --ranks-per-chip {cores} if it used all cores."
        )
    return both, {"rows": len(errors), **comparison.condensed(errors), "verdict": verdict}


def _read(compare: str | None, inputs: CollectiveInputs, ranks: int) -> Measured | None:
    """Read measurements, which must be of the same operation and number of ranks."""
    if compare is None:
        return None
    from cluster_sim.collectives.group_parsing import parse_sizes
    from experiments.validation.comparison import check_same
    from experiments.validation.reading.tool_outputs import read_measured, typed_times

    if typed := typed_times(compare, [] if inputs.size is None else parse_sizes(inputs.size)):
        return typed
    measured = read_measured(compare, inputs.op)
    check_same(measured, inputs.op, ranks, compare)
    return measured


def _show_side_by_side(title: str, rows: list[dict[str, Any]]) -> None:
    """Print one table of all sizes, with the clusters of a size in consecutive rows."""
    good = beside.answered(rows)
    first: dict[int, float] = {}
    for row in good:
        first.setdefault(row["size_bytes"], row["time_s"])
    shown = [{**row, "of_first": row["time_s"] / first[row["size_bytes"]]} for row in good]
    shown.sort(key=lambda row: list(first).index(row["size_bytes"]))
    print_rows(title, _columns(shown, (*DETAILS, "lower_bound_s", "bound")), shown, left=2)
    beside.tell_idle({row["cluster"]: row for row in rows}.values())
    beside.tell_refused(rows)


def _write_side_by_side(run: Run, title: str, rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    from experiments.figures.layout import logarithmic
    from experiments.figures.training import lines

    frame = pd.DataFrame(rows).drop(columns="without_effect", errors="ignore")
    run.table("metrics", frame, title="Results")
    good = frame[frame.status == "ok"].assign(busbw=lambda table: table.busbw_bytes_per_s / 1e9)
    labels = ("size of the buffer", "bus bandwidth [GB/s]")
    figure = lines(good, "size_bytes", "busbw", "cluster", title, labels=labels)
    sizes = sorted({*good.size_bytes.astype(int)})
    if len(sizes) > 1:
        logarithmic(figure.axes[0], "y", "{:,.6g}".format)
    sizes = sizes[:: -(-len(sizes) // 8)]  # as many labels as fit
    figure.axes[0].set_xticks(sizes, [format_bytes(int(size)) for size in sizes])
    run.figure("busbw", figure, title="Bus bandwidth side by side")


def _write(
    run: Run, rows: list[dict[str, Any]], trace: Trace, machine: Cluster, verdict: str
) -> None:
    import pandas as pd

    from experiments.figures.collective import WORDS, figures
    from experiments.reports.drawing import slices

    frame = pd.DataFrame(rows)
    if "switches" in frame:
        frame["switches"] = [" ".join(row.get("switches", ())) for row in rows]
    run.table("metrics", frame, title="Results", note=verdict)
    for name, (figure, title, note) in figures(frame, trace, machine).items():
        slice_rows = slices(trace, words=WORDS) if name == "timeline" else None
        run.figure(name, figure, title=title, note=note, slices=slice_rows)
    run.trace(trace)


def groups_for(machine: Cluster, inputs: RankInputs) -> list[Group]:
    """Return the groups of the options, by default one of all chips."""
    from cluster_sim.collectives.group_parsing import ordered, parse_groups
    from cluster_sim.collectives.results import first_ranks

    from_the_first = first_ranks(
        machine, None if inputs.group else inputs.ranks, inputs.ranks_per_chip
    )
    if inputs.group is None:
        groups = [from_the_first]
    elif inputs.ranks is not None:
        raise InputError(
            f"--ranks {inputs.ranks} and --group {inputs.group[:40]} both say who takes part; "
            "give one of them"
        )
    else:
        groups = parse_groups(inputs.group, machine, inputs.ranks_per_chip)
    if inputs.order is None:
        return groups
    if len(groups) > 1:
        raise InputError(
            f"--order is for one group, --group names {len(groups)}; "
            "write each group's chips in their order instead"
        )
    return [ordered(groups[0], inputs.order)]


def check_op(inputs: CollectiveInputs) -> None:
    """Check the operation, and that all-to-all-v, and no other, has the bytes of its pairs."""
    from cluster_sim.collectives import KINDS
    from cluster_sim.collectives.results import KIND

    op, size, matrix, skew = inputs.op, inputs.size, inputs.matrix, inputs.skew
    operations = (*KINDS, KIND)
    check_choice("collective", op, operations)
    option = "--bytes" if matrix is not None else "--skew" if skew is not None else None
    if op != KIND and option:
        raise InputError(f"{option} is for {KIND}, not for {op}; leave it out or ask for {KIND}")
    if matrix is not None and (skew is not None or size is not None):
        other = "--skew" if skew is not None else "--size"
        raise InputError(f"--bytes {matrix} and {other} both say how much is sent; give one")
    if op == KIND and matrix is None and skew is None:
        raise InputError(f"{KIND} needs --bytes FILE, or --size with --skew 0 (even) or more")
