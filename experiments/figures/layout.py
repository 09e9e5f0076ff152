"""Saving of figures: where their parts stand, found without drawing, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INCHES_OF_PAD = 0.1
"""Margin around the tight box of a saved figure."""
DOTS_PER_INCH = 160
"""Resolution of a PNG, at which the parts are laid out as well, so that texts are measured once."""
PNG: Mapping[str, Any] = {"compress_level": 3}
"""Options of the PNG writer: the usual level takes twice the time for a tenth of the bytes."""
LETTERS: dict[Any, str] = {"text.hinting": "no_hinting", "svg.fonttype": "path"}
"""Letters as they are drawn by their designer, not bent to the grid of small screens.

Their widths are then the same at every resolution, and are found in a third of the time.
"""


def lay_out(figure: Figure) -> None:
    """Let the layout engine of a figure, if it has one, put its parts in their places.

    ``Figure.draw_without_rendering`` does the same and computes all that is drawn besides, which
    of a timeline takes five times as long.
    """
    import matplotlib as mpl

    engine = figure.get_layout_engine()
    if engine is not None:
        with mpl.rc_context(LETTERS):
            engine.execute(figure)


def settle(figure: Figure) -> Bbox:
    """Lay out a figure for good; returns the box of its saved picture [inches].

    Saving would lay it out again for each file.
    """
    import matplotlib as mpl

    figure.dpi = DOTS_PER_INCH
    lay_out(figure)
    figure.set_layout_engine(None)
    with mpl.rc_context(LETTERS):
        return figure.get_tightbbox().padded(INCHES_OF_PAD)


def save(figure: Figure, box: Bbox, svg: Path, png: Path) -> None:
    """Write a settled figure twice, as a drawing and as pixels; the same figure, the same bytes.

    Parameters
    ----------
    figure : Figure
    box : Bbox
        Box of the picture, as :func:`settle` gives it [inches].
    svg, png : path
        Files that are written. The name of the first enters the names inside the drawing, so that
        two of them can stand in one page.
    """
    import matplotlib as mpl

    with mpl.rc_context({**LETTERS, "svg.hashsalt": svg.stem}):
        figure.savefig(svg, metadata={"Date": None}, bbox_inches=box)
        figure.savefig(png, dpi=DOTS_PER_INCH, bbox_inches=box, pil_kwargs=dict(PNG))
