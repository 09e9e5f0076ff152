"""Places of the parts of a figure, found without drawing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INCHES_OF_PAD = 0.1
"""Margin around the tight box of a saved figure."""


def lay_out(figure: Figure) -> None:
    """Let the layout engine of a figure, if it has one, put its parts in their places.

    ``Figure.draw_without_rendering`` does the same and computes all that is drawn besides, which
    of a timeline takes five times as long.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def settle(figure: Figure) -> Bbox:
    """Lay out a figure for good; returns the box of its saved picture [inches].

    Saving would lay it out again for each file.
    """
    lay_out(figure)
    figure.set_layout_engine(None)
    return figure.get_tightbbox().padded(INCHES_OF_PAD)
