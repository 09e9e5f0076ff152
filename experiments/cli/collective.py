"""``cluster-sim collective``: time, bandwidth and bound of one collective at one or many sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    print_json,
    print_table,
    progress,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from cluster_sim.trace import Trace

NO_INPUT = ("json", "out", "quiet", "seed")
"""Options on which no result depends, and the seed, which is recorded by itself."""
OPS = "all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or permute."
Op = Annotated[str, typer.Argument(metavar="OP", help=OPS)]
Size = Annotated[
    str, typer.Option("--size", metavar="SIZE[,SIZE…]", help="1GiB, or 1KiB:1GiB:4 for a range.")
]
Algorithm = Annotated[
    str, typer.Option("--algorithm", help="A name; auto as the runtime does; best of all.")
]
Ranks = Annotated[int | None, typer.Option("--ranks", help="The first so many; by default all.")]
RanksPerChip = Annotated[
    int, typer.Option("--ranks-per-chip", help="Logical cores that take part on a chip.")
]
Ideal = Annotated[
    bool, typer.Option("--ideal", help="Link rates and latencies only, no efficiencies.")
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


def collective(
    op: Op,
    cluster: ClusterText,
    size: Size,
    algorithm: Algorithm = "auto",
    ranks: Ranks = None,
    ranks_per_chip: RanksPerChip = 1,
    ideal: Ideal = False,
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
    given = dict(locals())
    import pandas as pd

    from cluster_sim.collectives.sizes import parse_sizes
    from cluster_sim.collectives.table import first_ranks, measure
    from experiments.run_directory import refuse_foreign
    from topologies.catalogue import choose
    from topologies.machines import cluster as named

    if out:
        refuse_foreign(out)
    sizes = parse_sizes(size)
    numbers = choose(variant or (), catalogue)
    machine = named(cluster, bandwidth=bandwidth, latency=latency, catalogue=numbers)
    group = first_ranks(machine, ranks, ranks_per_chip)
    results = [
        measure(op, group, one, algorithm, ideal=ideal, engine=engine)
        for one in progress(sizes, f"{op} on {cluster}", quiet=quiet)
    ]
    frame = pd.DataFrame([row for row, _ in results])
    if out:
        inputs = {name: value for name, value in given.items() if name not in NO_INPUT}
        _write(out, inputs, seed, frame, results[-1][1])
    if json:
        print_json({"rows": frame.to_dict(orient="records")})
    else:
        _print(frame, op, cluster, group.ranks)


def _print(frame: pd.DataFrame, op: str, cluster: str, ranks: int) -> None:
    from experiments.display import value_text

    cells = [[value_text(name, row[name]) for name, _ in SHOWN] for row in frame.to_dict("records")]
    title = f"{op} on {cluster}, {ranks:,} ranks"
    print_table(title, [heading for _, heading in SHOWN], cells)


def _write(
    out: Path, inputs: Mapping[str, Any], seed: int, frame: pd.DataFrame, trace: Trace
) -> None:
    from experiments.busbw_vs_size import plot
    from experiments.run_directory import run_directory

    with run_directory(out, command="collective", inputs=inputs, seed=seed) as run:
        run.table("metrics", frame, title="Results")
        run.figure("busbw", plot(frame), title="Bus bandwidth against size")
        run.trace(trace)
