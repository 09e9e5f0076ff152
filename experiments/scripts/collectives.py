"""Experiments on collectives: algorithms over sizes, and machines of other links."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.collectives import CollectiveCall, Group, rows, suitable, whole
from cluster_sim.collectives.algorithms.registry import choose_algorithm
from cluster_sim.collectives.group_parsing import parse_sizes
from cluster_sim.collectives.results import first_ranks
from cluster_sim.plot.palette import colors, marks
from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, unwatched
from experiments.figures.collective import bandwidth
from experiments.figures.layout import canvas, entitle, logarithmic, over_bytes
from experiments.figures.training import lines
from experiments.scripts.support import with_collective_ends
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster as named
from topologies.clusters.names import machine
from topologies.shapes.links import domain_links
from topologies.support.units import format_bytes

ALL = "all"


def busbw_vs_size(
    op: str = "all-reduce",
    cluster: str = "trn2.48xlarge",
    sizes: str = "1KiB:1GiB:4",
    algorithms: tuple[str, ...] = (ALL,),
    ranks_per_chip: int = 1,
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate every size with every algorithm.

    All chips of the machine take part. Bus bandwidth is that of nccl-tests, and the line without
    losses is the lower bound of the time, with links at their full rate.

    ``cluster``: named machine, of which all chips take part. ``algorithms``: names, or ``all`` for
    every suitable algorithm.
    """
    whole = named(cluster)
    group, steps = first_ranks(whole, None, ranks_per_chip), parse_sizes(sizes)
    every = [algorithm.name for algorithm in suitable(CollectiveCall(op, group, steps[0]))]
    names = every if ALL in algorithms else list(algorithms)
    tables = [rows(op, group, steps, name, ideal=ideal) for name in watch(names, "algorithms")]
    return with_collective_ends(pd.concat(tables, ignore_index=True), whole, ideal=ideal)


draw_busbw_vs_size = bandwidth


DOMAINS = ("trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver")
MOST_SLOWDOWN = 30.0


