"""Ranges of the values of quantities, and checks of numbers from users against them.

``quantities.csv`` states a range for each unit, and for single quantities where it differs. Rows of
an overlay and values of a cluster file are checked here, the shipped rows in a test.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path

from topologies.catalogue.reader import NAME, Entry
from topologies.errors import InputError
from topologies.files.reading import csv_rows, read_text

FILE = "quantities.csv"
ANY = "*"
"""Name of the quantity in rows of ``quantities.csv`` that hold for all of a unit."""


@dataclass(frozen=True)
class Domain:
    """The values that a quantity may take.

    ``least, most``: smallest and largest value, in the SI unit.
    ``whole``: whether the value must be an integer, as for numbers of things.
    ``reference_only``: patterns of the parts of which no command reads this quantity.
    """

    least: float
    most: float
    whole: bool
    reference_only: tuple[str, ...] = ()

    def fault(self, row: Entry) -> str:
        """Return what is wrong with a row's value; empty if nothing is."""
        if not Fraction(repr(self.least)) <= row.exact <= Fraction(repr(self.most)):
            ends = f"{_written(self.least, row.unit)} and {_written(self.most, row.unit)}"
            return f"it must lie between {ends}"
        if self.whole and row.exact.denominator != 1:
            return "it must be a whole number"
        return ""


def domain(quantity: str, unit: str) -> Domain:
    """Return the domain of a quantity: that of its name or, if it has none, of its unit.

    >>> domain("collective_efficiency", "ratio").most
    1.0
    >>> domain("radix", "count").whole
    True
    """
    domains = _domains()
    return domains.get((quantity, unit)) or domains[ANY, unit]


def is_reference(part: str, quantity: str, unit: str) -> bool:
    """Return whether a row is kept for reference only and read by no command."""
    patterns = domain(quantity, unit).reference_only
    return any(fnmatchcase(part, pattern) for pattern in patterns)


def check_row(row: Entry, where: str) -> None:
    """Refuse a value outside the domain of its quantity."""
    if row.unit == NAME:
        return
    fault = domain(row.quantity, row.unit).fault(row)
    if fault:
        raise InputError(f"{where} is {row.written}; {fault}. Correct it.")


def check_peaks(entries: Mapping[str, Entry], where: str = "") -> None:
    """Refuse a chip whose matrix engines are faster than the stated peak of the chip.

    The utilisation of a model's FLOP/s is a fraction of the peak, but times follow from the rate of
    the matrix engines; if that rate were above the peak, utilisation could exceed one.
    """
    for quantity, engines in entries.items():
        precision, _, kind = quantity.rpartition("_")
        peak = f"{precision}_peak"
        if kind != "matmul" or peak not in entries:
            continue
        chip = entries[peak]
        if engines.exact * 100 > chip.exact * 101:  # published peaks are rounded
            raise InputError(
                f"{where}{peak} is {chip.written}, less than {quantity} of {engines.written}; "
                f"state {quantity} as well."
            )


@functools.cache
def _domains() -> dict[tuple[str, str], Domain]:
    file = Path(__file__).parent / FILE
    _, rows = csv_rows(read_text(file, limit_bytes=10**6, name=FILE), FILE)
    return {
        (row["quantity"], row["unit"]): Domain(
            least=float(row["least"]),
            most=float(row["most"]),
            whole=row["whole"] == "yes",
            reference_only=tuple(row["reference_only"].split()),
        )
        for _, row in rows
    }


def _written(value: float, unit: str) -> str:
    return f"{value:g} {unit}" if unit not in ("count", "ratio") else f"{value:g}"
