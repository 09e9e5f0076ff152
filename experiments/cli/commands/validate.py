"""``cluster-sim validate``: predictions compared with published measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.cli.output.printing import print_table, print_text
from experiments.reports.formatting import value_text
from topologies.support.errors import InputError
from topologies.support.options import setting

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from experiments.validation.reading.rows import Table
    from experiments.validation.validate import Result

COUNTS = ("rows", "ok", "unsupported", "infeasible")
ERRORS = {
    "median_abs_error": "median",
    "p90_abs_error": "p90",
    "bias": "bias",
    "coverage": "in 80 %",
    "median_half_width": "±",
}
"""Keys of a summary that are shown, with their headings."""

LEGEND = (
    "median, p90, bias: of predicted / published - 1, the first two without sign. in 80 %: rows "
    "within their interval, of ± at the median. tau: Kendall's rank correlation. constant: errors "
    "of one efficiency for all rows."
)


@dataclass(frozen=True)
class ValidationInputs:
    """Measurements to compare with."""

    table: tuple[str, ...] = setting(
        (), "Shipped table of measurements; may be repeated", metavar="NAME", default="all of them"
    )
    file: Path | None = setting(
        None,
        "Your own measurements, in place of shipped tables: rows in CSV, or results of vllm bench "
        "serve, SGLang's bench_serving, InferenceMAX, GenAI-Perf, AIPerf or GuideLLM in JSON",
        metavar="ROWS.csv|RESULTS.json",
    )
    column: tuple[str, ...] = setting(
        (),
        "Cell of every row of --file, whatever the file says, such as tp=4 or cluster=dgx-h100; "
        "may be repeated",
        metavar="COLUMN=VALUE",
    )
    as_user: bool = setting(
        False,
        "Show the errors of training steps that users of train get, who state less than a "
        "published row: framework and plan, the plan, or its degrees alone",
    )
    workers: int | None = setting(
        None, "Number of processes", least=1, default="one a processor", recorded=False
    )

    def stated(self) -> dict[str, str]:
        """Return the stated cells by column."""
        pairs = [text.partition("=") for text in self.column]
        for name, equals, value in pairs:
            if not (name and equals and value.strip()):
                raise InputError(f"--column {name[:40]!r} is no COLUMN=VALUE. Write it as tp=4.")
        return {name.strip(): value.strip() for name, _, value in pairs}


def validate(wanted: ValidationInputs, catalogue_inputs: CatalogueInputs, call: Invocation) -> int:
    """Compare predictions with published measurements.

    With --table, the exit status is 1 if a table is outside its tolerance; with --file, it is 0 if
    some row could be predicted.
    """
    from cluster_sim.processes import available_workers
    from experiments.validation.comparison import marked
    from experiments.validation.reading.rows import read_file, tables
    from experiments.validation.reading.rows import table as named
    from experiments.validation.validate import validate_as_user, validate_each

    catalogue = catalogue_inputs.read()
    if wanted.file and wanted.table:
        raise InputError("--file and --table were given together. Use one of them.")
    if wanted.column and not wanted.file:
        raise InputError("--column is for the rows of --file. Name a file, or leave it out.")
    chosen = [] if wanted.file else [named(name) for name in wanted.table or tables()]
    if wanted.file:
        measured = [(read_file(wanted.file, wanted.stated()), wanted.file.name)]
    else:
        measured = [(table.rows(), table.name) for table in chosen]
    workers = wanted.workers or available_workers()
    shared: dict[str, Any] = {"watch": call.watch, "workers": workers, "catalogue": catalogue}
    results = validate_each(measured, **shared)
    levels = {"row": [result for result in results if result.kind == "training"]}
    by_level = {}
    if wanted.as_user:
        by_level = validate_as_user(measured, **shared)
    if wanted.as_user and not any(by_level.values()):
        raise InputError("--as-user judges training steps, and no table has any. Leave it out.")
    if wanted.file:
        results = [replace(result, rows=marked(result.rows)) for result in results]
    inputs = {
        "file": wanted.file,
        "column": list(wanted.column),
        "table": [table.name for table in chosen],
    }
    documents = {result.name: document(result) for result in results}
    several = {"tables": documents} if len(results) > 1 else document(results[0])
    call.answer(
        several | (_told_document(levels | by_level) if wanted.as_user else {}),
        lambda _: _print_told(levels | by_level) if wanted.as_user else _print(results, chosen),
        lambda directory, _: _write(directory, results),
        inputs=inputs,
    )
    return _status(wanted, chosen, results)


def _status(wanted: ValidationInputs, chosen: Sequence[Table], results: Sequence[Result]) -> int:
    """Say which tables miss their tolerance, or that no row could be predicted; return a status."""
    from experiments.validation.reading.rows import misses

    missed = [
        why
        for table, result in zip(chosen, results, strict=not wanted.file)
        if (why := misses(table, result.summary))
    ]
    for why in missed:
        click.echo(why, err=True)
    if wanted.file and not results[0].summary["ok"]:
        click.echo(f"No row of {wanted.file} could be predicted; each says why.", err=True)
        return 2
    return 1 if missed and wanted.table else 0


def _told_document(levels: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Return the summaries of training tables by level of what was told, and their means."""
    from experiments.validation.validate import macro

    return {
        "as_user": {
            level: {
                "mean": macro(of_level),
                "tables": {result.name: dict(result.summary) for result in of_level},
            }
            for level, of_level in levels.items()
        }
    }