def algorithm_switch_points(
    op: str = "all-reduce",
    clusters: tuple[str, ...] = DOMAINS,
    sizes: str = "1KiB:1GiB:4",
    ranks_per_chip: int = 1,
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate every size with every suitable algorithm, and mark the choice of ``auto``.

    Each panel is one machine, on which all chips take part. The vertical axis is the time of an
    algorithm over that of the fastest at the same size. "auto picks" marks the algorithm that the
    runtime would choose.

    ``clusters``: named machines, of which all chips take part; by default Trainium's three scale-up
    domains.
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
    tables = on_all_cores(table, points, watch, task="algorithms")
    frame = pd.concat(tables, ignore_index=True)
    auto = {
        (group.cluster.name, size): choose_algorithm(CollectiveCall(op, group, size)).name
        for group in groups
        for size in steps
    }
    at = zip(frame.cluster, frame.size_bytes, frame.algorithm, strict=True)
    frame = frame.assign(picked=[auto[name, size] == algorithm for name, size, algorithm in at])
    best = frame.groupby(["cluster", "size_bytes"]).time_s.transform("min")
    return frame.assign(slowdown=frame.time_s / best, fastest=frame.time_s == best)


def draw_algorithm_switch_points(frame: pd.DataFrame) -> Figure:
    """Draw each algorithm's time over that of the fastest, with rings at the runtime's choice."""
    names = list(dict.fromkeys(frame.cluster))
    size = (4.6 * len(names) + 1.2, 4.8)
    figure, (panels,) = canvas(*size, 1, len(names), squeeze=False, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        _slowdowns(axes, frame[frame.cluster == name], list(dict.fromkeys(frame.algorithm)))
    panels[0].set_ylabel("time relative to the fastest algorithm")
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    picked = frame[frame.picked]
    entitle(
        figure,
        f"{frame.collective.iloc[0]}: auto picks the fastest algorithm at {picked.fastest.sum()} "
        f"of {len(picked)} sizes, at worst one that takes {picked.slowdown.max():.2g} x as long",
    )
    return figure


def _slowdowns(axes: Axes, frame: pd.DataFrame, algorithms: list[str]) -> None:
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


FABRICS = ("trn2-ultraserver", "trn3-gen1", "trn3-gen2")


def torus_vs_neuronswitch(
    clusters: tuple[str, ...] = FABRICS,
    ops: tuple[str, ...] = ("all-to-all", "all-reduce"),
    sizes: str = "64KiB:1GiB:8",
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate both collectives on whole domains, each with the fastest algorithm for its size.

    Trn2's UltraServer is a torus; Trn3's machines are switched. All chips of a scale-up domain take
    part, each size with its fastest algorithm, and the dashed lines are bounds by the links alone.

    ``clusters``: named machines; Trn2's UltraServer is a 4×4×4 torus, Trn3's are switched. ``ops``:
    collective operations, such as ``all-to-all``. ``sizes``: first and last size of the buffer of a
    chip, and the factor between two sizes [B].
    """

    def table(point: tuple[Cluster, str]) -> pd.DataFrame:
        """Rows of one operation on one machine."""
        machine, op = point
        rate = injection_bytes_per_s(machine)
        timed = rows(op, whole(machine), parse_sizes(sizes), "best", ideal=ideal, proof=False)
        timed = with_collective_ends(timed, machine, ideal=ideal)
        share = timed.busbw_bytes_per_s / rate
        return timed.assign(injection_bytes_per_s=rate, share=share)

    points = [(machine, op) for machine in map(named, clusters) for op in ops]
    return pd.concat(on_all_cores(table, points, watch, task="collectives"), ignore_index=True)


def draw_torus_vs_neuronswitch(frame: pd.DataFrame) -> Figure:
    """Draw bus bandwidth against size: a panel for each collective, a line for each machine.

    Dashed lines are the limits by the links.
    """
    ops = list(dict.fromkeys(frame.collective))
    figure, (panels,) = canvas(5.6 * len(ops), 4.8, 1, len(ops), squeeze=False, sharey=True)
    for axes, op in zip(panels, ops, strict=True):
        _bandwidths(axes, frame[frame.collective == op], op)
    panels[0].set_ylabel("bus bandwidth of a chip [GB/s]")
    panels[0].legend(frameon=False, fontsize=9)
    size, names = int(frame.size_bytes.max()), list(dict.fromkeys(frame.cluster))
    rate = frame[frame.size_bytes == size].set_index(["collective", "cluster"]).busbw_bytes_per_s
    ratios = " and ".join(
        f"{rate[op, names[-1]] / rate[op, names[0]]:.1f} times the {op}" for op in ops
    )
    entitle(
        figure,
        f"At {format_bytes(size)} a chip of {names[-1]} gets {ratios} of one of {names[0]}\n"
        "The fastest algorithm each; dashed: links at their full rate, no losses",
    )
    return figure


def _bandwidths(axes: Axes, frame: pd.DataFrame, op: str) -> None:
    shades = colors(list(dict.fromkeys(frame.cluster)))
    shapes = marks(shades)
    for name, timed in frame.groupby("cluster", sort=False):
        line = timed.sort_values("size_bytes")
        shade = shades[str(name)]
        rate = line.busbw_bytes_per_s / 1e9
        label = f"{name}, {int(line.ranks.iloc[0])} chips"
        axes.plot(line.size_bytes, rate, f"{shapes[str(name)]}-", ms=4, color=shade, label=label)
        limit = rate * line.time_s / line.lower_bound_s
        axes.plot(line.size_bytes, limit, "--", lw=1, color=shade)
    over_bytes(axes)
    logarithmic(axes, "y", "{:,.6g}".format, subs=(1,))
    axes.set_title(op, loc="left")
    axes.set_xlabel("buffer of a chip")
    axes.grid(alpha=0.3)


def injection_bytes_per_s(machine: Cluster) -> int:
    """Return the rate of all links of one chip together, one direction [B/s]."""
    links = domain_links(machine.shape)
    return int(links.bandwidth_bytes_per_s[links.src == 0].sum())


def half_rate_z(
    cluster: str = "trn2-ultraserver",
    ops: tuple[str, ...] = ("all-reduce", "all-gather", "all-to-all"),
    sizes: str = "1MiB:1GiB:4",
    times: tuple[float, ...] = (1.0, 2.0),
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate collectives of a whole domain for several bandwidths of the Z links.

    A link along Z has half the bandwidth of one along X or Y. Every collective is simulated with Z
    as it is and with Z as fast as the other two axes, each time with the fastest algorithm.

    ``cluster``: Trainium2 machine with a Z axis. ``ops``: collective operations, such as
    ``all-reduce``. ``sizes``: first and last size of the buffer, and the factor between two sizes;
    links are the limit from 1 MiB on [B]. ``times``: factors on the bandwidth of a Z link: 1 for
    its real one, 2 for that of X and Y.
    """
    catalogue, fabrics = shipped_catalogue(), {}
    entry = catalogue.entry("trn2", "z_link_bandwidth")
    for factor in times:
        exact = entry.exact * int(factor * 4) / 4
        thicker = entry._replace(exact=exact)
        fabrics[factor] = machine(cluster, catalogue=catalogue.with_rows([thicker]))
    points, tables = [(factor, op) for factor in times for op in ops], []
    for factor, op in watch(points, "collectives"):
        timed = rows(op, whole(fabrics[factor]), parse_sizes(sizes), "best", proof=False)
        tables.append(with_collective_ends(timed, fabrics[factor]).assign(z=factor))
    frame = pd.concat(tables, ignore_index=True)
    first = frame[frame.z == times[0]].set_index(["collective", "size_bytes"]).time_s
    keys = pd.MultiIndex.from_frame(frame[["collective", "size_bytes"]])
    return frame.assign(gain=1 - frame.time_s / first.reindex(keys).to_numpy())


def draw_half_rate_z(frame: pd.DataFrame) -> Figure:
    """Draw the time that each collective would save with the fastest Z, over its size."""
    faster = frame[frame.z == frame.z.max()]
    large = faster[faster.size_bytes == faster.size_bytes.max()]
    gains = ", ".join(f"{row.collective} {row.gain:.0%}" for row in large.itertuples())
    size = format_bytes(int(faster.size_bytes.max()))
    title = (
        f"With links of axis Z {frame.z.max():g} times as fast, {size} saves time: {gains}\n"
        f"{faster.cluster.iloc[0]}, the fastest algorithm each"
    )
    shown = faster.assign(percent=100 * faster.gain, mib=faster.size_bytes // 2**20)
    labels = ("buffer of a chip [MiB]", "less time than with the links as they are [%]")
    return lines(shown, "mib", "percent", "collective", title, labels=labels)
