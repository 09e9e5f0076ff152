"""The chip of a cluster file: a part of the catalogue, perhaps with some values replaced."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.domains import check_peaks, check_row
from topologies.catalogue.families import chip_family
from topologies.catalogue.reader import NAME, Entry
from topologies.clusters.yaml_schema import ChipKeys
from topologies.errors import InputError, shown, suggestion
from topologies.units import si

_NEEDED = ("bf16_peak", "hbm_bytes", "hbm_bandwidth")
_NUMBER = re.compile(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_USABLE = ("hbm_bytes", "hbm_usable_bytes")
_SHOWN = 60


def chip_part(keys: ChipKeys | None, path: Path, catalogue: Catalogue) -> tuple[str, Catalogue]:
    """Return the catalogue part of the chip, and the catalogue with the values of the file.

    Raises InputError for an unknown chip, quantity or unit, a value outside its domain, and peaks
    that contradict one another.
    """
    if keys is None:
        return "", catalogue
    if keys.like is not None:
        catalogue.entry(keys.like, "hbm_bytes")
    # Kernels and intervals are looked up by the part, so a name beside like only labels the file.
    part = keys.like or keys.name or f"{path.stem} chip"
    values = {name: str(value) for name, value in (keys.model_extra or {}).items()}
    rows = [_entry(part, name, text, path, catalogue) for name, text in values.items()]
    changed = catalogue.with_rows(rows + _usable(part, values, rows, catalogue))
    for quantity in _NEEDED:
        if not changed.has(part, quantity):
            raise InputError(f"chip.{quantity} is missing, and there is no like: to take it from")
    check_peaks(changed.entries(part), "chip.")
    chip_family(part, changed)
    return part, changed


def _usable(
    part: str, values: dict[str, str], rows: list[Entry], catalogue: Catalogue
) -> list[Entry]:
    """Return a row for the usable memory, if the file states the capacity alone.

    Otherwise the usable memory of the part would hide the capacity of the file.
    """
    printed, usable = _USABLE
    if printed not in values or usable in values or not catalogue.has(part, usable):
        return []
    stated = next(row for row in rows if row.quantity == printed)
    return [stated._replace(quantity=usable, variant=catalogue.entry(part, usable).variant)]


def _entry(part: str, quantity: str, text: str, path: Path, catalogue: Catalogue) -> Entry:
    units = _units(catalogue)
    if quantity not in units:
        name = shown(quantity, _SHOWN)
        elsewhere = [row.part for row in catalogue.rows if row.quantity == quantity]
        if elsewhere:
            raise InputError(
                f"chip.{name} is no quantity of a chip, but of {elsewhere[0]}; a chip's would be "
                "read by nothing. Leave it out, or state it for its part with --catalogue FILE.csv."
            )
        raise InputError(
            f"unknown chip.{name}.{suggestion(quantity, ['name', 'like', *units])} Name a quantity "
            "of the catalogue, such as bf16_matmul or hbm_bandwidth."
        )
    unit = units[quantity]
    exact = Fraction(0) if unit == NAME else _exact(quantity, text, unit)
    row = Entry(
        part=part,
        quantity=quantity,
        variant="",
        value=float(exact),
        unit=unit,
        grade="stated",
        source=f"file {path.name}",
        note="",
        low=None,
        high=None,
        written=text,
        exact=exact,
    )
    check_row(row, f"chip.{quantity}")
    replaces = catalogue.has(part, quantity)
    return row._replace(variant=catalogue.entry(part, quantity).variant) if replaces else row


def _units(catalogue: Catalogue) -> dict[str, str]:
    """Return the units of the quantities that chips have, by their names."""
    machines = {row.part for row in catalogue.rows if row.quantity == "chip"}
    chips = {row.part for row in catalogue.rows if row.quantity == _NEEDED[0]} - machines
    return {row.quantity: row.unit for row in catalogue.rows if row.part in chips and row.unit}


def _exact(quantity: str, text: str, unit: str) -> Fraction:
    """Return the exact value of a number with its unit, in SI."""
    entry = f"chip.{quantity} {shown(text, _SHOWN)!r}"
    matched = _NUMBER.fullmatch(text) if len(text) <= _SHOWN else None
    if matched is None:
        raise InputError(f"{entry} is not a number with a unit. Write it in {unit}.")
    number, spelled = matched.groups()
    try:
        exact, base = si(number, spelled or "count")
    except InputError as mistake:
        raise InputError(f"{entry}: {mistake}") from None
    if base != unit and (spelled or unit not in ("count", "ratio")):
        has = f"is in {base}" if spelled else "has no unit"
        raise InputError(f"{entry} {has}; this quantity is in {unit}. Write the number with it.")
    return exact
