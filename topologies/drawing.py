"""Drawings of a cluster: a scale-up domain of any shape, and the fabric that joins domains."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from topologies.clusters.cluster import Cluster
from topologies.routing import clos
from topologies.shapes.basic import Axis, Clos, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.links import clos_ends, strides
from topologies.shapes.scale_out import Layer, ScaleOut
from topologies.support.units import format_rate, format_seconds
from topologies.views.measures import Measures, measure

Point = tuple[float, float]
Curve = npt.NDArray[np.floating[Any]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B58900")
"""Colours of tiers, which colour-blind readers can tell apart (after Okabe and Ito)."""

CHIP, SWITCH, QUIET = "#20303f", "#f2c14e", "#7a8894"
"""Colours of chips, of switches, and of notes."""
MOST_SHOWN = 8


def shown(size: int, most: int) -> list[int]:
    """Return the positions of a row that are drawn: all or, of a long row, the first and last."""
    return list(range(size)) if size <= most else [*range(most - 2), size - 1]


def chips(axes: Axes, points: Sequence[Point], numbers: Iterable[int], size: float = 330.0) -> None:
    """Draw chips as discs with their numbers."""
    x, y = zip(*points, strict=True)
    axes.scatter(x, y, s=size, color=CHIP, zorder=3)
    for point, number in zip(points, numbers, strict=True):
        digits = len(str(number))
        font = min(9.0, size**0.5 * (0.5 if digits < 3 else 1.35 / digits))
        label = axes.annotate(
            str(number), point, ha="center", va="center", color="white", fontsize=font, zorder=4
        )
        label.set_in_layout(False)  # it lies on its disc, so the layout need not make room for it


def box(
    axes: Axes, centre: Point, width: float, height: float, text: str = "", *, face: str = SWITCH
) -> None:
    """Draw a rounded box with a text in it."""
    corner = (centre[0] - width / 2, centre[1] - height / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner,
            width,
            height,
            boxstyle=f"round,pad=0,rounding_size={min(width, height) * 0.15}",
            facecolor=face,
            edgecolor=CHIP,
            linewidth=0.9,
            zorder=3,
        )
    )
    axes.annotate(text, centre, ha="center", va="center", fontsize=9, zorder=4)


def lines(
    axes: Axes, curves: Sequence[Curve | Sequence[Point]], colour: str, width: float = 1.6
) -> None:
    """Draw curves, each a sequence of points, below all marks."""
    axes.add_collection(
        LineCollection(
            [np.asarray(curve, float) for curve in curves],
            colors=colour,
            linewidths=width,
            capstyle="round",
            zorder=1,
        )
    )


def bow(start: Point, end: Point, bend: float) -> Curve:
    """Return a curve between two points that bends to the left by ``bend`` at its middle."""
    a, b = np.asarray(start), np.asarray(end)
    along = b - a
    across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9)
    middle = (a + b) / 2 + 2 * bend * across
    t = np.linspace(0.0, 1.0, 17)[:, None]
    return np.asarray((1 - t) ** 2 * a + 2 * t * (1 - t) * middle + t**2 * b)


def note(axes: Axes, point: Point, text: str, **style: Any) -> None:
    """Write small text at a point, grey and centred unless ``style`` says otherwise."""
    usual: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "color": QUIET}
    axes.annotate(text, point, **(usual | style))


def time_text(latency_ps: int) -> str:
    """Write a time, with µs for microseconds."""
    return format_seconds(latency_ps / 10**12).replace("us", "µs")


_MOST_AROUND = 72
_MOST_COLUMNS = 20


def draw_switch(axes: Axes, shape: Switch) -> None:
    """Draw chips around the switch that joins them."""
    around = _around(axes, shape.size)
    lines(axes, [[(0.0, 0.0), point] for point in around], COLOURS[0])
    several = f"\n{shape.links} cables a chip" if shape.links > 1 else ""
    box(axes, (0.0, 0.0), 0.62, 0.3, f"switch{several}")


def draw_mesh(axes: Axes, shape: FullMesh) -> None:
    """Draw chips on a circle, each joined to every other."""
    around = _around(axes, shape.size)
    pairs = [(a, b) for k, a in enumerate(around) for b in around[:k]]
    lines(axes, [list(pair) for pair in pairs], COLOURS[0], max(0.3, 1.6 - len(around) / 30))


def _around(axes: Axes, size: int) -> list[Point]:
    """Draw chips on a circle, as many as can be told apart; returns their places."""
    count = min(size, _MOST_AROUND)
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    points = [(float(np.cos(a)), float(np.sin(a))) for a in angle]
    if size > count:
        note(axes, (0.0, -1.2), f"the first {count} of {size:,} chips")
    chips(axes, points, range(count), 330.0 if count <= 24 else 150.0)
    axes.update_datalim([(-1.0, -1.0), (1.0, 1.0)])
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)
    return points


def draw_tiered(axes: Axes, shape: Tiered) -> None:
    """Draw racks one above the other, with a row for a plane and a column for a board."""
    board = shape.tiers[-1]
    rack = shape.tiers[-2] if len(shape.tiers) > 1 else Tier("", 1, 1, 0)
    racks = shape.chips // (rack.size * board.size)
    rows, columns = shown(board.size, MOST_SHOWN), shown(rack.size, _MOST_COLUMNS)
    height = len(rows) + 1.6
    for number in range(min(racks, 2)):
        top = -number * (height + 1.0)
        base = number * rack.size * board.size
        _rack(axes, top, base, rows, columns, rack, board)
        note(
            axes,
            (-1.0, top - (len(rows) - 1) / 2),
            f"rack {number}" if racks > 1 else "",
            rotation=90,
            color=CHIP,
            fontsize=12,
        )
    if len(shape.tiers) > 2:
        _across(axes, shape, -height + 0.3, len(columns))
    axes.set_aspect("equal", adjustable="datalim")
    axes.update_datalim([(-1.4, 0.6), (-1.4, -height)])
    axes.margins(0.03)


def _rack(
    axes: Axes, top: float, base: int, rows: list[int], columns: list[int], rack: Tier, board: Tier
) -> None:
    """Draw a rack: its chips by board (column) and plane (row), and the links of both tiers."""
    points = [(float(x), top - y) for x in range(len(columns)) for y in range(len(rows))]
    numbers = [base + column * board.size + row for column in columns for row in rows]
    small = 330.0 if len(columns) <= 10 else 230.0
    chips(axes, points, numbers, small)
    if rack.size > 1:
        for y, row in enumerate(rows):
            _plane(axes, top - y, row, len(columns), rack, COLOURS[1])
    for x in range(len(columns)):
        _board(axes, float(x), top, len(rows), board, COLOURS[0])
    if len(columns) < rack.size:
        note(axes, (len(columns) - 1.5, top + 0.55), f"… {rack.size - len(columns)} more …")


def _plane(axes: Axes, y: float, row: int, columns: int, rack: Tier, colour: str) -> None:
    """Draw a bus above the row from every chip to the switches of its plane."""
    bus = y + 0.38
    lines(axes, [[(0.0, bus), (columns + 0.1, bus), (columns + 0.35, y)]], colour)
    lines(axes, [[(float(x), bus), (float(x), y)] for x in range(columns)], colour)
    centre = (columns + 1.95, y)
    if not rack.switches:
        box(axes, centre, 3.2, 0.5, "ring" if rack.ring else "direct links", face="white")
        return
    box(axes, centre, 3.2, 0.78, "", face="#fbf3df")
    text = f"plane {row}: {rack.switches} switches"
    note(axes, (centre[0], y + 0.2), text, fontsize=8, color=CHIP, zorder=5)
    _squares(axes, centre[0], y - 0.15, rack.switches, 0.27)


def _board(axes: Axes, x: float, top: float, rows: int, board: Tier, colour: str) -> None:
    """Draw the links of a board: a ring or mesh of its chips, or links to switches below it."""
    if board.size == 1:
        return
    bottom = top - rows + 1
    if not board.switches:
        pairs = [
            (a, b)
            for a, b in itertools.combinations(range(rows), 2)
            if not board.ring or b - a in (1, board.size - 1)
        ]
        curves = [bow((x, top - a), (x, top - b), 0.14 * (b - a - 1)) for a, b in pairs]
        lines(axes, curves, colour, 2.6 if rows == 2 else 1.2)
        return
    side = x - 0.36
    lines(axes, [[(side, top), (side, bottom - 0.62)]], colour)
    lines(axes, [[(side, top - row), (x, top - row)] for row in range(rows)], colour)
    per_row = -(-board.switches // 2)
    for half in range(2):
        count = min(per_row, board.switches - half * per_row)
        _squares(axes, x - 0.08, bottom - 0.72 - 0.22 * half, count, 0.19)


def _squares(axes: Axes, x: float, y: float, count: int, step: float) -> None:
    at = x + step * (np.arange(count) - (count - 1) / 2)
    axes.scatter(
        at, np.full(count, y), s=34, marker="s", color=SWITCH, edgecolor=CHIP, lw=0.5, zorder=3
    )


def _across(axes: Axes, shape: Tiered, y: float, columns: int) -> None:
    """Draw the links between chips of the same position, as arrows between the racks."""
    tier = shape.tiers[-3]
    for x in np.linspace(0.0, columns - 2.0, 5):
        axes.annotate(
            "",
            (x + 0.5, y - 0.85),
            (x + 0.5, y + 0.25),
            arrowprops={"arrowstyle": "<->", "color": COLOURS[2], "lw": 2.0},
        )
    racks = shape.chips // (shape.sizes[-1] * shape.sizes[-2])
    more = f"; {racks} racks in all, two shown" if racks > 2 else ""
    between = "every chip\nto the chip"
    if tier.switches:
        plural = "es" if tier.switches > 1 else ""
        between = f"{tier.switches} switch{plural}\nbetween the chips"
    elif tier.ring:
        between = "a ring\nof the chips"
    text = f"{tier.name}: {between} in the\nsame position{more}"
    note(axes, (columns + 1.75, y - 0.3), text, color=COLOURS[2])


def draw_clos(axes: Axes, shape: Clos) -> None:
    """Draw chips and the layers of switches above them; of many, only the first."""
    counts = (shape.size, *shape.switches)
    most = 64
    first = np.cumsum([0, *counts])
    src, dst, layer, _ = clos_ends(shape)
    at = np.full((int(first[-1]), 2), np.nan)
    for level, count in enumerate(counts):
        kept = min(count, most)
        spread = (np.arange(kept) + 0.5) / kept * 10
        at[first[level] : first[level] + kept] = np.stack([spread, np.full(kept, 2.2 * level)], 1)
    drawn = (src < dst) & ~np.isnan(at[src, 0]) & ~np.isnan(at[dst, 0])
    for level in range(shape.layers):
        rows = np.flatnonzero(drawn & (layer == level))
        lines(axes, [at[[src[k], dst[k]]] for k in rows], COLOURS[level], 0.8)
    points = [(x, y) for x, y in at[: min(counts[0], most)].tolist()]
    chips(axes, points, range(len(points)), 330.0 if len(points) <= 24 else 90.0)
    for level, count in enumerate(counts[1:], start=1):
        switches = at[first[level] : first[level] + min(count, most)]
        axes.scatter(
            switches[:, 0],
            switches[:, 1],
            s=120,
            marker="s",
            color=SWITCH,
            edgecolor=CHIP,
            zorder=3,
        )
    for level, name in enumerate(("chips", "leaf switches", "spines", "core")[: len(counts)]):
        few = f", the first {most} drawn" if counts[level] > most else ""
        text = f"{counts[level]:,} {name}{few}"
        note(axes, (10.2, 2.2 * level), text, ha="left", color=QUIET)
    axes.margins(0.06)


_LARGEST_CIRCLE = 48
MOST_IN_SPACE = 5
_STUB = 0.34
Place = tuple[int, ...]  # position of a drawn chip along each drawn axis


def has_stubs(shape: Torus) -> bool:
    """Return whether wrapping cables are drawn as stubs at both ends of a line."""
    wraps = any(axis.wrap and axis.size > 2 for axis in shape.axes[_first_drawn(shape) :])
    return wraps and not _is_circle(shape)


def _is_circle(shape: Torus) -> bool:
    around = len(shape.axes) == 1 and shape.axes[0].wrap
    return around and 2 < shape.chips <= _LARGEST_CIRCLE


def _first_drawn(shape: Torus) -> int:
    """Return the first axis that is drawn: the slowest longer than 1 of the three fastest."""
    most = max(0, len(shape.axes) - 3)
    sized = [a for a, axis in enumerate(shape.axes) if a >= most and axis.size > 1]
    return min(sized, default=len(shape.axes) - 1)


def _circle(axes: Axes, shape: Torus) -> None:
    around = _around(axes, shape.chips)
    lines(axes, list(zip(around, (*around[1:], around[0]), strict=True)), COLOURS[0])


def _grid(axes: Axes, shape: Torus) -> None:
    """Draw rows and columns; a third axis as layers, drawn obliquely with its links upright."""
    first = _first_drawn(shape)
    drawn = shape.axes[first:]
    most = MOST_IN_SPACE if len(drawn) == 3 else MOST_SHOWN
    coordinates = [shown(axis.size, most) for axis in drawn]
    steps = _steps(coordinates)
    stride = strides(shape.sizes)[first:]
    places = {
        place: tuple((np.array(place) @ np.array(steps)).tolist())
        for place in itertools.product(*map(range, map(len, coordinates)))
    }
    numbers = {
        place: sum(coordinates[a][rank] * stride[a] for a, rank in enumerate(place))
        for place in places
    }
    for a, axis in enumerate(drawn):
        colour = COLOURS[(len(drawn) - 1 - a) % len(COLOURS)]
        lines(axes, list(_inner(places, a, coordinates[a], axis.size == 2 and axis.wrap)), colour)
        if axis.wrap and axis.size > 2:
            _stubs(axes, places, numbers, a, steps[a], colour)
        if len(coordinates[a]) < axis.size:
            _ellipses(axes, places, a, len(coordinates[a]))
    chips(axes, list(places.values()), numbers.values())
    if len(drawn) == 3:
        for layer in range(len(coordinates[0])):  # its coordinate, and the numbers of its chips
            held = [number for place, number in numbers.items() if place[0] == layer]
            x, y = places[layer, 0, 0]
            back = max(point[1] for place, point in places.items() if place[0] == layer)
            at = f"{drawn[0].name} = {min(held) // stride[0]}"
            text = f"{at}\nchips {min(held):,}–{max(held):,}"
            note(axes, (x - 1.0, (y + back) / 2), text, ha="right", color=CHIP)
        axes.update_datalim([(-2.2, 0.0)])
    hidden = [axis.name for axis in shape.axes[:first] if axis.size > 1]
    if hidden:
        text = f"the slice at {' = '.join(hidden)} = 0"
        note(axes, (0.01, 0.01), text, ha="left", xycoords="axes fraction")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)


def _steps(coordinates: list[list[int]]) -> list[Point]:
    """Return the step on paper for one step along each drawn axis."""
    if len(coordinates) == 1:
        return [(1.0, 0.0)]
    if len(coordinates) == 2:
        return [(0.0, -1.0), (1.0, 0.0)]
    depth = 0.55 * (len(coordinates[1]) - 1)
    return [(0.0, depth + 1.3), (0.42, 0.55), (2.0, 0.0)]


def _moved(place: Place, a: int, rank: int) -> Place:
    """Return a place with another position along axis ``a``."""
    return (*place[:a], rank, *place[a + 1 :])


def _inner(
    places: Mapping[Place, Point], a: int, coordinates: list[int], double: bool
) -> Iterator[Curve]:
    """Yield the curves between neighbours that are both drawn; two cables are two curves."""
    for place, start in places.items():
        rank = place[a]
        after = rank + 1
        if after >= len(coordinates) or coordinates[after] - coordinates[rank] > 1:
            continue
        end = places[_moved(place, a, after)]
        for bend in (0.09, -0.09) if double else (0.0,):
            yield bow(start, end, bend)


def _stubs(
    axes: Axes,
    places: Mapping[Place, Point],
    numbers: Mapping[Place, int],
    a: int,
    step: Point,
    colour: str,
) -> None:
    """Draw short curves at both ends of each line, with the number of the other end's chip."""
    last = max(place[a] for place in places)
    unit = np.array(step) / np.hypot(*step)
    across = np.array([-unit[1], unit[0]]) * (1 if unit[0] > 0.9 else -1)
    curves = []
    for place, point in places.items():
        if place[a] not in (0, last):
            continue
        way = 1 if place[a] == last else -1
        other = numbers[_moved(place, a, 0 if way == 1 else last)]
        end = np.array(point) + way * _STUB * unit - 0.14 * way * across
        curves.append(bow(point, (end[0], end[1]), 0.05))
        label = end + 0.09 * way * unit - 0.05 * way * across
        note(axes, (label[0], label[1]), str(other), fontsize=7.5, color=colour)
    lines(axes, curves, colour)


