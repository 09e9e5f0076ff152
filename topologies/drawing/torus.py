"""Drawings of rings, grids and tori: a circle, a grid, or layers of grids one above the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes

from topologies.drawing.marks import (
    CHIP,
    COLOURS,
    MOST_SHOWN,
    Curve,
    Point,
    bow,
    chips,
    lines,
    note,
    shown,
)
from topologies.shapes.basic import Torus
from topologies.shapes.links import strides

_LARGEST_CIRCLE = 48
"""Most chips of a ring that is drawn as a circle."""
MOST_IN_SPACE = 5
"""Most positions along an axis that are drawn in three dimensions."""
_STUB = 0.34
"""Length of a stub."""
Place = tuple[int, ...]
"""Position of a drawn chip along each drawn axis."""


def draw_torus(axes: Axes, shape: Torus) -> None:
    """Draw a torus; of more than three dimensions, the slice where the slowest are 0."""
    if _is_circle(shape):
        _circle(axes, shape)
    else:
        _grid(axes, shape)


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
    angle = np.pi / 2 - 2 * np.pi * np.arange(shape.chips) / shape.chips
    around = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lines(axes, [around[[k, k - 1]] for k in range(shape.chips)], COLOURS[0])
    chips(axes, [(x, y) for x, y in around.tolist()], range(shape.chips))
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)


def _grid(axes: Axes, shape: Torus) -> None:
    """Draw rows and columns; a third axis as layers, drawn obliquely with its links upright."""
    first = _first_drawn(shape)
    drawn = shape.axes[first:]
    most = MOST_IN_SPACE if len(drawn) == 3 else MOST_SHOWN
    coordinates = [shown(axis.size, most) for axis in drawn]
    steps = _steps(coordinates)
    stride = strides(shape.sizes)[first:]
    places = {place: _point(place, steps) for place in itertools.product(*map(_ranks, coordinates))}
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
        _layer_labels(axes, places, numbers, drawn[0].name, stride[0])
        axes.update_datalim([(-2.2, 0.0)])
    hidden = [axis.name for axis in shape.axes[:first] if axis.size > 1]
    if hidden:
        text = f"the slice at {' = '.join(hidden)} = 0"
        note(axes, (0.01, 0.01), text, ha="left", xycoords="axes fraction")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)


def _ranks(coordinates: list[int]) -> range:
    return range(len(coordinates))


def _steps(coordinates: list[list[int]]) -> list[Point]:
    """Return the step on paper for one step along each drawn axis."""
    if len(coordinates) == 1:
        return [(1.0, 0.0)]
    if len(coordinates) == 2:
        return [(0.0, -1.0), (1.0, 0.0)]
    depth = 0.55 * (len(coordinates[1]) - 1)
    return [(0.0, depth + 1.3), (0.42, 0.55), (2.0, 0.0)]


def _point(place: Place, steps: list[Point]) -> Point:
    x = sum(rank * step[0] for rank, step in zip(place, steps, strict=True))
    y = sum(rank * step[1] for rank, step in zip(place, steps, strict=True))
    return x, y


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


def _layer_labels(
    axes: Axes,
    places: Mapping[Place, Point],
    numbers: Mapping[Place, int],
    name: str,
    stride: int,
) -> None:
    """Write beside each layer its coordinate and the numbers of its chips."""
    for layer in sorted({place[0] for place in places}):
        chips = [number for place, number in numbers.items() if place[0] == layer]
        x, y = places[layer, 0, 0]
        back = max(point[1] for place, point in places.items() if place[0] == layer)
        text = f"{name} = {min(chips) // stride}\nchips {min(chips):,}–{max(chips):,}"
        note(axes, (x - 1.0, (y + back) / 2), text, ha="right", color=CHIP)


def _ellipses(axes: Axes, places: Mapping[Place, Point], a: int, ranks: int) -> None:
    for place, start in places.items():
        if place[a] == ranks - 2:
            end = places[_moved(place, a, ranks - 1)]
            note(axes, ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2), "• • •", fontsize=7)
