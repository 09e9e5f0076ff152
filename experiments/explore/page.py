"""Explorer: answers of recorded runs with other numbers of the catalogue, and their local page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.collectives.algorithms.registry import ALGORITHMS, AUTO
from cluster_sim.collectives.results import first_ranks
from cluster_sim.plot.palette import colors
from experiments.figures.layout import canvas, logarithmic, over_bytes
from experiments.figures.training import stacked
from experiments.reports.differences import input_text, recorded_plan
from experiments.reports.formatting import option_name
from experiments.reports.run_record import check_unchanged, read_record
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.names import cluster as cluster_of
from topologies.support.errors import InputError
from topologies.support.units import format_bytes, format_seconds
from workloads.confidence.sensitivity import sensitivity
from workloads.front import collective_time
from workloads.training.iteration import iteration

Parts = Mapping[str, float]
Changes = Mapping[str, Any]
NO_CHANGES: Changes = {}
CHANGED = ("model", "cluster", "tp", "pp", "global_batch", "seq")
"""Options of a step that may be given other values; a collective has another cluster."""
DISTURBED = ("jitter", "straggler", "fault", "later_stages")
"""Options of a step whose effect is not computed again."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
"""Degrees of a plan in its description; degrees of 1 are left out."""
FACTOR_DIGITS = 1000
"""Denominator to which a slider's factor is rounded, so that its value is exact."""


@dataclass(frozen=True)
class Explored:
    """A recorded run whose answer can be computed again."""

    name: str
    kind: str  # ``train`` or ``collective``
    question: str
    recorded: Parts  # recorded times [s], by parts of the step or by sizes as text
    # Ends between which 80 % of measured times should lie [s], of the step or of all sizes
    interval_s: tuple[float, float]
    # Returns the times with the numbers of a catalogue, and with other values of options [s]
    ask: Callable[..., Parts]

    def seconds(self, catalogue: Catalogue) -> float:
        """Return the time of the step, or of all sizes together [s]."""
        return sum(self.ask(catalogue).values())


def read_runs(folders: Sequence[Path]) -> tuple[list[Explored], dict[str, pd.DataFrame]]:
    """Read run directories: runs of steps and collectives, and tables of sweeps by name."""
    runs, sweeps = [], {}
    for folder in folders:
        record = read_record(folder)
        command = record["command"]
        if command not in FILES:
            commands = ", ".join(FILES)
            raise InputError(
                f"{folder} is a run of {command[:40]!r}; runs of {commands} can be explored."
            )
        check_unchanged(folder, record, [FILES[command]])
        if command == "sweep":
            sweeps[folder.name] = pd.read_csv(folder / FILES[command])
            continue
        inputs: Mapping[str, Any] = record["inputs"]
        if inputs.get("catalogue") or inputs.get("variant"):
            raise InputError(
                f"{folder} ran with --catalogue or --variant, which sliders would move again. "
                "Run it without."
            )
        disturbed = next((name for name in DISTURBED if inputs.get(name)), None)
        if disturbed is not None:
            raise InputError(
                f"{folder} ran with {option_name(disturbed)}, which sliders leave out. Run it "
                "without."
            )
        named = str(inputs.get("cluster") or inputs.get("clusters") or "")
        if "," in named:
            raise InputError(f"{folder} holds several clusters, {named[:80]}. Run each by itself.")
        try:
            runs.append(READERS[command](folder, inputs))
        except (LookupError, TypeError, ValueError, ArithmeticError) as fault:
            raise InputError(
                f"{folder} cannot be read ({type(fault).__name__}: {str(fault)[:60]}); it may come "
                "from another version. Run it again."
            ) from None
    return runs, sweeps


def _train(folder: Path, inputs: Mapping[str, Any]) -> Explored:
    results = json.loads((folder / "results.json").read_text())

    def ask(catalogue: Catalogue, changes: Changes = NO_CHANGES) -> Parts:
        """Answer with the numbers of a catalogue, and other values of options."""
        model, plan, machine = recorded_plan(inputs, results, catalogue, changes)
        part = inputs.get("chips") is not None
        return iteration(model, machine, plan, partial=part, allow_oversized=True).breakdown_s

    plan, interval = results["plan"], results["interval"]
    degrees = [f"{name} {plan[name]}" for name in DEGREES if name == "tp" or plan[name] > 1]
    batch = f"{plan['global_batch']} × {plan['seq']} tokens"
    question = f"{results['model']} on {results['cluster']}, {', '.join(degrees)}, {batch}"
    ends = interval["low"], interval["high"]
    return Explored(folder.name, "train", question, results["breakdown_s"], ends, ask)


