"""``cluster-sim collective``: time, bandwidth and bound of one collective at one or many sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.answer import request
from experiments.cli.common import (
    Bandwidth,
    ClusterText,
    Engine,
    Json,
    Latency,
    Out,
    Overlay,
    Quiet,
    Seed,
    Variant,
    print_table,
)
from experiments.cli.progress import progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from cluster_sim.collectives import Group
    from cluster_sim.trace.trace import Trace
    from experiments.reports.run_directory import Run
    from experiments.validation.nccl_tests import Measured
    from topologies.clusters.cluster import Cluster

OPS = "all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, broadcast or permute."
Op = Annotated[str, typer.Argument(metavar="OP", help=OPS)]
Size = Annotated[
    str | None,
    typer.Option("--size", metavar="SIZE[,SIZE…]", help="1GiB, or 1KiB:1GiB:4 for a range."),
]
Algorithm = Annotated[
    str, typer.Option("--algorithm", help="A name; auto as the runtime does; best of all.")
]
Ranks = Annotated[int | None, typer.Option("--ranks", help="The first so many; by default all.")]
RanksPerChip = Annotated[
    int, typer.Option("--ranks-per-chip", help="Logical cores that take part on a chip.")
]
GroupText = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="CHIPS", help="0-15,32-47; several at once with a semicolon: 0-3;4-7."
    ),
]
Order = Annotated[
    str | None,
    typer.Option("--order", metavar="FILE|LIST", help="Chips in the order of their ranks."),
]
Compare = Annotated[
    Path | None,
    typer.Option("--compare", metavar="FILE", help="What nccom-test or nccl-tests printed."),
]
Bytes = Annotated[
    Path | None,
    typer.Option("--bytes", metavar="FILE.csv", help="Of all-to-all-v: a row of sizes each rank."),
]
Skew = Annotated[
    float | None,
    typer.Option("--skew", help="Of all-to-all-v: rank j gets in proportion to (j + 1)^-SKEW."),
]
Unrestricted = Annotated[
    bool, typer.Option("--unrestricted", help="Also run what the Neuron runtime refuses.")
]
Ideal = Annotated[
    bool, typer.Option("--ideal", help="Link rates and latencies only, no efficiencies.")
]
Sbuf = Annotated[
    bool, typer.Option("--sbuf", help="Buffers in the scratchpads of the cores, not in HBM.")
]
SHOWN = (
    ("size_bytes", "size"),
    ("algorithm", "algorithm"),
    ("time_s", "time"),
    ("algbw_bytes_per_s", "algbw"),
    ("busbw_bytes_per_s", "busbw"),
    ("lower_bound_s", "lower bound"),
    ("bound", "set by"),
    ("steps", "steps"),
    ("ops", "ops"),
    ("semantics", "semantics"),
)
"""Columns of the printed table."""


MEASURED_SHOWN = (
    *SHOWN[:3],
    ("measured_time_s", "measured"),
    ("error", "error"),
    ("busbw_bytes_per_s", "busbw"),
    ("measured_busbw_bytes_per_s", "measured busbw"),
    *SHOWN[5:],
)
"""With ``--compare``."""


def collective(
    op: Op,
    cluster: ClusterText,
    size: Size = None,
    algorithm: Algorithm = "auto",
    ranks: Ranks = None,
    ranks_per_chip: RanksPerChip = 1,
    group: GroupText = None,
    order: Order = None,
    compare: Compare = None,
    matrix: Bytes = None,
    skew: Skew = None,
    unrestricted: Unrestricted = False,
    ideal: Ideal = False,
    sbuf: Sbuf = False,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    variant: Variant = None,
    catalogue: Overlay = None,
    engine: Engine = "fast",
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Simulate a collective chunk by chunk and print it as nccl-tests does."""
    asked = request("collective", locals())
    import pandas as pd

    from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions
    from experiments.cli.collective_groups import check_op, groups_for, how_to_measure
    from experiments.validation.compare_collectives import agreement, beside
    from topologies.catalogue.catalogue import choose
    from topologies.clusters.names import cluster as named

    check_op(op, size, matrix, skew)
    numbers = choose(variant or (), catalogue)
    machine = named(cluster, bandwidth=bandwidth, latency=latency, catalogue=numbers)
    groups = groups_for(machine, ranks, ranks_per_chip, group, order)
    if not unrestricted:
        groups = [along_ring(one) for one in groups] if op == "permute" else groups
        check_restrictions(op, groups)
    measured = _read(compare, op, groups[0].ranks)
    sizes, measure = how_to_measure(
        op, groups, algorithm, matrix=matrix, skew=skew, ideal=ideal, sbuf=sbuf, engine=engine
    )
    wanted = sizes or _sizes(size, measured)
    results = [measure(one) for one in progress(wanted, f"{op} on {cluster}", quiet=quiet)]
    frame = pd.DataFrame([row for row, _ in results])
    found: dict[str, Any] = {}
    if measured is not None:
        frame = beside(frame, measured, str(compare))
        found["summary"] = agreement(frame)
    asked.answer(
        lambda: {"rows": frame.to_dict(orient="records"), **found},
        show=lambda: _print(f"{op} on {cluster}, {_who(groups)}", frame, **found),
        write=lambda run: _write(run, frame, results[-1][1], machine),
    )


def _read(compare: Path | None, op: str, ranks: int) -> Measured | None:
    """What was measured, if it is what is simulated."""
    if compare is None:
        return None
    from experiments.validation.compare_collectives import check_same
    from experiments.validation.nccl_tests import read_measured

    measured = read_measured(compare, op)
    check_same(measured, op, ranks, str(compare))
    return measured


def _sizes(size: str | None, measured: Measured | None) -> list[int]:
    """Sizes asked for; by default those that were measured."""
    from cluster_sim.collectives.sizes import parse_sizes
    from experiments.validation.compare_collectives import measured_sizes
    from topologies.errors import InputError

    if size is not None:
        return parse_sizes(size)
    if measured is None:
        raise InputError("no size is given; add --size 1GiB, or --compare FILE for its sizes")
    return measured_sizes(measured)


def _who(groups: list[Group]) -> str:
    each = f"{groups[0].ranks:,} rank{'s' * (groups[0].ranks > 1)}"
    return each if len(groups) == 1 else f"{len(groups):,} groups of {each}"


def _print(title: str, frame: pd.DataFrame, summary: Mapping[str, Any] | None = None) -> None:
    from experiments.reports.formatting import value_text

    shown = SHOWN if summary is None else MEASURED_SHOWN
    cells = [
        [
            _signed(row[name]) if name == "error" else value_text(name, row[name])
            for name, _ in shown
        ]
        for row in frame.to_dict("records")
    ]
    print_table(title, [heading for _, heading in shown], cells)
    if summary is not None:
        median, ninth, bias = (
            f"{100 * summary[name]:.1f} %" for name in ("median_abs_error", "p90_abs_error", "bias")
        )
        typer.echo(
            f"{summary['rows']} rows compared: median error {median}, 90th percentile {ninth}, "
            f"mean {bias} (simulated over measured time, less one)"
        )


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %" if error == error else "-"


def _write(run: Run, frame: pd.DataFrame, trace: Trace, machine: Cluster) -> None:
    from experiments.figures.collective import figures

    run.table("metrics", frame, title="Results")
    for name, (figure, title, note) in figures(frame, trace, machine).items():
        run.figure(name, figure, title=title, note=note)
    run.trace(trace)
