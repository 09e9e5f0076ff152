"""Elements that all drawings share: colours, chips, boxes, curves, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyBboxPatch

from topologies.units import format_rate, format_seconds

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


def rate_text(bandwidth_bytes_per_s: int) -> str:
    """Write the rate of a link in one direction."""
    return format_rate(bandwidth_bytes_per_s)


def time_text(latency_ps: int) -> str:
    """Write a time, with µs for microseconds."""
    return format_seconds(latency_ps / 10**12).replace("us", "µs")