def _print_told(levels: Mapping[str, Sequence[Result]]) -> None:
    """Print the errors of each training table at each level, and the means over tables."""
    from experiments.validation.validate import macro

    cells = []
    for of_table in zip(*levels.values(), strict=True):
        for level, result in zip(levels, of_table, strict=True):
            summary, name = result.summary, result.name if level == "row" else ""
            refused = summary["oversized"] + summary["infeasible"]
            cells.append((name, level, str(summary["rows"]), *_errors(summary), str(refused)))
    for level, of_level in levels.items():
        mean, name = macro(of_level), "mean of tables" if level == "row" else ""
        rows = sum(result.summary["rows"] for result in of_level)
        cells.append((name, level, str(rows), *_errors(mean), _percent(mean["refused"])))
    heads = ("table", "stated", "rows", *ERRORS.values(), "refused")
    print_table("Errors of training steps by what the predictor was told", heads, cells, left=2)
    print_text(TOLD_LEGEND)


TOLD_LEGEND = (
    "stated: all that the row states; its plan and the name of its framework; its plan; or its "
    "degrees, batch, sequence and precision alone. median, p90, bias: of predicted / published - "
    "1, the first two and the mean of biases without sign. in 80 %: rows within their interval, of "
    "± at the median. refused: plans that ran, but that the memory model takes for too large; they "
    "are predicted all the same."
)


def _print(results: Sequence[Result], chosen: Sequence[Table]) -> None:
    _print_summaries(results)
    for table in chosen if len(chosen) == 1 else ():
        click.echo(f"Source: {table.credit} ({table.licence}). {table.note}.")
    if len(results) == 1:
        _print_rows(results[0])


