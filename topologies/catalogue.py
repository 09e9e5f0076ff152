"""The hardware catalogue: every number of a machine, with its unit, grade and source.

The rows are the CSV files of ``topologies/data``; ``docs/catalogue.md`` says how to read them, add
one, switch a contested value, or lay your own rows over them.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from topologies.errors import InputError, suggestion
from topologies.quantities import LIMIT, PS_PER_S, si

GRADES = ("stated", "measured", "derived", "assumed")
COLUMNS = ("part", "quantity", "variant", "value", "unit", "grade", "source", "note", "low", "high")
LARGEST_FILE_BYTES = 5_000_000
_SOURCES = "sources.csv"
_REQUIRED = ("part", "quantity", "value", "unit", "grade", "source")

Key = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One row: a quantity of a part, in SI units.

    Attributes
    ----------
    part, quantity : str
        ``trn2``, ``hbm_bandwidth``.
    variant : str
        Name of an alternative to a contested value; empty for the default.
    value : float
        In SI [``unit``].
    unit : str
        The SI unit: B, B/s, s, FLOP/s, 1/s, W, J/B, USD/s, count or ratio.
    grade : str
        One of :data:`GRADES`.
    source : str
        Keys of ``sources.csv``, a path or section after the colon, divided by semicolons.
    note : str
        What a reader should know: the end points, the reason for a default.
    low, high : float or None
        Range within which the value may lie [``unit``]; None where the source gives none.
    written : str
        Number and unit as in the file, such as ``2.9 TB/s``.
    exact : Fraction
        The value without rounding [``unit``].
    """

    part: str
    quantity: str
    variant: str
    value: float
    unit: str
    grade: str
    source: str
    note: str
    low: float | None
    high: float | None
    written: str
    exact: Fraction