def _collective(folder: Path, inputs: Mapping[str, Any]) -> Explored:
    table = pd.read_csv(folder / "metrics.csv")
    fastest = table.sort_values("time_s").drop_duplicates("size_bytes").sort_values("size_bytes")
    rows = [(int(row["size_bytes"]), str(row["algorithm"])) for row in fastest.to_dict("records")]
    ranks, each = inputs.get("ranks"), int(inputs.get("ranks_per_chip") or 1)

    def ask(catalogue: Catalogue, changes: Changes = NO_CHANGES) -> Parts:
        """Answer with the numbers of a catalogue, and perhaps on another cluster."""
        machine = cluster_of(
            input_text(changes.get("cluster", inputs["cluster"])),
            bandwidth=inputs.get("bandwidth"), latency=inputs.get("latency"), catalogue=catalogue,
        )  # fmt: skip
        group = first_ranks(machine, ranks, each)
        times = {
            size: collective_time(
                str(inputs["op"]), group, size_bytes=size,
                # What no name runs, such as NCCL's closed form, is the runtime's own choice.
                algorithm=algorithm if algorithm in ALGORITHMS else AUTO,
                ideal=bool(inputs.get("ideal")),
            ).time_s
            for size, algorithm in rows
        }  # fmt: skip
        return {str(size): float(seconds) for size, seconds in times.items()}

    recorded = {str(row["size_bytes"]): float(row["time_s"]) for row in fastest.to_dict("records")}
    sizes = [format_bytes(size) for size, _ in rows]
    buffers = (
        sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes together, {sizes[0]} to {sizes[-1]}"
    )
    question = f"{inputs['op']} on {inputs['cluster']}, {buffers}"
    interval = float(fastest["low"].sum()), float(fastest["high"].sum())
    return Explored(folder.name, "collective", question, recorded, interval, ask)


FILES = {"train": "results.json", "collective": "metrics.csv", "sweep": "results.csv"}
"""File with the answers of a run, by command."""
READERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Explored]] = {
    "train": _train,
    "collective": _collective,
}


def knobs(runs: Sequence[Explored], most: int, catalogue: Catalogue) -> list[str]:
    """Numbers of the catalogue with the largest effect on the answers, as ``PART.QUANTITY``."""
    swings: dict[str, float] = {}
    for run in runs:
        for row in sensitivity(run.seconds, catalogue):
            swings[row.input] = max(swings.get(row.input, 0.0), row.swing)
    return sorted(swings, key=lambda name: -swings[name])[:most]


def moved(catalogue: Catalogue, factors: Mapping[str, float]) -> Catalogue:
    """Return a catalogue in which some numbers are multiplied by factors."""
    rows = []
    for name, factor in factors.items():
        if factor != 1.0:
            part, _, quantity = name.rpartition(".")
            entry = catalogue.entry(part, quantity)
            exact = entry.exact * Fraction(round(factor * FACTOR_DIGITS), FACTOR_DIGITS)
            rows.append(entry._replace(exact=exact))
    return catalogue.with_rows(rows) if rows else catalogue


LOW, HIGH, STEP = 0.5, 2.0, 0.05  # ends and step of a slider, as factors on the catalogue's number
SLIDER_WIDTH, ANSWER_WIDTH = 330, 1000  # width of a slider, and largest width of an answer [pixels]
WIDE: Mapping[str, Any] = {"sizing_mode": "stretch_width"}
"""Size of parts that take the available width; on a phone they are below the sliders."""
LEFT_HEADS = ".panel-df th { text-align: left !important; }"
"""Style of tables whose cells are left-aligned; Panel leaves their heads right-aligned."""
PHONES = """{% extends base %}
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>@media (prefers-color-scheme: dark) {
  html { background: #fff; filter: invert(.9) hue-rotate(180deg); } }</style>
{% endblock %}
{% block contents %}{{ embed(roots.page) }}{% endblock %}"""
"""Template of the page, which is dark where the browser is.

Without the preamble a phone would show it at the width of a desktop.
"""
HEAD = """## cluster-sim explore
State another option, or move a number of the catalogue, and see what the runs become."""
NUMBERS = "Numbers of the catalogue that matter most to these runs:"
WEIGHING = "Finding the numbers of the catalogue that matter most to these runs …"
Weighed = Callable[[], Sequence[str] | None]
"""Returns the numbers that matter most, or None as long as they are being weighed."""
LOOK_MS = 200  # time between two looks whether these numbers are known [ms]


def answer_table(runs: Sequence[Explored], answers: Sequence[Parts]) -> pd.DataFrame:
    """Return the runs' question, recorded answer and answer now as text, one row a run."""
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
            answer_table(runs, answers), index=False, justify="left", text_align="start",
            styles={"overflow-x": "auto"}, stylesheets=[LEFT_HEADS], **WIDE,
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
        factors.rx.value = {name: slider.value_throttled for name, slider in sliders.items()}

    def put_back(_: Any) -> None:
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