def _ellipses(axes: Axes, places: Mapping[Place, Point], a: int, ranks: int) -> None:
    for place, start in places.items():
        if place[a] == ranks - 2:
            end = places[_moved(place, a, ranks - 1)]
            note(axes, ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2), "• • •", fontsize=7)


def draw(cluster: Cluster) -> Figure:
    """Draw a cluster: a scale-up domain, or parts of it, and the layers that join all servers."""
    sizes = measure(cluster)
    wide = 6.0 if cluster.scale_out else 0.0
    figure = Figure(figsize=(11.0 + wide, 8.5), layout="constrained")
    ratios = [11.0, wide] if cluster.scale_out else [1.0]
    panels = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
    for panel in panels:
        panel.set_axis_off()
    figure.suptitle(_title(sizes), fontsize=13, linespacing=1.4)
    _draw_domain(panels[0], cluster.shape)
    chips = f"{cluster.chips_per_domain:,} chip{'s' * (cluster.chips_per_domain > 1)}"
    panels[0].set_title(f"One scale-up domain: {chips}", loc="left", fontsize=12)
    _legend(panels[0], cluster.shape)
    if cluster.scale_out:
        draw_scale_out(panels[1], cluster)
    return figure


def _title(sizes: Measures) -> str:
    rates = f"{format_rate(sizes.scale_up_bytes_per_s_per_chip)} scale-up"
    if sizes.scale_out_bytes_per_s_per_chip:
        rates += f" and {format_rate(sizes.scale_out_bytes_per_s_per_chip)} scale-out"
    plural = "" if sizes.diameter_hops == 1 else "s"
    return (
        f"{sizes.cluster}: {sizes.chips:,} chips, {sizes.links:,} directed scale-up links\n"
        f"per chip and direction {rates}; "
        f"diameter {sizes.diameter_hops} hop{plural}, mean {sizes.mean_hops:.2f}; "
        f"bisection {format_rate(sizes.bisection_bytes_per_s)} one direction"
    )


