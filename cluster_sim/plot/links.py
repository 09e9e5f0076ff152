"""The link map: a drawing of a torus with each direction of each cable coloured by its load."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from cluster_sim.analysis.metrics import resource_use
from cluster_sim.trace.trace import Trace
from topologies.clusters.cluster import Cluster
from topologies.drawing import Curve, bow, chips, note
from topologies.shapes.basic import Torus
from topologies.shapes.links import Links, coordinates, domain_links
from topologies.support.arguments import checked
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError

MOST_CHIPS = 1024  # most chips of a domain that are drawn; more would be dots
BOW = 0.055  # distance that a line keeps to the right of the way between two chips one apart
STUB = 0.42  # length of a stub, where two neighbouring chips are at distance 1
WIDTH = 3.2  # width of the lines of the fastest links [pt]; slower links are thinner
GAP = 1.3  # distance between layers
DIRECTIONS = ((1.0, 0.0), (0.0, -1.0), (0.7, 0.7), (-0.7, 0.7))
"""Direction on paper of each axis from the fastest on; all further axes share the last."""
COLD_TO_HOT = ("#d9dee3", "#c3a5d6", "#b8408a", "#6b2a00")
"""From an idle link to a busy one. In dark mode reports invert lightness and keep hues; busy links
are then the brightest, and orange."""


@checked()
def link_map(trace: Trace, cluster: Cluster, *, domain: int = 0, title: str = "") -> Figure:
    """Draw the share of the run in which each directed link of a torus was busy.

    Chips stand in rows and columns by the two fastest axes; slower axes are layers beside one
    another. A cable is drawn as two lines, one for each direction, with traffic on the right.
    Cables that wrap around are stubs at both ends; cables between layers are slanting stubs.

    Parameters
    ----------
    trace : Trace
        Trace of a schedule on the links of ``cluster``.
    cluster : Cluster
        Cluster whose shape is a torus, a grid or a ring.
    domain : int
        Number of the scale-up domain that is drawn.
    title : str
        Title of the figure; by default ``Load of the links``.

    Returns
    -------
    matplotlib.figure.Figure
        The drawing, which ``savefig`` writes to a file.

    Raises
    ------
    InputError
        When the cluster has another shape, or is too large to be drawn.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> grid = cs.cluster("torus:4x4", bandwidth="100GB/s", latency="1us")
    >>> schedule = cs.collective("all-reduce", grid, size_bytes="1MiB", algorithm="torus")
    >>> len(link_map(cs.simulate(schedule), grid).axes)
    2
    """
    shape = _drawable(cluster)
    links = domain_links(shape)
    load = link_load(trace, cluster, links, domain)
    at = _places(shape)
    spread = np.ptp(at, axis=0)
    size = np.clip(spread * 0.85 + (3.4, 2.4), (5.5, 3.6), (17.0, 12.0))
    figure = Figure(figsize=(float(size[0]), float(size[1])), layout="constrained")
    axes = figure.subplots()
    drawn = _draw_links(axes, shape, links, load, at)
    first = domain * cluster.chips_per_domain
    chips(axes, [(x, y) for x, y in at.tolist()], range(first, first + shape.chips), size=210.0)
    _layer_names(axes, shape, at)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.75, pad=0.02)
    bar.set_label("share of the run in which the link is busy")
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.set_title(title or "Load of the links", loc="left", fontsize=11)
    axes.set_xlabel(_summary(shape, links, load), fontsize=9)
    axes.set_aspect("equal")
    axes.margins(0.04)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


def _drawable(cluster: Cluster) -> Torus:
    """Return the shape of a cluster, and refuse one that no link map can show."""
    shape = cluster.shape
    if not isinstance(shape, Torus):
        raise InputError(
            f"{cluster.name} is no torus; a link map is drawn of rings, grids and tori only"
        )
    if shape.chips > MOST_CHIPS:
        raise InputError(
            f"a link map of {shape.chips:,} chips; at most {MOST_CHIPS:,} can be told apart. "
            "Draw a smaller torus."
        )
    return shape


def link_load(trace: Trace, cluster: Cluster, links: Links, domain: int = 0) -> FloatArray:
    """Return the share of the run in which each link of a domain was busy, float (links,)."""
    use = resource_use(trace).assign(lane=trace.schedule.resources.lane)
    of_links = use.loc[use["kind"] == "link", ["owner", "peer", "lane", "utilisation"]]
    first = domain * cluster.chips_per_domain
    wanted = {
        (owner - first, peer - first, lane): share
        for owner, peer, lane, share in of_links.itertuples(index=False)
    }
    ends = zip(links.src.tolist(), links.dst.tolist(), links.lane.tolist(), strict=True)
    return np.array([wanted.get(link, 0.0) for link in ends], float)


def _places(shape: Torus) -> FloatArray:
    """Return the place of each chip on paper, float (chips, 2): columns right, rows downwards."""
    at = coordinates(shape, np.arange(shape.chips))
    column = np.asarray(at[-1], float)
    row = np.asarray(at[-2], float) if len(at) > 1 else np.zeros(shape.chips)
    layer = _layer(shape)
    across = int(np.ceil(np.sqrt(layer.max() + 1)))
    wide = shape.sizes[-1] + GAP
    high = (shape.sizes[-2] if len(shape.sizes) > 1 else 1) + GAP
    return np.stack([column + layer % across * wide, -(row + layer // across * high)], axis=1)


def _layer(shape: Torus) -> IntArray:
    """Return the layer of each chip, which its coordinates on the slower axes give."""
    inside = int(np.prod(shape.sizes[-2:]))
    return np.asarray(np.arange(shape.chips) // inside)


def _draw_links(
    axes: Axes, shape: Torus, links: Links, load: FloatArray, at: FloatArray
) -> LineCollection:
    """Draw every directed link, the busiest on top; returns the lines for the colour bar."""
    curves: list[Curve] = []
    shares: list[float] = []
    widths: list[float] = []
    rate = links.bandwidth_bytes_per_s / links.bandwidth_bytes_per_s.max(initial=1)
    for link in np.argsort(load, kind="stable").tolist():
        pieces = _curves(shape, links, link, at)
        curves += pieces
        shares += [float(load[link])] * len(pieces)
        widths += [WIDTH * float(rate[link]) ** 0.7] * len(pieces)
    colours = LinearSegmentedColormap.from_list("load", COLD_TO_HOT)
    drawn = LineCollection(
        curves, array=np.array(shares), cmap=colours, linewidths=widths, capstyle="butt", zorder=1
    )
    drawn.set_clim(0.0, 1.0)
    axes.add_collection(drawn)
    return drawn


def _curves(shape: Torus, links: Links, link: int, at: FloatArray) -> list[Curve]:
    """Return the curve of a link between neighbours on paper; of others, a stub at each end."""
    src, dst, axis = int(links.src[link]), int(links.dst[link]), int(links.tier[link])
    from_end = len(shape.axes) - 1 - axis
    # Up is to the next larger coordinate; on an axis of two the lane tells.
    lane = int(links.lane[link])
    begin, end = coordinates(shape, [src, dst])[axis]
    size = shape.sizes[axis]
    upwards = bool(begin < end) != bool(lane) if size == 2 else bool((end - begin) % size == 1)
    direction = np.array(DIRECTIONS[min(from_end, len(DIRECTIONS) - 1)]) * (1 if upwards else -1)
    are_neighbours = np.hypot(*(at[dst] - at[src])) < 1.01
    if from_end < 2 and are_neighbours:
        bend = -BOW * (1 + 2 * int(links.lane[link]))
        return [bow(tuple(at[src]), tuple(at[dst]), bend)]
    right = np.array([direction[1], -direction[0]]) * BOW
    out, into = at[src] + right, at[dst] + right
    return [np.stack([out, out + STUB * direction]), np.stack([into - STUB * direction, into])]


def _layer_names(axes: Axes, shape: Torus, at: FloatArray) -> None:
    """Write the coordinates along the slower axes above each layer."""
    slower = [axis for axis in shape.axes[:-2] if axis.size > 1]
    if not slower:
        return
    inside = int(np.prod(shape.sizes[-2:]))
    for layer in range(shape.chips // inside):
        first = layer * inside
        place = coordinates(shape, [first])
        names = [
            f"{axis.name} = {int(axis_place[0])}"
            for axis, axis_place in zip(shape.axes, place, strict=True)
            if axis in slower
        ]
        point = (float(at[first, 0]) - 0.1, float(at[first, 1]) + 0.72)
        note(axes, point, ", ".join(names), ha="left", fontsize=10)


def _summary(shape: Torus, links: Links, load: FloatArray) -> str:
    """Describe the mean and largest load of each axis, and how to read the lines."""
    words = []
    for axis, name in enumerate(links.tiers):
        of_axis = load[links.tier == axis]
        if len(of_axis):
            words.append(
                f"{name}: mean {100 * of_axis.mean():.0f} %, most {100 * of_axis.max():.0f} %"
            )
    how = "two lines a cable, traffic keeps to the right"
    slower = [axis.name for axis in shape.axes[:-2] if axis.size > 1]
    if any(axis.wrap and axis.size > 2 for axis in shape.axes):
        how += "; stubs go round to the other end"
    if len(np.unique(links.bandwidth_bytes_per_s)) > 1:
        how += "; thin lines are slower links"
    if slower:
        how += f"; slanting stubs lead along {' and '.join(slower)} to the next layer"
    return " · ".join(words) + "\n" + how
