"""Coverage of the 80 % intervals where tables, chips, degrees, ranks or operations are left out.

``python -m tools.left_out`` prints it by the shipped residuals, or by those of
the JSON of ``cluster-sim validate --json`` that it is given: intervals of what is left out come
from the rest. Degrees and numbers of ranks are predicted from smaller ones only. Of the JSON, pairs
of plans that were measured for one job are compared as well, each table by the margin of all
others.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.validation.comparison import group_of, is_mixed, prediction_of, residuals
from workloads.confidence.kinds import EXCHANGE, FAMILY, Prediction
from workloads.confidence.residuals import Residual, Residuals, shipped_residuals
from workloads.confidence.split_conformal import ends, margin

TRAINING, COLLECTIVE = "training", "collective"
STACK = ("tool", "family", "framework")
"""Features that are left out: timing tool or engine, family of models, framework of steps."""
FEWEST = 5  # rows of a table below which a share says nothing
MOST_PAIRS = 2_000  # pairs of a table that are looked at; neighbours first
Keep = Callable[[Residual], bool]


class Fold(NamedTuple):
    """Rows that are left out, and those that may be used to predict them."""

    family: str  # family of kinds, or a kind
    name: str  # feature and value that are left out
    # judged, kept: whether a row is predicted; whether it may be used
    judged: Keep
    kept: Keep


class Cover(NamedTuple):
    """Coverage of the rows of one fold."""

    rows: int  # rows that were predicted
    # mean, least: share of rows inside their intervals, in the mean over tables with a few rows; of
    # the table with the least
    mean: float
    least: float
    table: str  # table with the least
    width: float  # median half-width of an interval, of the time


def as_prediction(row: Residual) -> Prediction:
    """Features of a residual's prediction."""
    return Prediction(
        *(row.kind, row.chip, row.tp, row.cp, row.ranks),
        assumed=row.assumed,
        tool=row.tool,
        family=row.family,
        crosses=row.crosses,
        framework=row.framework,
        stated=row.stated,
        filled=row.filled,
        below=row.below,
        above=row.above,
    )


def cover(fold: Fold, rows: Sequence[Residual]) -> Cover | None:
    """Coverage of a fold; None where too few rows are left out, or none is left of their family."""
    others = Residuals(tuple(row for row in rows if fold.kept(row)))
    families = {FAMILY[row.kind] for row in others.rows}
    judged = [row for row in rows if fold.judged(row) and FAMILY[row.kind] in families]
    if len(judged) < FEWEST:
        return None
    low, high = np.array([ends(as_prediction(row), others) for row in judged]).T
    errors = np.array([row.log_residual for row in judged])
    inside = (low <= errors) & (errors <= high)
    tables = np.array([row.table for row in judged])
    several = [table for table in np.unique(tables) if (tables == table).sum() >= FEWEST]
    if not several:
        return None
    shares = {str(table): float(inside[tables == table].mean()) for table in several}
    least = min(shares, key=shares.__getitem__)
    width = float(np.median(np.exp(high) - np.exp(low))) / 2
    return Cover(len(judged), float(np.mean([*shares.values()])), shares[least], least, width)


def folds(rows: Sequence[Residual]) -> Iterator[Fold]:
    """Everything that is left out in turn."""
    for table in dict.fromkeys(row.table for row in rows):
        for family in sorted({FAMILY[row.kind] for row in rows if row.table == table}):
            yield _without(family, "table", table, attrgetter("table"))
    for family in dict.fromkeys(FAMILY.values()):
        of_family = [row for row in rows if FAMILY[row.kind] == family]
        for feature in STACK:
            for name in sorted({str(getattr(row, feature)) for row in of_family} - {""}):
                yield _without(family, feature, name, attrgetter(feature))
    for family in (TRAINING, COLLECTIVE):
        of_family = [row for row in rows if FAMILY[row.kind] == family]
        for chip in sorted({row.chip for row in of_family}):
            yield _without(family, "chip", chip, attrgetter("chip"))
        for degree in ("tp", "cp", "ranks") if family == TRAINING else ("ranks",):
            values = sorted({int(getattr(row, degree)) for row in of_family})
            for value in values[1:]:
                yield _larger(family, degree, value)
    for operation in sorted({_operation(row) for row in rows} - {""}):
        yield _without(COLLECTIVE, "operation", operation, _operation)