def _draw_domain(axes: Axes, shape: Shape) -> None:
    if isinstance(shape, Torus):
        # Of more than three dimensions, the slice where the slowest are 0.
        (_circle if _is_circle(shape) else _grid)(axes, shape)
    elif isinstance(shape, Switch):
        draw_switch(axes, shape)
    elif isinstance(shape, FullMesh):
        draw_mesh(axes, shape)
    elif isinstance(shape, Clos):
        draw_clos(axes, shape)
    else:
        draw_tiered(axes, shape)


def _legend(axes: Axes, shape: Shape) -> None:
    """Write a legend with an entry for each kind of link (rate, latency) and each kind of node."""
    marks = [Line2D([], [], marker="o", color=CHIP, markersize=10, ls="", label="chip")]
    if isinstance(shape, Switch | Clos) or (isinstance(shape, Tiered) and shape.switches):
        marks.append(
            Line2D([], [], marker="s", color=SWITCH, mec=CHIP, markersize=9, ls="", label="switch")
        )
    for colour, text in _kinds(shape):
        marks.append(Line2D([], [], color=colour, lw=2.4, label=text))
    if isinstance(shape, Torus) and has_stubs(shape):
        text = "stub with a number: cable round to that chip"
        marks.append(Line2D([], [], color="none", label=text))
    axes.legend(
        handles=marks,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=2,
        frameon=False,
        fontsize=9.5,
    )