def document(result: Result) -> dict[str, Any]:
    """Return the rows and the summary of a table by their keys in JSON."""
    return {
        "rows": result.rows,
        "summary": result.summary,
        "constant_predictor": dict(result.baseline),
    }


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on how many measured rows lie outside their intervals, and which way."""
    words = Counter(row["normal"] for row in rows if row.get("normal"))
    if not words:
        return "No row has a prediction with an interval."
    if words.total() == 1:
        (word,) = words
        return f"The row is {'within' if word == 'usual' else f'{word} than'} its 80 % interval."
    if set(words) == {"usual"}:
        several = "Both" if words.total() == 2 else f"All {words.total():,}"
        return f"{several} rows are within their 80 % intervals."
    counts = "".join(
        f"; {word} than nine of ten such machines: {words[word]}"
        for word in ("slower", "faster")
        if words[word]
    )
    return f"Within their 80 % intervals: {words['usual']} of {words.total()} rows{counts}."


MOST_PRINTED = 40  # most rows that are printed; of a longer table, those with the largest errors


def _print_rows(result: Result) -> None:
    rows = list(enumerate(result.rows, start=1))
    title = f"{result.name}: predicted beside published"
    if len(rows) > MOST_PRINTED:
        rows.sort(key=lambda item: -abs(item[1]["error"] or 0.0))
        rows = rows[:MOST_PRINTED]
        title += (
            f", the {MOST_PRINTED} of {len(result.rows):,} rows that are furthest off "
            "(--json prints all)"
        )
    cells = [
        (
            str(position),
            str(row.get("name") or row.get("collective") or row.get("kernel") or row.get("model")),
            str(row.get("cluster") or row.get("chip") or ""),
            str(row.get("chips") or ""),
            value_text(str(row["quantity"]), row["published"]),
            value_text(str(row["quantity"]), row["predicted"]),
            _percent(row["error"]),
            *([row["normal"] or ""] if "normal" in row else []),
            row["status"] if row["status"] == "ok" else f"{row['status']}: {row['why']}",
        )
        for position, row in rows
    ]
    judged = ("is",) if any("normal" in row for row in result.rows) else ()
    columns = ("row", "what", "cluster", "chips", "published", "predicted", "error", *judged)
    print_table(title, (*columns, "status"), cells, left=3)
    if judged:
        print_text(verdict(result.rows))


def _print_summaries(results: Sequence[Result]) -> None:
    cells = [line for result in results for line in _lines(result)]
    heads = (*COUNTS, *ERRORS.values(), "tau", "constant: median", "p90")
    columns = ("table", "kind", *heads)
    print_table("Errors of predictions against published values", columns, cells, left=2)
    print_text(LEGEND)
    every: Counter[str] = Counter()
    for result in results:
        if fits := result.summary.get("fits"):
            every.update(fits)
            outcomes = (name.replace("_told_", ", predicted ").replace("_", " ") for name in fits)
            counts = "; ".join(map("{}: {}".format, outcomes, fits.values()))
            click.echo(f"{result.name}: plans that {counts}.")
    for ran, wrong, verb in (("ran", "too_large", "refused"), ("failed", "to_fit", "accepted")):
        plans = sum(count for name, count in every.items() if name.startswith(ran))
        if plans and len(results) > 1:
            count = every[f"{ran}_told_{wrong}"]
            click.echo(f"Plans that {ran}, {verb}: {count:,} of {plans:,} ({count / plans:.1%}).")


def _lines(result: Result) -> list[tuple[str, ...]]:
    """Return the line of a table, and one for each further quantity of its rows, such as memory."""
    summary, tau = result.summary, result.summary["kendall_tau"]
    counts = (str(summary[key]) for key in COUNTS)
    ranks, constant = "" if tau is None else f"{tau:.3f}", _errors(result.baseline)[:2]
    lines = [(result.name, result.kind, *counts, *_errors(summary), ranks, *constant)]
    for name, errors in summary.get("quantities", {}).items():
        blank, counted = ("", "", ""), (str(errors["rows"]), "", "", "")
        lines.append((f"  {name}", "", *counted, *_errors(errors), *blank))
    return lines


def _errors(summary: Mapping[str, Any]) -> list[str]:
    """Return the errors of a summary as texts; those that it has not are empty."""
    return [_percent(summary.get(key)) for key in ERRORS]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _write(run: Run, results: Sequence[Result]) -> None:
    import pandas as pd

    from experiments.figures.validation import scatter

    summaries = [{"table": result.name, **result.summary} for result in results]
    run.table("summary", pd.DataFrame(summaries), title="Summary")
    for result in results:
        stem = Path(result.name).stem
        run.table(f"{stem}_rows", pd.DataFrame(result.rows), title=result.name)
        run.figure(f"{stem}_scatter", scatter(result.rows, result.name), title=result.name)