def _operation(row: Residual) -> str:
    """Operation of a collective's residual, whose group ends in it; exchanges of experts aside."""
    collective = FAMILY[row.kind] == COLLECTIVE and row.kind != EXCHANGE
    return row.group.partition("|")[2] if collective else ""


def _without(family: str, name: str, value: str, feature: Callable[[Residual], str]) -> Fold:
    """Rows of a value of a feature, predicted from all others."""
    return Fold(
        family,
        f"{name} {value}",
        lambda row: FAMILY[row.kind] == family and feature(row) == value,
        lambda row: feature(row) != value,
    )


def _larger(family: str, degree: str, value: int) -> Fold:
    """Rows of a degree, predicted from those of smaller ones."""
    return Fold(
        family,
        f"{degree} {value} from smaller",
        lambda row: FAMILY[row.kind] == family and int(getattr(row, degree)) == value,
        lambda row: int(getattr(row, degree)) < value,
    )


def lines(rows: Sequence[Residual]) -> list[str]:
    """Coverage of every fold, a line each."""
    text = [f"{'family':12}{'left out':36}{'rows':>6}{'mean':>7}{'least':>7}  of table, half-width"]
    for fold in folds(rows):
        if result := cover(fold, rows):
            text.append(
                f"{fold.family:12}{fold.name:36}{result.rows:6}{result.mean:7.2f}"
                f"{result.least:7.2f}  {result.table}, {result.width:.0%}"
            )
    return text


class Pair(NamedTuple):
    """Two plans that were measured for one job."""

    # predicted, measured: logarithms of the ratio of their times
    predicted: float
    measured: float
    margin: float  # difference of logarithms within which the predictions tie


def pairs(name: str, rows: Sequence[Mapping[str, Any]], others: Residuals) -> list[Pair]:
    """Pairs of a table's training rows with the same model and machine, with others' margins."""
    groups: dict[str, list[tuple[Prediction, float, float]]] = {}
    for row in rows:
        prediction = prediction_of(row) if row.get("predicted") else None
        if prediction is None or FAMILY[prediction.kind] != TRAINING or is_mixed(row):
            continue
        job = f"{prediction.kind}|{group_of(row)}"
        times = math.log(row["predicted"]), math.log(row["published"])
        groups.setdefault(job, []).append((prediction, *times))
    neighbours = (
        (group[first], group[first + apart])
        for group in groups.values()
        for apart in range(1, len(group))
        for first in range(len(group) - apart)
    )
    return [
        Pair(one[1] - other[1], one[2] - other[2], margin(one[0], other[0], others))
        for one, other in islice(neighbours, MOST_PAIRS)
    ]


def pair_lines(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Pairs of every table inside the margin, called sure, and of the other sign than measured.

    Those that are just sure differ by less than twice their margin.
    """
    others = Residuals(tuple(residuals(tables)))
    names = "sure", "other sign", "just sure", "other sign"
    widths = 7, 12, 11, 12
    heads = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    text = [f"{'pairs of':24}{'pairs':>7}{'inside':>8}{heads}"]
    for name, rows in tables.items():
        of_table = pairs(name, rows, others.without(name))
        if not of_table:
            continue
        array = np.array(of_table)
        predicted, measured, ties = array.T
        inside = np.abs(predicted - measured) <= ties
        sure = np.abs(predicted) > ties
        wrong = sure & (np.sign(predicted) != np.sign(measured))
        just = sure & (np.abs(predicted) <= 2 * ties)
        counts = [int(of.sum()) for of in (sure, wrong, just, just & wrong)]
        text.append(
            f"{name:24}{len(array):7}{inside.mean():8.2f}"
            + "".join(f"{count:{width}}" for count, width in zip(counts, widths, strict=True))
        )
    return text


def main(path: str | None) -> None:
    """Print coverage by the shipped residuals, or by those of a validation with its pairs."""
    if path is None:
        print("\n".join(lines(shipped_residuals().at_level("").rows)))
        return
    document = json.loads(Path(path).read_text(encoding="utf-8"))["tables"]
    tables = {name: table["rows"] for name, table in document.items()}
    print("\n".join([*lines(residuals(tables)), *pair_lines(tables)]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
