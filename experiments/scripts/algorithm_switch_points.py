"""The fastest algorithm of a collective at each size, and the one that the runtime picks.

Each panel is one machine, on which all chips take part. The vertical axis is the time of an
algorithm over that of the fastest at the same size. "auto picks" marks the algorithm that the
runtime would choose.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.collectives import CollectiveCall, Group, rows, suitable, whole
from cluster_sim.collectives.algorithms.registry import choose_algorithm
from cluster_sim.collectives.group_parsing import parse_sizes
from cluster_sim.plot.palette import colors, marks
from cluster_sim.progress import Watch, unwatched
from experiments.figures.layout import canvas, logarithmic, over_bytes
from experiments.scripts.support import each, with_collective_ends
from topologies.clusters.names import cluster as named

MACHINES = ("trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver")
MOST_SLOWDOWN = 30.0


def run(
    op: str = "all-reduce",
    clusters: tuple[str, ...] = MACHINES,
    sizes: str = "1KiB:1GiB:4",
    ranks_per_chip: int = 1,
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate every size with every suitable algorithm, and mark the choice of ``auto``.

    ``clusters``: named machines, of which all chips take part; by default Trainium's three scale-up
    domains.

    Returns rows of :func:`cluster_sim.collectives.rows`, with ``low_s`` and ``high_s`` (ends of the
    interval of the time [s]), ``fastest`` and ``picked`` (bool), and ``slowdown``, the time over
    that of the fastest algorithm at the size.
    """
    steps, groups = parse_sizes(sizes), [whole(named(text), ranks_per_chip) for text in clusters]

    def table(point: tuple[Group, str]) -> pd.DataFrame:
        group, algorithm = point
        timed = rows(op, group, steps, algorithm, ideal=ideal, proof=False)
        return with_collective_ends(timed, group.cluster, ideal=ideal)

    points = [
        (group, algorithm.name)
        for group in groups
        for algorithm in suitable(CollectiveCall(op, group, steps[0]))
    ]
    tables = each(table, points, watch, task="algorithms")
    frame = pd.concat(tables, ignore_index=True)
    frame = frame.assign(picked=_picked(frame, op, groups, steps))
    best = frame.groupby(["cluster", "size_bytes"]).time_s.transform("min")
    return frame.assign(slowdown=frame.time_s / best, fastest=frame.time_s == best)


def _picked(
    frame: pd.DataFrame, op: str, groups: Sequence[Group], sizes: Sequence[int]
) -> list[bool]:
    """Return whether ``auto`` takes the algorithm of each row at its size."""
    chosen = {
        (group.cluster.name, size): choose_algorithm(CollectiveCall(op, group, size)).name
        for group in groups
        for size in sizes
    }
    rows = zip(frame.cluster, frame.size_bytes, frame.algorithm, strict=True)
    return [chosen[cluster, size] == algorithm for cluster, size, algorithm in rows]


def plot(frame: pd.DataFrame) -> Figure:
    """Draw each algorithm's time over that of the fastest, with rings at the runtime's choice."""
    names = list(dict.fromkeys(frame.cluster))
    size = (4.6 * len(names) + 1.2, 4.8)
    figure, (panels,) = canvas(*size, 1, len(names), squeeze=False, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        _panel(axes, frame[frame.cluster == name], list(dict.fromkeys(frame.algorithm)))
    panels[0].set_ylabel("time relative to the fastest algorithm")
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    picked = frame[frame.picked]
    figure.suptitle(
        f"{frame.collective.iloc[0]}: auto picks the fastest algorithm at {picked.fastest.sum()} "
        f"of {len(picked)} sizes, at worst one that takes {picked.slowdown.max():.2g} x as long",
        x=0.01, ha="left", fontsize=10.5,
    )  # fmt: skip
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, algorithms: list[str]) -> None:
    """Draw the panel of one machine."""
    shades, shapes = colors(algorithms), marks(algorithms)
    for name, timed in frame.groupby("algorithm", sort=False):
        line = timed.sort_values("size_bytes")
        shade, shape = shades[str(name)], shapes[str(name)]
        axes.plot(line.size_bytes, line.slowdown, f"{shape}-", ms=4, color=shade, label=str(name))
    picked = frame[frame.picked]
    axes.plot(
        picked.size_bytes, picked.slowdown, "o", ms=9, mfc="none", mec="black", label="auto picks"
    )
    over_bytes(axes)
    logarithmic(axes, "y", "{:,.3g} x".format)
    axes.set_ylim(0.9, MOST_SLOWDOWN)
    axes.set_title(f"{frame.cluster.iloc[0]}, {int(frame.ranks.iloc[0])} ranks", loc="left")
    axes.set_xlabel("size of the buffer")
    axes.grid(alpha=0.3)
