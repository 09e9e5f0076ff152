"""Checks of an overlay: rows of a file that replace or add to those of a catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topologies.catalogue.domains import check_row
from topologies.catalogue.reader import NAME, Entry
from topologies.errors import InputError, suggestion

Rows = Sequence[tuple[int, Entry]]
"""Rows of a file, each with its line."""
InForce = Mapping[tuple[str, str], Entry]
"""Entries of a catalogue that are in force, by part and quantity."""


def check_overlay(rows: Iterable[Entry], in_force: InForce, overlay: Rows, path: str) -> None:
    """Check that every row of an overlay measures what a command reads, in the unit of its kind."""
    shipped = list(rows)
    merged = {(row.part, row.quantity, row.variant): row for row in shipped}
    merged |= {(row.part, row.quantity, row.variant): row for _, row in overlay}
    parts = {row.part for row in merged.values()}
    quantities = {row.quantity for row in shipped}
    for line, row in overlay:
        default = merged.get((row.part, row.quantity, ""))
        replaced = in_force.get((row.part, row.quantity)) or default
        where = f"{path} line {line}: {row.part} {row.quantity}"
        if replaced is None or default is None:
            raise InputError(
                f"{where}: the variant {row.variant!r} has no default beside it; "
                "add a row with an empty variant."
            )
        if row.unit != replaced.unit:
            raise InputError(
                f"{where} is in {row.unit}, elsewhere in {replaced.unit}. Write it in that."
            )
        _check_read(row, where, quantities, parts)
        check_row(row, where)
    _check_parts(in_force, overlay, path)


def _check_read(row: Entry, where: str, quantities: set[str], parts: Iterable[str]) -> None:
    """Refuse a quantity that no command reads, as no row of the catalogue has one of its name.

    A name may end with that of a part, for a quantity between two parts.
    """
    stems = [row.quantity.removesuffix(f"_{part}") for part in parts]
    if quantities.isdisjoint((row.quantity, *stems)):
        raise InputError(
            f"{where}: no command reads a quantity of that name."
            f"{suggestion(row.quantity, quantities)} Correct it, or leave the row out."
        )


def _check_parts(in_force: InForce, overlay: Rows, path: str) -> None:
    """Refuse rows of an unknown part whose name is probably a misspelt one.

    The name is similar to that of a part, and the rows do not describe a new part. A new chip
    has a row ``family`` and a new machine a row ``chip``; other new parts are named in a row
    (the fabric of a machine), belong to a part (``kernels.CHIP``), or have all quantities that
    some part of the catalogue has.
    """
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
        near = suggestion(part, in_catalogue)
        if near and part not in in_catalogue and not new:
            raise InputError(
                f"{path} line {line}: the catalogue has no part {part!r}.{near} Correct "
                "it; a new chip needs a row `family`, a new machine a row `chip`."
            )
