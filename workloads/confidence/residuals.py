"""Residuals of the shipped validation tables: how far predictions were from measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import chip_family
from topologies.support.arrays import FloatArray
from topologies.support.files.reading import csv_rows
from workloads.confidence.kinds import FAMILY, Prediction

READ: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "bool": lambda cell: cell == "1",
    "float": lambda cell: float(cell or 0.0),
}
"""Functions that read the cell of a field, by the field's type."""


@dataclass(frozen=True, kw_only=True)
class Residual(Prediction):
    """One measured row beside its prediction, with the prediction's features."""

    table: str  # validation table that the row is in
    # Job or operation, and machine of the row. Rows of one table with the same group differ only in
    # their plan, so they share most of their error.
    group: str
    log_residual: float  # ln(measured / predicted)

    @property
    def family_of_kind(self) -> str:
        """Family of the row's kind; empty for an unknown kind."""
        return FAMILY.get(self.kind, "")

    @property
    def stack(self) -> tuple[str, str]:
        """Chip and framework that the step was measured with."""
        return self.chip, self.framework

    @property
    def score(self) -> float:
        """Distance of the measured time from its hull, in logarithms; negative inside."""
        return max(self.below - self.log_residual, self.log_residual - self.above)

    def beyond(self, side: int) -> float:
        """Reach of a step beyond its hull below (-1) or above (1), whose squares add; 0 inside."""
        left_open, reach = self.above if side > 0 else self.below, side * self.log_residual
        return math.sqrt(max(0.0, max(0.0, reach) ** 2 - left_open**2))


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of many rows; two sets are equal only if they are the same object."""

    rows: tuple[Residual, ...]

    def largest(self, degree: str, chip: str) -> int:
        """Largest degree that was measured on a chip, or on others if none was measured on it."""
        # ``degree`` is ``tp``, ``cp`` or ``ranks``; 1 without rows. Others are those with the same
        # collective runtime, or any if there are none.
        rows = [row for row in self.rows if row.chip == chip]
        runtime = chip_family(chip).runtime
        rows = rows or [row for row in self.rows if chip_family(row.chip).runtime == runtime]
        rows = rows or list(self.rows)
        return max((int(getattr(row, degree)) for row in rows), default=1)

    def under(self, chip: str, framework: str) -> Residuals:
        """Residuals of a framework's steps on a chip."""
        return grouped(self, "stack").get((chip, framework), Residuals(()))

    def at_level(self, level: str) -> Residuals:
        """Residuals of predictions that were told so much."""
        return grouped(self, "stated").get(level, Residuals(()))

    def of(self, kind: str) -> Residuals:
        """Residuals of one kind that were told all that the row states, which may be none."""
        return grouped(self.at_level(""), "kind").get(kind, Residuals(()))

    def of_family(self, kind: str) -> Residuals:
        """Residuals of all kinds of a kind's family, told all, which may be none."""
        return grouped(self.at_level(""), "family_of_kind").get(FAMILY[kind], Residuals(()))

    def without(self, table: str) -> Residuals:
        """Residuals of all tables but one."""
        return Residuals(tuple(row for row in self.rows if row.table != table))


@lru_cache(64)
def grouped(residuals: Residuals, feature: str) -> dict[Any, Residuals]:
    """Return the residuals of each value of a feature."""
    groups: dict[Any, list[Residual]] = {}
    for row in residuals.rows:
        groups.setdefault(getattr(row, feature), []).append(row)
    return {value: Residuals(tuple(group)) for value, group in groups.items()}


READERS = {field.name: READ[str(field.type)] for field in fields(Residual) if field.name != "slow"}
COLUMNS = tuple(dict.fromkeys(("table", "kind", "chip", "group", *READERS)))


def parse(text: str) -> Residuals:
    """Read residuals from the text of a CSV file with a header."""
    _, rows = csv_rows(text, "residuals.csv")
    return Residuals(
        tuple(
            Residual(**{name: read(row[name]) for name, read in READERS.items()}) for _, row in rows
        )
    )


def csv_lines(rows: Iterable[Residual]) -> list[str]:
    """Lines of the CSV file that :func:`parse` reads; residuals to four decimals."""
    cells = (
        [_cell(name, getattr(row, name)) for name in COLUMNS]
        for row in rows
        if math.isfinite(row.log_residual)
    )
    return [",".join(line) for line in (COLUMNS, *cells)]


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if value or name == "log_residual" else ""
    return str(int(value) if isinstance(value, bool) else value).replace(",", ";")


@cache
def shipped_residuals() -> Residuals:
    """Residuals that come with the package."""
    path = Path(__file__).with_name("residuals.csv")
    return parse(path.read_text(encoding="utf-8"))


def weighted_quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """Smallest value at or below which a share ``level`` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    position = int(np.searchsorted(reached, level * reached[-1] * (1 - 1e-12)))
    return float(values[order][min(position, len(values) - 1)])
