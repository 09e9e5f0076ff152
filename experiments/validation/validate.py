"""Validating a file or shipped table: rows compared, summarised, beside a constant predictor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.validation.baseline import baseline
from experiments.validation.compare import compare_row, summary
from experiments.validation.predictors import predictor
from experiments.validation.rows import Row, Rows

Watch = Callable[[Sequence[Row], str], Any]


@dataclass(frozen=True)
class Result:
    """What validation of one set of rows came to.

    Attributes
    ----------
    name : str
        Of the table or file.
    kind : str
        Of its rows.
    rows : list of dict
        As :func:`experiments.validation.compare.compare`.
    summary : dict
        As :func:`experiments.validation.compare.summary`.
    baseline : dict
        Errors of the constant predictor that has seen the table.
    """

    name: str
    kind: str
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    baseline: Mapping[str, float | None]


def _unwatched(rows: Sequence[Row], name: str) -> Sequence[Row]:
    del name
    return rows


def validate(rows: Rows, name: str, *, watch: Watch = _unwatched) -> Result:
    """Compare every row with its prediction.

    Parameters
    ----------
    rows : Rows
    name : str
        Of the table or file.
    watch : function of (rows, name)
        Returns the rows one by one; for progress on a terminal.
    """
    predict = predictor(rows.kind)
    compared = [compare_row(rows.kind, row, predict) for row in watch(rows.rows, name)]
    return Result(name, rows.kind.name, compared, summary(compared), baseline(rows, compared))
