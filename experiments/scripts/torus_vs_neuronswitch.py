"""The bandwidth of an all-to-all and of an all-reduce on a torus and on switched machines.

Trn2's UltraServer is a torus; Trn3's machines are switched. All chips of a scale-up domain take
part, each size with its fastest algorithm, and the dashed lines are bounds by the links alone.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.collectives.group_parsing import parse_sizes
from cluster_sim.plot.palette import colors, marks
from cluster_sim.progress import Watch, unwatched
from experiments.figures.layout import canvas, logarithmic, over_bytes
from experiments.scripts.support import each, with_collective_ends
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster as named
from topologies.shapes.links import domain_links
from topologies.units import format_bytes

MACHINES = ("trn2-ultraserver", "trn3-gen1", "trn3-gen2")


def run(
    clusters: tuple[str, ...] = MACHINES,
    ops: tuple[str, ...] = ("all-to-all", "all-reduce"),
    sizes: str = "64KiB:1GiB:8",
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate both collectives on whole domains, each with the fastest algorithm for its size.

    ``clusters``: named machines; Trn2's UltraServer is a 4×4×4 torus, Trn3's are switched. ``ops``:
    collective operations, such as ``all-to-all``. ``sizes``: first and last size of the buffer of a
    chip, and the factor between two sizes [B].

    Returns rows of :func:`cluster_sim.collectives.rows`, with ``injection_bytes_per_s``, the rate
    of all links of one chip in one direction, and ``share``, the bus bandwidth over that rate; the
    share of an all-to-all can be 1 only where no message is forwarded.
    """
    from cluster_sim.collectives import rows, whole

    def table(point: tuple[Cluster, str]) -> pd.DataFrame:
        """Rows of one machine and collective."""
        machine, op = point
        rate = injection_bytes_per_s(machine)
        timed = rows(op, whole(machine), parse_sizes(sizes), "best", ideal=ideal, proof=False)
        timed = with_collective_ends(timed, machine, ideal=ideal)
        share = timed.busbw_bytes_per_s / rate
        return timed.assign(injection_bytes_per_s=rate, share=share)

    points = [(machine, op) for machine in map(named, clusters) for op in ops]
    return pd.concat(each(table, points, watch, task="collectives"), ignore_index=True)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw bus bandwidth against size: a panel for each collective, a line for each machine.

    Dashed lines are the limits by the links.
    """
    ops = list(dict.fromkeys(frame.collective))
    figure, (panels,) = canvas(5.6 * len(ops), 4.8, 1, len(ops), squeeze=False, sharey=True)
    for axes, op in zip(panels, ops, strict=True):
        _panel(axes, frame[frame.collective == op], op)
    panels[0].set_ylabel("bus bandwidth of a chip [GB/s]")
    panels[0].legend(frameon=False, fontsize=9)
    note = "The fastest algorithm each; dashed: links at their full rate, no losses"
    figure.suptitle(f"{_finding(frame)}\n{note}", x=0.01, ha="left", fontsize=10.5)
    return figure


def _finding(frame: pd.DataFrame) -> str:
    """Sentence that compares a chip of the last machine with one of the first."""
    size, names = int(frame.size_bytes.max()), list(dict.fromkeys(frame.cluster))
    rate = frame[frame.size_bytes == size].set_index(["collective", "cluster"]).busbw_bytes_per_s
    times = [
        f"{rate[op, names[-1]] / rate[op, names[0]]:.1f} times the {op}"
        for op in dict.fromkeys(frame.collective)
    ]
    ratios = " and ".join(times)
    return f"At {format_bytes(size)} a chip of {names[-1]} gets {ratios} of one of {names[0]}"


def _panel(axes: Axes, frame: pd.DataFrame, op: str) -> None:
    """Draw the panel of one collective."""
    shades = colors(list(dict.fromkeys(frame.cluster)))
    shapes = marks(shades)
    for name, rows in frame.groupby("cluster", sort=False):
        lines = rows.sort_values("size_bytes")
        shade = shades[str(name)]
        rate = lines.busbw_bytes_per_s / 1e9
        label = f"{name}, {int(lines.ranks.iloc[0])} chips"
        axes.plot(lines.size_bytes, rate, f"{shapes[str(name)]}-", ms=4, color=shade, label=label)
        limit = rate * lines.time_s / lines.lower_bound_s
        axes.plot(lines.size_bytes, limit, "--", lw=1, color=shade)
    over_bytes(axes)
    logarithmic(axes, "y", "{:,.6g}".format, subs=(1,))
    axes.set_title(op, loc="left")
    axes.set_xlabel("buffer of a chip")
    axes.grid(alpha=0.3)


def injection_bytes_per_s(machine: Cluster) -> int:
    """Return the rate of all links of one chip together, one direction [B/s]."""
    links = domain_links(machine.shape)
    return int(links.bandwidth_bytes_per_s[links.src == 0].sum())
