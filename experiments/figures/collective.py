"""Figures of one collective: bandwidth against size, load of the links, and a timeline."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from cluster_sim.plot.links import link_map
from cluster_sim.plot.palette import colors, marks
from cluster_sim.plot.timeline_figure import Legend, timeline
from cluster_sim.trace.trace import Trace
from experiments.figures.layout import canvas, logarithmic, over_bytes
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.support.units import format_bytes, format_rate

WORDS = {
    "issue": "issue: a CC-Core starts a message",
    "pass": "pass: a message crosses a link to a chip\non its way, or leaves by an adapter",
    "copy": "copy: it arrives and replaces\nwhat the receiver holds",
    "reduce": "reduce: it arrives and is added\nto what the receiver holds",
}
"""Meaning of the timeline's colours."""
LANES = (
    "A lane for each link, CC-Core and adapter; and for each memory (hbm) between the ranks of its "
    "chip, where messages share it."
)


MOST_TICKS = 8  # most sizes for which the axis of a bandwidth figure has a tick each
BAND = 0.15  # opacity of the 80 % interval about a line
ALIKE = 1.05  # largest ratio of two bandwidths that count as about the same


def figures(
    frame: pd.DataFrame, trace: Trace, cluster: Cluster
) -> dict[str, tuple[Figure, str, str]]:
    """Draw a collective: figure, title and note by name; links of rings, grids and tori only."""
    last = frame.iloc[-1]
    what = f"{last.collective} of {format_bytes(int(last.size_bytes))}, {last.algorithm}"
    drawings = {"busbw": (bandwidth(frame), "Bus bandwidth against size", "")}
    if not len(trace) or trace.total_ps == 0:
        return drawings
    if isinstance(cluster.shape, Torus) and "link" in trace.schedule.resources.kinds:
        loads = link_map(trace, cluster, title=f"Load of the links: {what} on {cluster.name}")
        drawings["links"] = (loads, "Load of the links", f"{what}: one line each way of a cable.")
    if (trace.schedule.resource >= 0).any():
        title = f"{what} on {cluster.name}: what links, CC-Cores and memories do when"
        drawings["timeline"] = (
            timeline(trace, legend=Legend(words=WORDS), title=title),
            "Links, CC-Cores and memories over time",
            LANES,
        )
    return drawings


def bandwidth(frame: pd.DataFrame) -> Figure:
    """Draw bus bandwidth against size, with the upper limit for any algorithm."""
    figure, axes = canvas(8, 4.8)
    first = frame.iloc[0]
    moved = frame[(frame.size_bytes > 0) & (frame.time_s > 0)]
    _draw_limit(axes, moved)
    _draw_algorithms(axes, moved)
    if "measured_busbw_bytes_per_s" in moved:
        seen = moved.dropna(subset="measured_busbw_bytes_per_s").sort_values("size_bytes")
        measured = seen.measured_busbw_bytes_per_s / 1e9
        axes.plot(seen.size_bytes, measured, "kx", ms=5, label="measured")
    sizes = sorted(set(moved.size_bytes))
    over_bytes(axes)
    axes.xaxis.set_minor_locator(NullLocator())
    if len(sizes) <= MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(sizes))
    if len(sizes) > 1:
        logarithmic(axes, "y", "{:,.6g}".format)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.6g}")
    axes.set(xlabel="size of the buffer, as nccl-tests counts it", ylabel="bus bandwidth [GB/s]")
    what = f"{first.collective} on {first.cluster}, {int(first.ranks):,} ranks"
    axes.set_title(f"{what}\n{_finding(moved)}", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _draw_algorithms(axes: Axes, moved: pd.DataFrame) -> None:
    """Draw a line and its interval for each algorithm, told apart by colour and mark."""
    shades = colors(dict.fromkeys(moved.algorithm))
    shapes = marks(shades)
    for name, rows in moved.groupby("algorithm", sort=False):
        line = rows.sort_values("size_bytes")
        rate, shade = line.busbw_bytes_per_s / 1e9, shades[str(name)]
        axes.plot(line.size_bytes, rate, f"{shapes[str(name)]}-", ms=4, color=shade, label=name)
        _draw_interval(axes, line, shade)
    if _ends(moved):
        axes.fill_between([], [], color="0.5", alpha=2 * BAND, lw=0, label="80 % of measurements")


def _draw_interval(axes: Axes, line: pd.DataFrame, shade: str) -> None:
    """Draw the bandwidths at the ends of each time's interval, where rows have them."""
    ends = _ends(line)
    if not ends:
        return
    moved = line.busbw_bytes_per_s * line.time_s / 1e9
    slowest, fastest = moved / line[ends[1]], moved / line[ends[0]]
    if len(line) > 1:
        axes.fill_between(line.size_bytes, slowest, fastest, color=shade, alpha=BAND, lw=0)
    else:
        axes.vlines(line.size_bytes, slowest, fastest, color=shade, alpha=2 * BAND, lw=4)


def _ends(frame: pd.DataFrame) -> tuple[str, str] | None:
    """Columns of the intervals' ends, of a command's rows or an experiment's; None for points."""
    for low, high in (("low", "high"), ("low_s", "high_s")):
        if {low, high} <= set(frame.columns) and (frame[high] > frame[low]).any():
            return low, high
    return None


def _draw_limit(axes: Axes, moved: pd.DataFrame) -> None:
    """Draw the bus bandwidth of a run that would take no longer than the lower bound."""
    bounded = moved[moved.lower_bound_s > 0].drop_duplicates("size_bytes").sort_values("size_bytes")
    limit = bounded.busbw_bytes_per_s * bounded.time_s / bounded.lower_bound_s / 1e9
    mark = "_" if len(bounded) == 1 else ""
    set_by = "links and memory" if (bounded.bound == "hbm").any() else "links"
    label = f"{set_by} at their full rate, no losses"
    axes.plot(bounded.size_bytes, limit, "--", color="0.45", marker=mark, label=label)


def _finding(frame: pd.DataFrame) -> str:
    last = frame[frame.size_bytes == frame.size_bytes.max()].sort_values("busbw_bytes_per_s")
    best = last.iloc[-1]
    sentence = (
        f"At {format_bytes(int(best.size_bytes))} {best.algorithm} reaches "
        f"{format_rate(best.busbw_bytes_per_s)}"
    )
    if len(last) == 1:
        return sentence
    second = last.iloc[-2]
    times = best.busbw_bytes_per_s / second.busbw_bytes_per_s
    beside = f"{times:.2g} times" if times > ALIKE else "hardly more than"
    return f"{sentence}, {beside} {second.algorithm}, the next best"
