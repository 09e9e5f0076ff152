"""``python -m tools.as_user``: errors as a user gets them, against recorded ones.

``as_user.csv`` holds the errors of each table of training steps at each level of what was told.
The command computes them anew and fails where a table's median error, or the mean over tables, is
worse by more than half a point. ``python -m tools.record`` writes them, for a commit that says why.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster_sim.processes import available_workers
from experiments.validation.reading.rows import tables
from experiments.validation.validate import Result, macro, validate_as_user
from topologies.support.files.writing import whole_file

RECORD = Path(__file__).with_name("as_user.csv")
WORSE = 0.005  # change of a median error that a commit must answer for
MEAN = "mean of tables"
KEYS = ("median_abs_error", "p90_abs_error", "bias", "coverage", "median_half_width")


def errors(by_level: Mapping[str, Sequence[Result]]) -> Iterator[dict[str, str]]:
    """Yield the errors of each table at each level, and their means over tables."""
    for level, results in by_level.items():
        summaries = {result.name: result.summary for result in results}
        for name, summary in {**summaries, MEAN: macro(results)}.items():
            if summary["median_abs_error"] is not None:
                cells = {key: f"{summary[key]:.4f}" for key in KEYS}
                yield {"stated": level, "table": name, **cells}


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
    """Record the errors of results."""
    with whole_file(RECORD) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["stated", "table", *KEYS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(errors(by_level))


def main() -> int:
    """Compare with the record."""
    measured = [(table.rows(), table.name) for table in tables().values()]
    now = list(errors(validate_as_user(measured, workers=available_workers())))
    lines = worse(now, recorded())
    print("\n".join(lines) or f"{len(now)} errors, none worse by more than half a point")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
