"""Panels and axes of figures, their layout without drawing, and their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from topologies.support.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INCHES_OF_PAD = 0.1
DOTS_PER_INCH = 160
"""Resolution of a PNG, at which the parts are laid out as well, so that texts are measured once."""
PNG: Mapping[str, Any] = {"compress_level": 3}
"""Options of the PNG writer: the default level takes twice the time for a tenth of the bytes."""
LETTERS: dict[Any, str] = {"text.hinting": "no_hinting", "svg.fonttype": "path"}
"""Options of text: no hinting to the pixel grid.

Without it, texts have the same widths at every resolution, and are measured in a third of the time.
"""


def canvas(
    wide: float, high: float, rows: int = 1, columns: int = 1, **how: Any
) -> tuple[Figure, Any]:
    """Return a figure of a size [inches] and its panels, as ``Figure.subplots`` returns them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained")
    return figure, figure.subplots(rows, columns, **how)


def entitle(figure: Figure, title: str, size: float = 10.5) -> None:
    """Write a title above all panels, from the left edge of the figure."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=size)


def legend_beside(axes: Axes, title: str | None = None, *, upwards: bool = False) -> None:
    """Write the legend to the right of a panel; ``upwards`` in the order of a stack."""
    axes.legend(
        title=title, frameon=False, reverse=upwards, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


def dress(axes: Axes, across: str, up: str, *, grid: Literal["both", "x", "y", ""] = "") -> None:
    """Label the axes of a panel, which keeps two sides of its frame, and draw a light grid."""
    axes.set(xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, alpha=0.3)


def logarithmic(
    axes: Axes,
    which: Literal["x", "y"],
    text: Callable[[float], str] = "{:g}".format,
    subs: Sequence[float] = (1, 2, 5),
) -> None:
    """Make an axis logarithmic, with a label at every power of ten and at some between."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    least, most = sorted(axis.get_view_interval())
    # In a narrow span a logarithmic locator finds one place, and takes as many as overlap instead.
    axis.set_major_locator(LogLocator(subs=subs) if most > 4 * least else MaxNLocator(4))
    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_minor_formatter("")


def over_bytes(axes: Axes) -> None:
    """Make the horizontal axis one of sizes in bytes, with a label at every fourth power of two."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=16, numticks=12))
    axes.xaxis.set_major_formatter(lambda size, _: format_bytes(int(size)))


def lay_out(figure: Figure) -> None:
    """Run the layout engine of a figure, if it has one, to place its parts."""
    # ``Figure.draw_without_rendering`` does this too, but computes all that is drawn: five times as
    # long for a timeline.
    import matplotlib as mpl
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # A name from a file, such as a$b$c, is no formula; the labels of logarithmic axes are.
        if "$" in text.get_text() and not text.get_text().startswith(r"$\mathdefault"):
            text.set_parse_math(False)
    engine = figure.get_layout_engine()
    if engine is not None:
        with mpl.rc_context(LETTERS):
            engine.execute(figure)


def settle(figure: Figure) -> Bbox:
    """Lay out a figure once, and return the bounding box of its picture [inches]."""
    # Without its engine, as saving would run it again for each file.
    import matplotlib as mpl

    figure.dpi = DOTS_PER_INCH
    lay_out(figure)
    figure.set_layout_engine(None)
    with mpl.rc_context(LETTERS):
        return figure.get_tightbbox().padded(INCHES_OF_PAD)


def save(figure: Figure, box: Bbox, svg: Path, png: Path) -> None:
    """Write a laid out figure as SVG and as PNG; equal figures give equal bytes."""
    # The SVG's name is part of the drawing's identifiers, so that a page can contain several.
    import matplotlib as mpl

    with mpl.rc_context({**LETTERS, "svg.hashsalt": svg.stem}):
        figure.savefig(svg, metadata={"Date": None}, bbox_inches=box)
        figure.savefig(png, dpi=DOTS_PER_INCH, bbox_inches=box, pil_kwargs=dict(PNG))
