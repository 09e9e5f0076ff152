"""Drawings of switches, full meshes, the tiers of Trn3, and a Clos of individual switches."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes

from topologies.drawing.marks import (
    CHIP,
    COLOURS,
    MOST_SHOWN,
    QUIET,
    SWITCH,
    Point,
    bow,
    box,
    chips,
    lines,
    note,
    shown,
)
from topologies.shapes.basic import Clos, FullMesh, Switch, Tier, Tiered
from topologies.shapes.links import clos_ends

_MOST_AROUND = 72
"""Most chips that are drawn on a circle."""
_MOST_COLUMNS = 20
"""Most boards of a rack that are drawn."""


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
    axes: Axes,
    top: float,
    base: int,
    rows: list[int],
    columns: list[int],
    rack: Tier,
    board: Tier,
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
            for a, b in combinations(range(rows), 2)
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