def _kinds(shape: Shape) -> list[tuple[str, str]]:
    """Return the colour and the description of each kind of link."""
    rows: Sequence[tuple[str, Axis | Tier | Clos | FullMesh | Switch]]
    if isinstance(shape, Torus | Tiered):
        lines = (shape.axes if isinstance(shape, Torus) else shape.tiers)[::-1]
        rows = [(f"{line.name}: ", line) for line in lines]
    elif isinstance(shape, Clos):
        layers = ("chip to leaf", "leaf to spine", "spine to core")[: shape.layers]
        rows = [(f"{name}: ", shape) for name in layers]
    else:
        rows = [("", shape)]
    end = "cable" if isinstance(shape, Torus) else "link"
    end = "chip" if isinstance(shape, Tiered | Switch) else end
    return [
        (
            COLOURS[number % len(COLOURS)],
            f"{name}{format_rate(line.bandwidth_bytes_per_s)} a {end} and direction, "
            f"{time_text(line.latency_ps)} a hop",
        )
        for number, (name, line) in enumerate(rows)
        if line.size > 1 or len(rows) == 1
    ][: len(COLOURS)]


# Distance between layers, and width of a row, in units of the axes.
_STEP = 2.0
_WIDTH = 8.0


def draw_scale_out(axes: Axes, cluster: Cluster) -> None:
    """Draw the groups of each layer, and the rate at which a group can send upwards."""
    fabric, layers = clos(cluster)
    each = f"{cluster.chips_per_server} chip{'s' * (cluster.chips_per_server > 1)}"
    adapters = _count(fabric.adapters_per_server, "adapter")
    servers = f"{_count(cluster.servers, 'server')} of {each}, {adapters}"
    _row(axes, 0, cluster.servers, servers, "white")
    for number, layer in enumerate(layers):
        _row(axes, number + 1, layer.groups, _layer_text(fabric, layer, number, cluster), SWITCH)
        _arrow(axes, number, _rise_text(fabric, layers, number, cluster))
    axes.set_title(f"Scale-out fabric: {fabric.name}", loc="left", fontsize=12)
    middle = len(layers) * _STEP / 2 - 0.5
    half = max(5.2, len(layers) * _STEP / 2 + 1.6)
    axes.set_xlim(-0.2, _WIDTH + 0.2)
    axes.set_ylim(middle - half, middle + half)
    note(
        axes,
        (_WIDTH / 2, -1.4),
        "Traffic is spread evenly over all parallel links and switches, so each box\n"
        "stands for all the switches of its group. Rates are one direction.",
        fontsize=8.5,
    )


