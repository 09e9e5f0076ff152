"""The local page of the explorer, on Panel: sliders above, the answers below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from experiments.explore.answers import Explored, Parts, moved
from experiments.figures.training import stacked
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from topologies.units import format_bytes, format_seconds

LOW, HIGH, STEP = 0.5, 2.0, 0.05
"""Ends and step of a slider, over the catalogue's number."""


def pictures(runs: Sequence[Explored], numbers: Catalogue) -> tuple[str, list[Figure]]:
    """Answer all runs with these numbers: what changed, in words, and the pictures."""
    told: list[str] = []
    every: dict[str, dict[str, tuple[Parts, Parts]]] = {"train": {}, "collective": {}}
    for run in runs:
        parts = run.ask(numbers)
        before, after = sum(run.recorded.values()), sum(parts.values())
        told.append(
            f"**{run.name}**: {format_seconds(after)}, {after / before - 1:+.1%} over what the "
            f"run found ({format_seconds(before)})"
        )
        every[run.kind][run.name] = (run.recorded, parts)
    draw = {"train": _steps, "collective": _times}
    return "\n\n".join(told), [draw[kind](some) for kind, some in every.items() if some]


def _steps(steps: Mapping[str, tuple[Parts, Parts]]) -> Figure:
    """Parts of steps as bars, a mark where each stood as recorded."""
    after = [now for _, now in steps.values()]
    marks = [sum(before.values()) for before, _ in steps.values()]
    notes = [format_seconds(sum(one.values())) for one in after]
    return stacked(list(steps), after, notes, marks=marks, mark="as recorded")


def _times(sizes: Mapping[str, tuple[Parts, Parts]]) -> Figure:
    """Times of collectives over their sizes, dashed as recorded."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    axes, shade = figure.subplots(), colors(sizes)
    for name, (before, after) in sizes.items():
        for parts, style in ((before, "--"), (after, "o-")):
            label = name if style != "--" else None
            at = [int(size) for size in parts]
            axes.plot(at, list(parts.values()), style, ms=4, color=shade[name], label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="size of the buffer (dashed: as recorded)", ylabel="time")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(int(size))))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.yaxis.set_minor_formatter("")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def panel() -> Any:
    """Return the module of Panel.

    Raises
    ------
    InputError
        When it is not installed.
    """
    try:
        import panel as module
    except ImportError:
        raise InputError(
            "explore needs Panel, which is not installed. Install it with "
            "pip install 'cluster-sim[explore]'."
        ) from None
    return module


def page(
    runs: Sequence[Explored],
    sweeps: Mapping[str, pd.DataFrame],
    names: Sequence[str],
    numbers: Catalogue,
) -> Any:
    """Build the page: a slider for each name of the catalogue, the answers, tables of sweeps."""
    pn = panel()
    sliders = {
        name: pn.widgets.FloatSlider(
            name=f"{name} ×", start=LOW, end=HIGH, step=STEP, value=1.0, width=320
        )
        for name in names
    }

    def view(*factors: float) -> Any:
        told, figures = pictures(runs, moved(numbers, dict(zip(names, factors, strict=True))))
        drawn = [pn.pane.Matplotlib(one, format="svg", width=900, tight=False) for one in figures]
        return pn.Column(pn.pane.Markdown(told), *drawn)

    answers = pn.bind(view, *(one.param.value_throttled for one in sliders.values()))
    tables = [
        pn.Column(
            pn.pane.Markdown(f"### Sweep {name}"),
            pn.widgets.DataFrame(frame, width=1200, height=320, disabled=True),
        )
        for name, frame in sweeps.items()
    ]
    head = "## cluster-sim explore\nMove a number of the catalogue and see what the runs become."
    left = pn.Column(pn.pane.Markdown(head), *sliders.values(), width=360)
    return pn.Row(left, pn.Column(*([answers] if runs else []), *tables))
