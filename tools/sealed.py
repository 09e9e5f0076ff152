"""Predictions of what nobody has published yet, sealed with their date and scored later.

``python -m tools.sealed seal QUESTIONS.csv SEALED.csv`` runs the command of every question (columns
``name``, ``command``, ``key``) and writes its answer with its interval; a file that exists stays as
it is. ``python -m tools.sealed score SEALED.csv MEASURED.csv`` compares it with measurements
(columns ``name`` and ``value``). The digests of sealed files stand on the page ``docs/sealed.md``.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.cli.main import run
from topologies.support.errors import InputError
from topologies.support.files.writing import whole_file

INTERVALS = {"iteration_s": "interval", "ttft_s.p50": "interval", "tpot_s.p50": "tpot_interval"}
"""Key of an answer's interval by the key of the answer; the rows of ``collective`` have theirs."""
HEADER = ("name", "command", "key", "predicted", "low", "high")

Row = Mapping[str, str]


def read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file that has these columns."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise InputError(f"{path}: it has no column {', '.join(missing)}. Add it.")
        return list(reader)


def predicted(question: Row) -> dict[str, str]:
    """Return a question with the answer of its command and the ends of the 80 % interval."""
    key = question["key"]
    if key not in INTERVALS:
        raise InputError(f"{question['name']}: key {key!r} is none of {', '.join(INTERVALS)}.")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = run([*shlex.split(question["command"])[1:], "--json", "--quiet"])
    if status:
        raise InputError(f"{question['name']}: its command ended with status {status}. Correct it.")
    answer = json.loads(printed.getvalue())
    value: Any = answer
    for part in key.split("."):
        value = value[part]
    ends = answer[INTERVALS[key]]
    numbers = {"predicted": value, "low": ends["low"], "high": ends["high"]}
    return {**question, **{name: f"{number:.6g}" for name, number in numbers.items()}}


def seal(questions: Path, sealed: Path) -> None:
    """Write the predictions of all questions to a new file."""
    if sealed.exists():  # it is never edited
        raise InputError(f"{sealed} is sealed. Write later predictions to a file of another date.")
    rows = [predicted(question) for question in read(questions, HEADER[:3])]
    with whole_file(sealed) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: row[name] for name in HEADER} for row in rows)


def score(sealed: Sequence[Row], measured: Sequence[Row]) -> list[str]:
    """Return a line for each prediction that was measured, and one for all of them.

    >>> row = {"name": "one", "predicted": "1.1", "low": "0.9", "high": "1.3"}
    >>> score([row], [{"name": "one", "value": "1.0"}])
    ['one: predicted 1.1, measured 1.0: +10.0 %, inside', '1 of 1: median error 10.0 %, 1 inside']
    """
    values = {row["name"]: row["value"] for row in measured}
    lines, errors, inside = [], [], 0
    for row in sealed:
        if row["name"] not in values:
            continue
        value = float(values[row["name"]])
        error = float(row["predicted"]) / value - 1
        within = float(row["low"]) <= value <= float(row["high"])
        errors.append(abs(error))
        inside += within
        verdict = "inside" if within else "outside"
        answer = f"predicted {row['predicted']}, measured {values[row['name']]}"
        lines.append(f"{row['name']}: {answer}: {100 * error:+.1f} %, {verdict}")
    middle = 100 * median(errors) if errors else math.nan
    return [*lines, f"{len(errors)} of {len(sealed)}: median error {middle:.1f} %, {inside} inside"]


def main(words: Sequence[str]) -> int:
    """Run one of the two commands."""
    if len(words) != 3 or words[0] not in ("seal", "score"):
        print(__doc__)
        return 2
    command, first, second = words[0], Path(words[1]), Path(words[2])
    try:
        if command == "seal":
            seal(first, second)
        else:
            print("\n".join(score(read(first, HEADER), read(second, ("name", "value")))))
    except (InputError, OSError) as error:
        print(f"sealed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