@dataclass(frozen=True)
class Catalogue:
    """An immutable set of entries; equal and hashed by content.

    Attributes
    ----------
    digest : str
        SHA-256 over all rows and the variants in force: what a run's record names.
    rows : tuple of Entry
        Defaults and alternatives.
    chosen : tuple of (part, quantity, variant)
        Variants in force instead of their defaults.
    """

    digest: str
    rows: tuple[Entry, ...] = field(compare=False, repr=False)
    chosen: tuple[tuple[str, str, str], ...] = ()

    @functools.cached_property
    def _in_force(self) -> dict[Key, Entry]:
        chosen = {(part, quantity): variant for part, quantity, variant in self.chosen}
        return {
            (row.part, row.quantity): row
            for row in self.rows
            if row.variant == chosen.get((row.part, row.quantity), "")
        }

    @functools.cached_property
    def _of_part(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        for part, quantity in self._in_force:
            names.setdefault(part, []).append(quantity)
        return {part: tuple(quantities) for part, quantities in names.items()}

    def parts(self) -> tuple[str, ...]:
        """Names of all parts, in file order."""
        return tuple(self._of_part)

    def quantities(self, part: str) -> tuple[str, ...]:
        """Names of the quantities of a part, in file order.

        Raises
        ------
        InputError
            For an unknown part.
        """
        if part not in self._of_part:
            raise InputError(f"the catalogue has no part {part!r}.{suggestion(part, self.parts())}")
        return self._of_part[part]

    def has(self, part: str, quantity: str) -> bool:
        """Whether there is such an entry."""
        return (part, quantity) in self._in_force

    def entry(self, part: str, quantity: str) -> Entry:
        """Return the row in force.

        Raises
        ------
        InputError
            For an unknown part or quantity, with the nearest name.
        """
        found = self._in_force.get((part, quantity))
        if found is None:
            close = suggestion(quantity, self.quantities(part))
            raise InputError(f"the catalogue has no {quantity!r} of {part}.{close}")
        return found

    def value(self, part: str, quantity: str) -> float:
        """Value in SI units.

        Raises
        ------
        InputError
            As :meth:`entry`.

        Examples
        --------
        >>> catalogue().value("trn2", "hbm_bandwidth")
        2900000000000.0
        """
        return self.entry(part, quantity).value

    def integer(self, part: str, quantity: str) -> int:
        """Return the value in SI units, rounded to the nearest integer: bytes, B/s, counts.

        Raises
        ------
        InputError
            As :meth:`entry`, and for a value that rounds to 0 or is over 2⁶².

        Examples
        --------
        >>> catalogue().integer("trn2", "hbm_bytes") == 96 * 2**30
        True
        """
        return self._whole(self.entry(part, quantity), 1)

    def ps(self, part: str, quantity: str) -> int:
        """Return a time in whole picoseconds.

        Raises
        ------
        InputError
            As :meth:`integer`, and for what is not a time.

        Examples
        --------
        >>> catalogue().ps("trn2", "link_latency")
        300000
        """
        entry = self.entry(part, quantity)
        if entry.unit != "s":
            raise InputError(f"{part} {quantity} is in {entry.unit}, not a time.")
        return self._whole(entry, PS_PER_S)

    @staticmethod
    def _whole(entry: Entry, scale: int) -> int:
        whole = round(entry.exact * scale)
        if whole > LIMIT or (entry.exact and not whole):
            raise InputError(
                f"{entry.part} {entry.quantity} is {entry.written}, which has no use as an "
                f"integer; it must come to between 1 and {LIMIT:.3g}."
            )
        return whole

    def variants(self, part: str, quantity: str) -> tuple[Entry, ...]:
        """Return the default and its named alternatives, whichever is in force.

        Raises
        ------
        InputError
            As :meth:`entry`.
        """
        self.entry(part, quantity)
        return tuple(row for row in self.rows if (row.part, row.quantity) == (part, quantity))

    def with_variants(self, names: Mapping[str, str]) -> Catalogue:
        """Return a catalogue in which contested values take a named alternative.

        Parameters
        ----------
        names : mapping of "PART.QUANTITY" to str
            Name of the alternative; an empty name goes back to the default.

        Raises
        ------
        InputError
            For an unknown part, quantity or alternative, with what there is.

        Examples
        --------
        >>> guided = catalogue().with_variants({"trn2.hbm_bandwidth": "kernel-guide"})
        >>> guided.value("trn2", "hbm_bandwidth")
        3000000000000.0
        """
        chosen = {(part, quantity): variant for part, quantity, variant in self.chosen}
        for path, name in names.items():
            part, _, quantity = path.rpartition(".")
            known = [row.variant for row in self.variants(part, quantity) if row.variant]
            if name and name not in known:
                there = f"there are {', '.join(known)}" if known else "it has none"
                raise InputError(f"{path} has no variant {name!r}; {there}.")
            chosen[part, quantity] = name
        return _made(self.rows, chosen)

    def with_overlay(self, path: Path | str) -> Catalogue:
        """Return a catalogue in which the rows of a CSV file replace or join the shipped ones.

        A row of the same part, quantity and variant is replaced; the unit must measure the same
        thing. A variant that was switched on stays on.

        Raises
        ------
        InputError
            For a file that cannot be read or a row that breaks the rules, with file and line.
        """
        overlay = _read(Path(path), str(path))
        merged = {(row.part, row.quantity, row.variant): row for row in self.rows}
        for line, row in overlay:
            where = f"{path} line {line}: {row.part} {row.quantity}"
            known = self._in_force.get((row.part, row.quantity))
            if known and known.unit != row.unit:
                raise InputError(f"{where} is in {row.unit}, the catalogue has it in {known.unit}.")
            merged[row.part, row.quantity, row.variant] = row
        for line, row in overlay:
            if (row.part, row.quantity, "") not in merged:
                raise InputError(
                    f"{path} line {line}: {row.part} {row.quantity} has the variant "
                    f"{row.variant!r} but no default; add a row with an empty variant."
                )
        return _made(merged.values(), {(part, name): v for part, name, v in self.chosen})


@functools.cache
def catalogue() -> Catalogue:
    """Return the shipped catalogue.

    Examples
    --------
    >>> catalogue().entry("trn2", "bf16_peak").written
    '667 TFLOP/s'
    """
    data = resources.files("topologies") / "data"
    files = sorted((item for item in data.iterdir()), key=lambda item: item.name)
    rows = [
        row
        for item in files
        if item.name.endswith(".csv") and item.name != _SOURCES
        for _, row in _read(item, item.name)
    ]
    return _made(rows, {})


def choose(variants: Sequence[str] = (), overlay: Path | str | None = None) -> Catalogue:
    """Return the shipped catalogue with an overlay, then with ``PART.QUANTITY=NAME`` variants.

    Raises
    ------
    InputError
        For a variant that is not of that form, and as the two methods used.

    Examples
    --------
    >>> choose(["trn2.hbm_bandwidth=kernel-guide"]).value("trn2", "hbm_bandwidth")
    3000000000000.0
    """
    base = catalogue() if overlay is None else catalogue().with_overlay(overlay)
    names = {}
    for text in variants:
        path, equals, name = text.partition("=")
        if not equals or "." not in path:
            raise InputError(f"variant {text!r} is not of the form PART.QUANTITY=NAME.")
        names[path.strip()] = name.strip()
    return base.with_variants(names) if names else base


def _made(rows: Iterable[Entry], chosen: Mapping[Key, str]) -> Catalogue:
    kept = tuple(rows)
    switched = tuple(sorted((*key, variant) for key, variant in chosen.items() if variant))
    digest = hashlib.sha256()
    for row in sorted(kept, key=lambda row: (row.part, row.quantity, row.variant)):
        digest.update(repr((row.part, row.quantity, row.variant, row.exact, row.unit)).encode())
    digest.update(repr(switched).encode())
    return Catalogue(digest.hexdigest(), kept, switched)


def _read(file: Path | Traversable, name: str) -> list[tuple[int, Entry]]:
    """Rows of a file with their line numbers; every mistake names the file and the line."""
    reader = csv.DictReader(io.StringIO(_text(file, name)), strict=True)
    found: dict[tuple[str, str, str], tuple[int, Entry]] = {}
    try:
        _check_header(reader.fieldnames or (), name)
        for record in reader:
            where = f"{name} line {reader.line_num}"
            if None in record or None in record.values():
                raise InputError(f"{where}: it has not as many cells as the header names columns.")
            row = _entry({key: cell.strip() for key, cell in record.items()}, where)
            key = (row.part, row.quantity, row.variant)
            if key in found:
                raise InputError(f"{where}: {' '.join(key)} is also in line {found[key][0]}.")
            found[key] = (reader.line_num, row)
    except csv.Error as mistake:
        raise InputError(f"{name} line {reader.line_num}: not CSV ({mistake}).") from None
    return list(found.values())


def _text(file: Path | Traversable, name: str) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as mistake:
        raise InputError(f"{name} cannot be read: {mistake.strerror}.") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{name} is over the limit of {LARGEST_FILE_BYTES / 1e6:.0f} MB.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as mistake:
        line = content.count(b"\n", 0, mistake.start) + 1
        raise InputError(f"{name} line {line}: not UTF-8 text.") from None


def _check_header(header: Iterable[str], name: str) -> None:
    columns = list(header)
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise InputError(
            f"{name} line 1: no column {', '.join(missing)}; a catalogue has {','.join(COLUMNS)}."
        )
    for column in columns:
        if column not in COLUMNS:
            raise InputError(
                f"{name} line 1: unknown column {column!r}.{suggestion(column, COLUMNS)}"
            )


def _entry(cells: Mapping[str, str], where: str) -> Entry:
    for column in _REQUIRED:
        if not cells[column]:
            raise InputError(f"{where}: {column} is empty.")
    if cells["grade"] not in GRADES:
        raise InputError(
            f"{where}: unknown grade {cells['grade']!r}; the grades are {', '.join(GRADES)}."
        )
    exact, base = _number(cells["value"], cells["unit"], "value", where)
    low, high = (
        _number(cells[column], cells["unit"], column, where)[0] if cells.get(column) else None
        for column in ("low", "high")
    )
    if exact < 0 or (low is not None and low > exact) or (high is not None and high < exact):
        raise InputError(
            f"{where}: value {cells['value']} is negative or outside its range "
            f"{cells.get('low') or '…'} to {cells.get('high') or '…'}."
        )
    return Entry(
        part=cells["part"],
        quantity=cells["quantity"],
        variant=cells.get("variant", ""),
        value=float(exact),
        unit=base,
        grade=cells["grade"],
        source=cells["source"],
        note=cells.get("note", ""),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        written=f"{cells['value']} {cells['unit']}",
        exact=exact,
    )


def _number(number: str, unit: str, column: str, where: str) -> tuple[Fraction, str]:
    try:
        return si(number, unit)
    except InputError as mistake:
        raise InputError(f"{where}: {column}: {mistake}") from None
