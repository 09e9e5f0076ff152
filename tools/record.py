"""``python -m tools.record [TABLE...]``: validation tables, predicted once and recorded.

Intervals come from the residuals of other tables, so those are written first and the intervals of
this run are computed from them: ``residuals.csv``, ``as_user.csv``, the page of how true answers
are and the table of results of the validation page then agree. All tables take a quarter of an
hour; where some are named, the others keep what was recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import workloads.confidence
from cluster_sim.processes import available_workers
from cluster_sim.progress import progress
from experiments.cli.commands.validate import document
from experiments.validation.comparison import coverage, residuals, with_intervals
from experiments.validation.reading.rows import Rows, misses, table, tables
from experiments.validation.validate import (
    LEVELS,
    Result,
    as_told,
    validate_as_user,
    validate_each,
)
from tools import as_user, how_true, results_table
from topologies.support.files.writing import whole_file
from workloads.confidence.kinds import FRAMEWORK
from workloads.confidence.residuals import Residual, Residuals, csv_lines, parse, shipped_residuals

RESIDUALS = Path(workloads.confidence.__file__).with_name("residuals.csv")
DOCS = Path("docs")


def judged_by(measured: Residuals, results: Sequence[Result]) -> list[Result]:
    """Return results with the intervals that residuals of all other tables give."""
    judged = []
    for result in results:
        rows = with_intervals(result.rows, measured.without(result.name))
        judged.append(replace(result, rows=rows, summary=result.summary | coverage(rows)))
    return judged


def as_served(
    measured: Sequence[tuple[Rows, str]], results: Sequence[Result], **shared: Any
) -> list[Result]:
    """Return results in which rows of serving are told as a user of ``serve`` tells them."""
    serving = ((rows, name) for rows, name in measured if rows.kind.name == "serving")
    served = [(as_told(rows, FRAMEWORK), name) for rows, name in serving]
    by_name = {result.name: result for result in validate_each(served, **shared)}
    return [by_name.get(result.name, result) for result in results]


def main(names: Sequence[str]) -> None:
    """Predict tables, all unless some are named, and write what is kept of them."""
    chosen = [table(name) for name in names] or list(tables().values())
    measured = [(each.rows(), each.name) for each in chosen]
    shared: dict[str, Any] = {
        "workers": available_workers(),
        "watch": partial(progress, quiet=False),
    }
    results = validate_each(measured, **shared)
    by_level = validate_as_user(measured, **shared)
    served = as_served(measured, results, **shared)
    told = [*served, *chain.from_iterable(by_level.values())]
    text = "\n".join(csv_lines(_with_kept(told))) + "\n"
    with whole_file(RESIDUALS) as part:
        part.write_text(text, encoding="utf-8")
    fresh = parse(text)
    as_user.write({level: judged_by(fresh, several) for level, several in by_level.items()})
    page = DOCS / "background" / "validation.md"
    documents = {result.name: document(result) for result in judged_by(fresh, results)}
    page.write_text(
        results_table.rewrite(page.read_text(encoding="utf-8"), documents), encoding="utf-8"
    )
    how_true.main(DOCS)
    for each, result in zip(chosen, results, strict=True):
        if why := misses(each, result.summary):
            print(why)


def _with_kept(told: Sequence[Result]) -> list[Residual]:
    """Return the residuals of results, and the recorded ones of all other tables, in one order."""
    anew = chain.from_iterable(residuals({each.name: each.rows}) for each in told)
    names, order, levels = {each.name for each in told}, [*tables()], ["", *LEVELS]
    kept = [row for row in shipped_residuals().rows if row.table not in names]
    return sorted(
        [*kept, *anew], key=lambda row: (levels.index(row.stated), order.index(row.table))
    )


if __name__ == "__main__":
    main(sys.argv[1:])
