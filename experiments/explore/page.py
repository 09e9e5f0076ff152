"""Local page of the explorer, built with Panel: sliders at the left, answers beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from experiments.explore.answers import CHANGED, Explored, Parts, moved
from experiments.figures.layout import canvas, logarithmic, over_bytes
from experiments.figures.training import stacked
from experiments.reports.formatting import option_name
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from topologies.units import format_seconds

LOW, HIGH, STEP = 0.5, 2.0, 0.05  # ends and step of a slider, as factors on the catalogue's number
SLIDER_WIDTH, ANSWER_WIDTH = 330, 1000  # width of a slider, and largest width of an answer [pixels]
WIDE: Mapping[str, Any] = {"sizing_mode": "stretch_width"}
"""Size of parts that take the available width; on a phone they are below the sliders."""
PHONES = """{% extends base %}
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
{% endblock %}
{% block contents %}{{ embed(roots.page) }}{% endblock %}"""
"""Template of the page; without the preamble a phone would show it at the width of a desktop."""
HEAD = """## cluster-sim explore
State another option, or move a number of the catalogue, and see what the runs become."""
NUMBERS = "Numbers of the catalogue that matter most to these runs:"
WEIGHING = "Finding the numbers of the catalogue that matter most to these runs …"
Weighed = Callable[[], Sequence[str] | None]
"""Returns the numbers that matter most, or None as long as they are being weighed."""
LOOK_MS = 200  # time between two looks whether these numbers are known [ms]


def answer_table(runs: Sequence[Explored], answers: Sequence[Parts]) -> pd.DataFrame:
    """Return a table of the runs: their question, the recorded answer, and the answer now.

    Returns one row a run, all cells text.
    """
    rows = []
    for run, parts in zip(runs, answers, strict=True):
        before, after = sum(run.recorded.values()), sum(parts.values())
        low, high = (format_seconds(end) for end in run.interval_s)
        rows.append(
            {
                "run": run.name,
                "question": run.question,
                "recorded": format_seconds(before),
                "80 % of measured": f"{low} – {high}",
                "now": format_seconds(after),
                "change": f"{after / before - 1:+.1%}",
            }
        )
    return pd.DataFrame(rows)


def pictures(runs: Sequence[Explored], answers: Sequence[Parts]) -> list[Figure]:
    """Draw the answers: one figure of all steps, and one of all collectives."""
    by_kind: dict[str, dict[str, tuple[Parts, Parts]]] = {"train": {}, "collective": {}}
    for run, parts in zip(runs, answers, strict=True):
        # Between dollars matplotlib would read a name as a formula.
        by_kind[run.kind][run.name.replace("$", r"\$")] = (run.recorded, parts)
    draw = {"train": _steps, "collective": _times}
    return [draw[kind](some) for kind, some in by_kind.items() if some]


def _steps(steps: Mapping[str, tuple[Parts, Parts]]) -> Figure:
    after = [now for _, now in steps.values()]
    marks = [sum(before.values()) for before, _ in steps.values()]
    notes = [format_seconds(sum(parts.values())) for parts in after]
    return stacked(list(steps), after, notes, marks=marks, mark="as recorded")


def _times(sizes: Mapping[str, tuple[Parts, Parts]]) -> Figure:
    """Draw times of collectives over their sizes; recorded times are dashed, with hollow marks."""
    figure, axes = canvas(9.5, 4.6)
    shade = colors(sizes)
    for name, (before, after) in sizes.items():
        for parts, style, fill, label in (
            (before, "o--", "none", f"{name}, as recorded"),
            (after, "o-", shade[name], f"{name}, now"),
        ):
            at = [int(size) for size in parts]
            axes.plot(
                at, list(parts.values()), style, color=shade[name], label=label,
                ms=8 if fill == "none" else 4, markerfacecolor=fill,
            )  # fmt: skip
    over_bytes(axes)
    logarithmic(axes, "y", format_seconds)
    axes.set(xlabel="size of the buffer", ylabel="time")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def number_in_words(catalogue: Catalogue, name: str, factor: float) -> str:
    """Text below a slider: the number with its unit, the factor, the grade and the range."""
    part, _, quantity = name.rpartition(".")
    entry = catalogue.entry(part, quantity)
    grade = entry.grade
    if entry.low is not None and entry.high is not None and entry.value:
        span = (f"{end / entry.value:.2f}" for end in (entry.low, entry.high))
        grade += f", may be × {' to '.join(span)}"
    return f"{entry.written.removesuffix(' ratio')} × {factor:.2f} ({grade})"


def panel() -> Any:
    """Import Panel, and return its module."""
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
    weighed: Weighed,
    catalogue: Catalogue,
) -> Any:
    """Build the page: a slider for each number, the answers, and tables of sweeps."""
    pn = panel()
    boxes = _boxes(pn, runs)
    factors = pn.rx({})

    def view(by_number: Mapping[str, float], *values: str) -> Any:
        """Pictures and table for one state of the boxes and sliders, or why there are none."""
        numbers_now = moved(catalogue, by_number)
        texts = {name: text.strip() for name, text in zip(boxes, values, strict=True)}
        changes = {
            name: int(text) if text.isdecimal() else text for name, text in texts.items() if text
        }
        try:
            answers = [run.ask(numbers_now, changes) for run in runs]
        except InputError as mistake:
            return pn.pane.HTML(f"<p><b>{escape(str(mistake))}</b></p>", **WIDE)
        drawn = [
            pn.pane.Matplotlib(
                figure, format="svg", tight=False, sizing_mode="scale_width",
                max_width=ANSWER_WIDTH,
            )
            for figure in pictures(runs, answers)
        ]  # fmt: skip
        table = pn.pane.DataFrame(
            answer_table(runs, answers), index=False, justify="left",
            styles={"overflow-x": "auto"}, **WIDE,
        )  # fmt: skip
        return pn.Column(table, *drawn, **WIDE)

    answers = pn.bind(view, factors, *(box.param.value for box in boxes.values()))
    tables = [
        pn.Column(
            pn.pane.HTML(f"<h3>Sweep {escape(name)}</h3>"),
            # Cells are shown as text, but heads of columns as HTML.
            pn.widgets.DataFrame(frame.rename(columns=escape), height=320, disabled=True, **WIDE),
            **WIDE,
        )
        for name, frame in sweeps.items()
    ]
    controls = _controls(pn, weighed, factors, catalogue)
    left = pn.Column(pn.pane.Markdown(HEAD), *boxes.values(), controls, width=360)
    shown = [pn.panel(answers, **WIDE)] if runs else []
    right = pn.Column(*shown, *tables, styles={"flex": "1 1 340px", "min-width": "0"}, **WIDE)
    return pn.FlexBox(left, right)


def framed(content: Any, title: str) -> Any:
    """Return a document with a page that phones show at their own width."""
    document = panel().Template(PHONES)
    document.title = title
    document.add_panel("page", content)
    return document


def _boxes(pn: Any, runs: Sequence[Explored]) -> dict[str, Any]:
    """Boxes for other values of options; collectives have another cluster alone."""
    trains = any(run.kind == "train" for run in runs)
    return {
        name: pn.widgets.TextInput(
            name=option_name(name), placeholder="as recorded", width=SLIDER_WIDTH
        )
        for name in CHANGED
        if trains or (runs and name == "cluster")
    }


def _controls(pn: Any, weighed: Weighed, factors: Any, catalogue: Catalogue) -> Any:
    """Return the sliders, or a line that is replaced by them as soon as their numbers are known."""
    controls = pn.Column(pn.pane.Markdown(WEIGHING))

    def look() -> None:
        """Put the sliders on the page if their numbers are known."""
        if (names := weighed()) is not None:
            looking.stop()
            controls[:] = _sliders(pn, names, factors, catalogue)

    looking = pn.state.add_periodic_callback(look, LOOK_MS, start=weighed() is None)
    look()
    return controls


def _sliders(pn: Any, names: Sequence[str], factors: Any, catalogue: Catalogue) -> list[Any]:
    """Sliders that set the factors, with the number below each, and a button to put them back."""
    from param import edit_constant

    sliders = {
        name: pn.widgets.FloatSlider(
            name=f"{name} ×", start=LOW, end=HIGH, step=STEP, value=1.0, width=SLIDER_WIDTH
        )
        for name in names
    }

    def change(_: Any) -> None:
        """Ask the runs again, with the factors that the sliders show."""
        factors.rx.value = {name: slider.value_throttled for name, slider in sliders.items()}

    def put_back(_: Any) -> None:
        """Move every slider back to 1."""
        for slider in sliders.values():
            # Panel declares the value after a drag (value_throttled) constant outside of the page.
            with edit_constant(slider):
                slider.param.update(value=1.0, value_throttled=1.0)

    pairs = []
    for name, slider in sliders.items():
        slider.param.watch(change, "value_throttled")
        below = pn.pane.Markdown(
            pn.bind(lambda factor, name=name: number_in_words(catalogue, name, factor), slider),
            styles={"color": "#666", "font-size": "0.85em"}, margin=(-12, 10, 0, 12),
        )  # fmt: skip
        pairs += [slider, below]
    back = pn.widgets.Button(name="Back to the catalogue", width=SLIDER_WIDTH)
    back.on_click(put_back)
    return [pn.pane.Markdown(NUMBERS), *pairs, back] if sliders else []