def _row(axes: Axes, level: int, count: int, text: str, face: str) -> None:
    """Draw one box for each group, at most six of them."""
    y = level * _STEP
    boxes = min(count, 6)
    width = min(1.05, 0.82 * _WIDTH / max(boxes, 1))
    left = (_WIDTH - boxes * 1.25) / 2 + 0.625
    for k in range(boxes):
        last = k == boxes - 1 and count > boxes
        label = "" if last or count == 1 else str(k)
        box(axes, (left + 1.25 * k, y), width, 0.5, "…" if last else label, face=face)
    note(axes, (_WIDTH / 2, y - 0.48), text, color=CHIP)


def _arrow(axes: Axes, level: int, text: str) -> None:
    low, high = level * _STEP + 0.35, (level + 1) * _STEP - 0.75
    axes.annotate(
        "",
        (_WIDTH / 2, high),
        (_WIDTH / 2, low),
        arrowprops={"arrowstyle": "<->", "color": QUIET, "lw": 2.2},
    )
    note(axes, (_WIDTH / 2 + 0.25, (low + high) / 2), text, ha="left", fontsize=8.5)


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count > 1)}"


def _layer_text(fabric: ScaleOut, layer: Layer, number: int, cluster: Cluster) -> str:
    below = min(layer.chips, cluster.chips)
    rails = f" of {fabric.rails} rails" if number == 0 and fabric.rails > 1 else ""
    if layer.groups == 1:
        return f"one {layer.name} group{rails}"
    return f"{layer.groups:,} {layer.name} groups{rails}, up to {below:,} chips each"


def _rise_text(fabric: ScaleOut, layers: tuple[Layer, ...], number: int, cluster: Cluster) -> str:
    """Describe the links that lead up into layer ``number``, and the time of a step over it."""
    climb_ps = fabric.climb_ps[min(number, len(fabric.climb_ps) - 1)]
    step = f"{time_text(fabric.latency_ps + climb_ps)} a step"
    if number == 0:
        server = format_rate(fabric.bandwidth_bytes_per_s * cluster.chips_per_server)
        return f"{format_rate(fabric.bandwidth_bytes_per_s)} a chip, {server} a server\n{step}"
    below = layers[number - 1]
    return f"{format_rate(below.up_bytes_per_s)} a group over {below.up_links:,} links\n{step}"
