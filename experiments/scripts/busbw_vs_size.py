"""Bus bandwidth of a collective against its size, one line an algorithm, with the lower bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"
MOST_TICKS = 8
"""Sizes that are all named below the axis."""


def run(
    op: str = "all-reduce",
    cluster: str = "trn2.48xlarge",
    sizes: str = "1KiB:1GiB:4",
    algorithms: tuple[str, ...] = (ALL,),
    ranks_per_chip: int = 1,
    ideal: bool = False,
) -> pd.DataFrame:
    """Simulate every size with every algorithm.

    Parameters
    ----------
    op : str
    cluster : str
        A named machine.
    sizes : str
        As ``1KiB:1GiB:4``.
    algorithms : tuple of str
        Names, or ``("all",)`` for all that make sense.
    ranks_per_chip : int
    ideal : bool
        Link rates and latencies only.

    Returns
    -------
    DataFrame
        The rows of :func:`cluster_sim.collectives.rows`, algorithm by algorithm.
    """
    from cluster_sim.collectives import CollectiveCall, rows, suitable
    from cluster_sim.collectives.results import first_ranks
    from cluster_sim.collectives.sizes import parse_sizes
    from topologies.clusters.names import cluster as named

    group, steps = first_ranks(named(cluster), None, ranks_per_chip), parse_sizes(sizes)
    every = [one.name for one in suitable(CollectiveCall(op, group, steps[0]))]
    names = every if ALL in algorithms else list(algorithms)
    tables = [rows(op, group, steps, name, ideal=ideal) for name in names]
    return pd.concat(tables, ignore_index=True)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw bus bandwidth against size, with the limit that no algorithm can pass."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    from cluster_sim.plot.palette import colors
    from topologies.units import format_bytes

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    first = frame.iloc[0]
    moved = frame[(frame.size_bytes > 0) & (frame.time_s > 0)]
    bounded = moved[moved.lower_bound_s > 0].drop_duplicates("size_bytes").sort_values("size_bytes")
    # Bus bandwidth of a run that took no longer than the lower bound.
    limit = bounded.busbw_bytes_per_s * bounded.time_s / bounded.lower_bound_s / 1e9
    mark = "_" if len(bounded) == 1 else ""
    set_by = "links and memory" if (bounded.bound == "hbm").any() else "links"
    limited = f"limit of the {set_by}"
    axes.plot(bounded.size_bytes, limit, "--", color="0.45", marker=mark, label=limited)
    shades = colors(dict.fromkeys(moved.algorithm))
    for name, rows in moved.groupby("algorithm", sort=False):
        line = rows.sort_values("size_bytes")
        rate, shade = line.busbw_bytes_per_s / 1e9, shades[str(name)]
        axes.plot(line.size_bytes, rate, "o-", ms=3, color=shade, label=name)
    if "measured_busbw_bytes_per_s" in moved:
        seen = moved.dropna(subset="measured_busbw_bytes_per_s").sort_values("size_bytes")
        measured = seen.measured_busbw_bytes_per_s / 1e9
        axes.plot(seen.size_bytes, measured, "kx", ms=5, label="measured")
    axes.set_xscale("log", base=2)
    sizes = sorted(set(moved.size_bytes))
    if len(sizes) > 1:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set_ylim(bottom=0)
    few = len(sizes) <= MOST_TICKS
    axes.xaxis.set_major_locator(FixedLocator(sizes) if few else LogLocator(base=16, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(int(size))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.6g}"))
    axes.set_xlabel("size of the buffer, as nccl-tests counts it")
    axes.set_ylabel("bus bandwidth [GB/s]")
    what = f"{first.collective} on {first.cluster}, {int(first.ranks):,} ranks"
    axes.set_title(f"{what}\n{_finding(moved)}", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _finding(frame: pd.DataFrame) -> str:
    """Describe the bandwidth of the fastest algorithm at the largest size."""
    from topologies.units import format_bytes, format_rate

    best = frame.sort_values(["size_bytes", "busbw_bytes_per_s"]).iloc[-1]
    reached = f"{best.algorithm} reaches {format_rate(best.busbw_bytes_per_s)}"
    share = f"{best.lower_bound_s / best.time_s:.0%} of the limit"
    return f"at {format_bytes(int(best.size_bytes))} {reached}, {share}"
