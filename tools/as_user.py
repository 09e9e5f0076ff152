"""``python -m tools.as_user``: errors as a user gets them, against recorded ones.

``as_user.csv`` holds the errors of each table of training steps at each level of what was told.
The command computes them anew and fails where a table's median error, or the mean over tables, is
worse by more than half a point. ``python -m tools.record`` writes them, for a commit that says why.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from cluster_sim.processes import available_workers
from experiments.validation.reading.rows import tables
from experiments.validation.validate import LEVELS, Result, validate_as_user
from topologies.support.files.writing import whole_file

RECORD = Path(__file__).with_name("as_user.csv")
WORSE = 0.005  # change of a median error that a commit must answer for
MEAN = "mean of tables"
KEYS = ("median_abs_error", "p90_abs_error", "bias", "coverage", "median_half_width")


def errors(by_level: Mapping[str, Sequence[Result]]) -> list[dict[str, str]]:
    """Return the errors of each table at each level."""
    return [
        {"stated": level, "table": result.name}
        | {key: f"{result.summary[key]:.4f}" for key in KEYS}
        for level, results in by_level.items()
        for result in results
        if result.summary["median_abs_error"] is not None
    ]


def with_means(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the errors of tables, and after each level their means over tables, without sign."""
    complete = []
    for level, group in groupby(rows, itemgetter("stated")):
        tables_of_level = list(group)
        means = {
            key: f"{fmean(abs(float(row[key])) for row in tables_of_level):.4f}" for key in KEYS
        }
        complete += [*tables_of_level, {"stated": level, "table": MEAN, **means}]
    return complete


def recorded() -> list[dict[str, str]]:
    """Read the recorded errors."""
    with RECORD.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def worse(now: Sequence[Mapping[str, str]], before: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a line for each median error that grew by more than half a point.

    >>> row = {"stated": "plan", "table": "nemo", "median_abs_error": "0.0400"}
    >>> worse([{**row, "median_abs_error": "0.0460"}], [row])
    ['nemo, told plan: median error 4.0 % was recorded, it is 4.6 %']
    """
    recorded_errors = {
        (row["stated"], row["table"]): float(row["median_abs_error"]) for row in before
    }
    lines = []
    for row in now:
        median = float(row["median_abs_error"])
        old = recorded_errors.get((row["stated"], row["table"]))
        if old is not None and median > old + WORSE:
            lines.append(
                f"{row['table']}, told {row['stated']}: median error {old:.1%} was recorded, "
                f"it is {median:.1%}".replace("%", " %")
            )
    return lines


def write(by_level: Mapping[str, Sequence[Result]]) -> None:
    """Record the errors of results, in place of those that their tables had."""
    anew = {(row["stated"], row["table"]): row for row in errors(by_level)}
    kept = {(row["stated"], row["table"]): row for row in recorded() if row["table"] != MEAN}
    order = [*tables()]
    rows = sorted(
        (kept | anew).values(),
        key=lambda row: (LEVELS.index(row["stated"]), order.index(row["table"])),
    )
    with whole_file(RECORD) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["stated", "table", *KEYS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(with_means(rows))


def main() -> int:
    """Compare with the record."""
    measured = [(table.rows(), table.name) for table in tables().values()]
    now = with_means(errors(validate_as_user(measured, workers=available_workers())))
    lines = worse(now, recorded())
    print("\n".join(lines) or f"{len(now)} errors, none worse by more than half a point")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
