"""Residuals of the shipped validation tables: how far predictions were from measurements.

``residuals.csv`` is written by ``cluster-sim validate --residuals FILE`` and read here; it has one
row for each measured row that could be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import chip_family
from topologies.files.reading import csv_rows
from workloads.confidence.kinds import FAMILY

READ: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "bool": lambda cell: cell == "1",
    "float": lambda cell: float(cell or 0.0),
}
"""Functions that read the cell of a field, by the field's type."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """One measured row beside its prediction."""

    table: str  # validation table that the row is in
    kind: str  # kind of prediction, as :mod:`workloads.confidence.kinds` names it
    chip: str  # catalogue name of the chip
    # Job or operation, and machine of the row. Rows of one table with the same group differ only in
    # their plan, so they share most of their error.
    group: str
    # tp, cp, ranks: degrees and chips of the row; a prediction with larger ones has a wider
    # interval
    tp: int
    cp: int
    ranks: int
    assumed: bool  # whether kernels or links rest on assumed numbers
    # tool, family: timing tool or engine, and family of the model, as in
    # :class:`~workloads.confidence.kinds.Prediction`
    tool: str = ""
    family: str = ""
    crosses: bool = False  # whether a collective crosses servers
    framework: str = ""  # framework of a training step, without settings
    # Level of what the prediction was told, see :mod:`workloads.confidence.kinds`; empty for all
    # that the row states
    stated: str = ""
    # below, above: ends of the hull of times that fields without a stated value leave open, as
    # logarithms of their ratio to the prediction
    below: float = 0.0
    above: float = 0.0
    log_residual: float  # ln(measured / predicted)

    @property
    def score(self) -> float:
        """Half-width with which the row's interval ends at its measured time; negative inside."""
        if FAMILY.get(self.kind) != "training":
            return max(self.below - self.log_residual, self.log_residual - self.above)
        # As in ``step_ends``, squares add: of what nobody stated, and of what no model knows.
        left_open = self.above if self.log_residual > 0 else self.below
        square = self.log_residual**2 - left_open**2
        return math.copysign(math.sqrt(abs(square)), square)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of many rows; two sets are equal only if they are the same object."""

    rows: tuple[Residual, ...]

    @cached_property
    def by_kind(self) -> Mapping[str, Residuals]:
        """Residuals of each kind of prediction that was told all that the row states."""
        rows = _grouped(self.at_level("").rows, "kind")
        return {kind: Residuals(of_kind) for kind, of_kind in rows.items()}

    @cached_property
    def by_table(self) -> Mapping[str, tuple[Residual, ...]]:
        """Rows of each table."""
        return _grouped(self.rows, "table")

    @cached_property
    def by_family(self) -> Mapping[str, Residuals]:
        """Residuals of each family of kinds, of predictions that were told all."""
        families: dict[str, list[Residual]] = {}
        for row in self.at_level("").rows:
            families.setdefault(FAMILY.get(row.kind, ""), []).append(row)
        return {family: Residuals(tuple(rows)) for family, rows in families.items()}

    @cached_property
    def chips(self) -> frozenset[str]:
        """Chips with at least one measured row."""
        return frozenset(row.chip for row in self.rows)

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
        rows = (row for row in self.rows if (row.chip, row.framework) == (chip, framework))
        return Residuals(tuple(rows))

    def at_level(self, level: str) -> Residuals:
        """Residuals of predictions that were told so much."""
        return self.by_level.get(level, Residuals(()))

    @cached_property
    def by_level(self) -> Mapping[str, Residuals]:
        """Residuals by the level of what the predictions were told."""
        rows = _grouped(self.rows, "stated")
        return {level: Residuals(of_level) for level, of_level in rows.items()}

    def of(self, kind: str) -> Residuals:
        """Residuals of one kind, which may be none."""
        return self.by_kind.get(kind, Residuals(()))

    def of_family(self, kind: str) -> Residuals:
        """Residuals of all kinds of a kind's family, which may be none."""
        return self.by_family.get(FAMILY[kind], Residuals(()))

    def without(self, table: str) -> Residuals:
        """Residuals of all tables but one."""
        return Residuals(tuple(row for row in self.rows if row.table != table))


def _grouped(rows: Iterable[Residual], field: str) -> dict[str, tuple[Residual, ...]]:
    groups: dict[str, list[Residual]] = {}
    for row in rows:
        groups.setdefault(getattr(row, field), []).append(row)
    return {value: tuple(group) for value, group in groups.items()}


def parse(text: str) -> Residuals:
    """Read residuals from the text of a CSV file with a header."""
    _, rows = csv_rows(text, "residuals.csv")
    readers = {field.name: READ[str(field.type)] for field in fields(Residual)}
    return Residuals(
        tuple(
            Residual(**{name: read(row[name]) for name, read in readers.items()}) for _, row in rows
        )
    )


def csv_lines(rows: Iterable[Residual]) -> list[str]:
    """Lines of the CSV file that :func:`parse` reads; residuals to four decimals."""
    names = [field.name for field in fields(Residual)]
    cells = (
        [_cell(name, getattr(row, name)) for name in names]
        for row in rows
        if math.isfinite(row.log_residual)
    )
    return [",".join(line) for line in (names, *cells)]


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
