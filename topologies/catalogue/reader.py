"""Reading of catalogue files: rows checked one by one by the ranges of ``quantities.csv``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topologies.support.arguments import check_names
from topologies.support.errors import InputError, check_choice, shown, suggestion
from topologies.support.files.reading import csv_rows, read_text
from topologies.support.units import si

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


GRADES = ("stated", "measured", "derived", "assumed")
COLUMNS = ("part", "quantity", "variant", "value", "unit", "grade", "source", "note", "low", "high")
LARGEST_FILE_BYTES = 5_000_000
NAME = "name"  # unit of a row whose value is a word
WORD = re.compile(r"[\w.+-]{1,60}")
_REQUIRED = ("part", "quantity", "value", "unit", "grade", "source")


class Entry(NamedTuple):
    """A row of the catalogue: a quantity of a part in SI units, or a word about the part."""

    part: str
    quantity: str
    variant: str  # name of an alternative to a contested value; empty for the default
    # The SI unit: B, B/s, s, FLOP/s, 1/s, W, J/B, s/m, USD/s, count or ratio; ``name`` for a word,
    # which is then in ``written``
    unit: str
    grade: str
    # Keys of ``sources.csv``, each with a path after a colon if it has one, separated by ``; ``
    source: str
    note: str
    # low, high: range within which the value may lie [``unit``]; None if it is not stated
    low: float | None
    high: float | None
    written: str  # number and unit as in the file, such as ``2.9 TB/s``
    exact: Fraction  # value without rounding [``unit``]

    @property
    def value(self) -> float:
        """Value in SI [``unit``]."""
        return float(self.exact)


def read_entries(file: Path | Traversable, name: str) -> list[tuple[int, Entry]]:
    """Read the rows of a catalogue file, each with its line number."""
    text = read_text(file, limit_bytes=LARGEST_FILE_BYTES, name=name)
    header, rows = csv_rows(text, name)
    _check_header(header, name)
    entries: dict[tuple[str, str, str], tuple[int, Entry]] = {}
    for line, cells in rows:
        row = _entry(cells, f"{name} line {line}")
        key = (row.part, row.quantity, row.variant)
        if key in entries:
            row_name = " ".join(filter(None, key))
            raise InputError(
                f"{name} line {line}: {row_name} is also in line {entries[key][0]}; keep one."
            )
        entries[key] = (line, row)
    return list(entries.values())


def _check_header(header: Iterable[str], name: str) -> None:
    columns = list(header)
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise InputError(
            f"{name} line 1: no column {', '.join(missing)}; a catalogue has {','.join(COLUMNS)}."
        )
    check_names(f"{name} line 1", columns, COLUMNS)


def _entry(cells: Mapping[str, str], where: str) -> Entry:
    for column in _REQUIRED:
        if not cells[column]:
            raise InputError(f"{where}: {column} is empty. State it.")
    check_choice(f"{where}: grade", cells["grade"], GRADES)
    if cells["unit"] == NAME:
        _check_word(cells, where)
        exact, base, low, high, written = Fraction(0), NAME, None, None, cells["value"]
    else:
        exact, base = _number(cells, "value", where)
        low, high = (
            _number(cells, column, where)[0] if cells.get(column) else None
            for column in ("low", "high")
        )
        written = f"{cells['value']} {cells['unit']}"
    if exact < 0:
        raise InputError(
            f"{where}: value {cells['value']} is negative; the least is 0. Correct it."
        )
    if (low is not None and low > exact) or (high is not None and high < exact):
        raise InputError(
            f"{where}: value {cells['value']} is outside its range, "
            f"{cells.get('low') or '0'} to {cells.get('high') or 'infinity'}. Correct one."
        )
    return Entry(
        part=cells["part"],
        quantity=cells["quantity"],
        variant=cells.get("variant", ""),
        unit=base,
        grade=cells["grade"],
        source=cells["source"],
        note=cells.get("note", ""),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        written=written,
        exact=exact,
    )


def _check_word(cells: Mapping[str, str], where: str) -> None:
    """Refuse a row whose value, such as the family of a chip, is not a word, or has a range."""
    word = cells["value"]
    if not WORD.fullmatch(word):
        raise InputError(
            f"{where}: value {shown(word)!r} is no {NAME}; write letters, digits and . _ + -."
        )
    if cells.get("low") or cells.get("high"):
        raise InputError(f"{where}: a {NAME} has no low and no high; leave them empty.")


def _number(cells: Mapping[str, str], column: str, where: str) -> tuple[Fraction, str]:
    try:
        return si(cells[column], cells["unit"])
    except InputError as mistake:
        raise InputError(f"{where}: {column}: {mistake}") from None


FILE = "quantities.csv"
ANY = "*"  # name of the quantity in rows of ``quantities.csv`` that hold for all of a unit


@dataclass(frozen=True)
class Domain:
    """The values that a quantity may take."""

    # least, most: smallest and largest value, in the SI unit
    least: float
    most: float
    whole: bool  # whether the value must be an integer, as for numbers of things
    # Patterns of the parts of which no command reads this quantity
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
    """Return the domain of a quantity: that of its name or, if it has none, of its unit."""
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
    """Refuse a chip whose matrix engines are faster than the stated peak of the chip."""
    # Utilisation is a fraction of the peak, but times follow from the rate of the matrix engines:
    # were that above the peak, utilisation could exceed one.
    for quantity, engines in entries.items():
        precision, _, kind = quantity.rpartition("_")
        peak = f"{precision}_peak"
        if kind != "matmul" or peak not in entries:
            continue
        chip = entries[peak]
        if engines.exact * 100 > chip.exact * 101:  # published peaks are rounded
            raise InputError(
                f"{where}{peak} is {chip.written}, less than {quantity} of {engines.written}; "
                f"change {peak} and {quantity} together."
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


Rows = Sequence[tuple[int, Entry]]  # rows of a file, each with its line
InForce = Mapping[tuple[str, str], Entry]
"""Entries of a catalogue that are in force, by part and quantity."""


def check_overlay(rows: Iterable[Entry], in_force: InForce, overlay: Rows, path: str) -> None:
    """Check that every row of an overlay measures what a command reads, in the unit of its kind."""
    shipped = list(rows)
    merged = {(row.part, row.quantity, row.variant): row for row in shipped}
    merged |= {(row.part, row.quantity, row.variant): row for _, row in overlay}
    parts = {row.part for row in merged.values()}
    units: dict[str, set[str]] = {}
    for row in shipped:
        units.setdefault(row.quantity, set()).add(row.unit)
    for line, row in overlay:
        default = merged.get((row.part, row.quantity, ""))
        replaced = in_force.get((row.part, row.quantity)) or default
        where = f"{path} line {line}: {row.part} {row.quantity}"
        if replaced is None or default is None:
            raise InputError(
                f"{where}: the variant {row.variant!r} has no default beside it; "
                "add a row with an empty variant."
            )
        usual = {replaced.unit} if replaced is not row else units.get(row.quantity, {row.unit})
        if row.unit not in usual:
            elsewhere = " or ".join(sorted(usual))
            raise InputError(
                f"{where} is in {row.unit}, and it is a quantity in {elsewhere}. Correct its unit."
            )
        _check_read(row, where, set(units), parts)
        check_row(row, where)
    _check_parts(in_force, overlay, path)


def _check_read(row: Entry, where: str, quantities: set[str], parts: Iterable[str]) -> None:
    """Refuse a quantity that no command reads, as no row of the catalogue has one of its name."""
    # A name may end with that of a part, for a quantity between two parts.
    stems = [row.quantity.removesuffix(f"_{part}") for part in parts]
    if quantities.isdisjoint((row.quantity, *stems)):
        raise InputError(
            f"{where}: no command reads a quantity of that name."
            f"{suggestion(row.quantity, quantities)} Correct it, or leave the row out."
        )


def _check_parts(in_force: InForce, overlay: Rows, path: str) -> None:
    """Refuse rows of a part, or like one, whose name is unknown and probably a misspelt one."""
    # Similar to a part's name, and no new part: a new chip has a row ``family``, a machine
    # ``chip``; others are named in a row, belong to a part (``kernels.CHIP``), or have all
    # quantities of one.
    in_catalogue: dict[str, set[str]] = {}
    for part, quantity in in_force:
        in_catalogue.setdefault(part, set()).add(quantity)
    stated: dict[str, set[str]] = {}
    for _, row in overlay:
        stated.setdefault(row.part, set()).add(row.quantity)
    named = {row.written for _, row in overlay if row.unit == NAME}
    for line, row in overlay:
        part, quantities = row.part, stated[row.part]
        belongs = part.rpartition(".")[2] in {*in_catalogue, *stated} - {part}
        whole = any(len(kind) > 1 and kind <= quantities for kind in in_catalogue.values())
        new = part in named or quantities & {"family", "chip"} or belongs or whole
        if row.quantity == "like" and row.written not in {*in_catalogue, *stated}:
            near = suggestion(row.written, in_catalogue) or " cluster-sim list shows the machines."
            raise InputError(
                f"{path} line {line}: {part} is like {row.written!r}, which is no part.{near}"
            )
        near = suggestion(part, in_catalogue)
        if near and part not in in_catalogue and not new:
            raise InputError(
                f"{path} line {line}: the catalogue has no part {part!r}.{near} Correct "
                "it; a new chip needs a row `family`, a new machine a row `chip`."
            )
