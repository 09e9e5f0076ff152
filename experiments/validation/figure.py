"""Scatter of predicted against published, on logarithmic axes with bands around the diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAND = 0.2
"""Half width of the shaded band around the diagonal."""


def scatter(compared: Sequence[Mapping[str, Any]], title: str, group: str = "") -> Figure:
    """Draw predicted over published, and a histogram of the errors.

    Parameters
    ----------
    compared : sequence of dict
        Rows of :func:`experiments.validation.compare.compare`.
    title : str
    group : str
        Column by which the points are coloured; those with few distinct values read well.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    plane, side = figure.subplots(1, 2, width_ratios=(3, 2))
    good = [row for row in compared if row["error"] is not None]
    for name, rows in _groups(good, group).items():
        published = [row["published"] for row in rows]
        predicted = [row["predicted"] for row in rows]
        plane.scatter(published, predicted, s=14, alpha=0.7, linewidths=0, label=name)
    if good:
        _diagonal(plane, good)
        errors = np.clip([100 * row["error"] for row in good], -100, 100)
        side.hist(errors, bins=40, color="0.4")
    plane.set(xlabel=f"published {_quantity(good)}", ylabel=f"predicted {_quantity(good)}")
    side.set(xlabel="error [%], clipped at ±100", ylabel="rows", title="errors")
    side.axvline(0, color="0.7", linewidth=1)
    plane.set_title(title)
    if group and good:
        plane.legend(fontsize="x-small", frameon=False)
    return figure


def _diagonal(plane: Any, good: Sequence[Mapping[str, Any]]) -> None:
    values = [row[key] for row in good for key in ("published", "predicted")]
    line = np.array([min(values) / 1.5, max(values) * 1.5])
    plane.plot(line, line, color="0.5", linewidth=1)
    plane.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="0.9", zorder=0)
    plane.set(xscale="log", yscale="log")


def _quantity(good: Sequence[Mapping[str, Any]]) -> str:
    name = str(good[0]["quantity"]) if good else "value"
    stem, _, unit = name.rpartition("_")
    return f"{stem.replace('_', ' ')} [{unit}]" if stem else name


def _groups(good: Sequence[Mapping[str, Any]], group: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in good:
        found.setdefault(str(row.get(group, "")), []).append(row)
    return found
