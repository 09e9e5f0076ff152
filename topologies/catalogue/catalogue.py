"""The hardware catalogue: every number about a machine, with its unit, grade and source.

``docs/background/catalogue.md`` explains the rows of ``topologies/data`` and how to replace them.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from topologies.catalogue.reader import (
    NAME,
    Entry,
    check_overlay,
    check_peaks,
    is_reference,
    read_entries,
)
from topologies.support.errors import InputError, check_choice, suggestion
from topologies.support.files import kept_files
from topologies.support.units import LIMIT, PS_PER_S

__all__ = ["Catalogue", "Entry", "choose", "shipped_catalogue"]

Key = tuple[str, str]
_FACTOR = re.compile(r"x\d{1,6}(\.\d{1,6})?", re.ASCII)  # variant that scales the value in force
LIKE = "like"  # quantity of a chip that names the chip whose constants hold for it


@dataclass(frozen=True)
class Catalogue:
    """An immutable set of entries; compared, hashed and pickled by content.

    All methods raise InputError for an unknown part or quantity, with the most similar name, unless
    they are given a default.

    Attributes
    ----------
    digest : str
        SHA-256 over all values and the variants in force, by which the record of a run names the
        catalogue.
    rows : tuple of Entry
        Defaults and alternatives.
    chosen : tuple of (part, quantity, variant)
        Alternatives in force instead of their defaults.
    """

    digest: str
    rows: tuple[Entry, ...] = field(compare=False, repr=False)
    chosen: tuple[tuple[str, str, str], ...] = ()

    @functools.cached_property
    def _in_force(self) -> dict[Key, Entry]:
        chosen = _by_key(self.chosen)
        stated = {
            (row.part, row.quantity): row
            for row in self.rows
            if row.variant == chosen.get((row.part, row.quantity), "")
        }
        return _with_likes(stated)

    @functools.cached_property
    def _of_part(self) -> dict[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        for part, quantity in self._in_force:
            names.setdefault(part, []).append(quantity)
        return {part: tuple(quantities) for part, quantities in names.items()}

    @functools.cached_property
    def _integers(self) -> dict[Key, int]:
        """Cache of :meth:`integer`: values are exact fractions, which are slow to round."""
        return {}

    @functools.cached_property
    def _texts(self) -> dict[tuple[str, ...], str]:
        return _texts_of(self.rows)

    def parts(self) -> tuple[str, ...]:
        """Return the names of all parts, in file order."""
        return tuple(self._of_part)

    def quantities(self, part: str) -> tuple[str, ...]:
        """Return the names of the quantities of a part, in file order."""
        if part not in self._of_part:
            near = suggestion(part, self.parts()) or " cluster-sim list shows the machines."
            raise InputError(f"the catalogue has no part {part[:80]!r}.{near}")
        return self._of_part[part]

    def entries(self, part: str) -> dict[str, Entry]:
        """Return the entries in force of a part, by quantity."""
        return {quantity: self.entry(part, quantity) for quantity in self.quantities(part)}

    def has(self, part: str, quantity: str) -> bool:
        """Return whether a quantity of a part is in the catalogue."""
        return (part, quantity) in self._in_force

    def entry(self, part: str, quantity: str) -> Entry:
        """Return the entry in force of a quantity of a part."""
        row = self._in_force.get((part, quantity))
        if row is None:
            near = suggestion(quantity, self.quantities(part))
            raise InputError(
                f"the catalogue has no {quantity[:80]!r} of {part}.{near} Correct the name, or add "
                "a row for it to an overlay (--catalogue FILE)."
            )
        return row

    def value(self, part: str, quantity: str, default: float | None = None) -> float:
        """Return a value in SI units, or a default where the catalogue has no such quantity.

        A word is refused.

        >>> shipped_catalogue().value("trn2", "hbm_bandwidth")
        2900000000000.0
        """
        if default is not None and not self.has(part, quantity):
            return default
        return self._number(part, quantity).value

    def name(self, part: str, quantity: str, default: str | None = None) -> str:
        """Return a word about a part, such as the family of a chip, or a default for none.

        A number is refused.

        >>> shipped_catalogue().name("trn2.48xlarge", "chip")
        'trn2'
        """
        if default is not None and not self.has(part, quantity):
            return default
        entry = self.entry(part, quantity)
        if entry.unit != NAME:
            raise InputError(f"{part} {quantity} is {entry.written}, a number and no name.")
        return entry.written

    def _number(self, part: str, quantity: str) -> Entry:
        entry = self.entry(part, quantity)
        if entry.unit == NAME:
            raise InputError(f"{part} {quantity} is {entry.written!r}, a name and no number.")
        return entry

    def integer(self, part: str, quantity: str, default: int | None = None) -> int:
        """Return the nearest integer to a value in SI units (bytes, B/s, counts), or a default.

        A value that rounding would change by more than 0.1 % is refused.

        >>> shipped_catalogue().integer("trn2", "hbm_bytes") == 96 * 2**30
        True
        """
        value = self._integers.get((part, quantity))
        if value is None:
            if default is not None and not self.has(part, quantity):
                return default
            value = self._integers[part, quantity] = _whole(self._number(part, quantity), 1)
        return value

    def ps(self, part: str, quantity: str, default: int | None = None) -> int:
        """Return a time in whole picoseconds, or a default where the catalogue has none.

        A value that is not a time is refused.

        >>> shipped_catalogue().ps("trn2", "link_latency")
        300000
        """
        if default is not None and not self.has(part, quantity):
            return default
        entry = self._number(part, quantity)
        if entry.unit != "s":
            raise InputError(f"{part} {quantity} is {entry.written}, not a time. State it in s.")
        return _whole(entry, PS_PER_S)

    def variants(self, part: str, quantity: str) -> tuple[Entry, ...]:
        """Return the default of a quantity and its named alternatives, whichever is in force.

        >>> [row.variant for row in shipped_catalogue().variants("trn2", "cc_cores")]
        ['', 'kernel-guide']
        """
        key = self.entry(part, quantity)[:2]
        return tuple(row for row in self.rows if row[:2] == key)

    def with_variants(self, names: Mapping[str, str]) -> Catalogue:
        """Return a catalogue in which contested values take a named alternative.

        ``names``: name of the alternative by ``PART.QUANTITY``; an empty one stands for the
        default, and an unknown one is refused.

        >>> guided = shipped_catalogue().with_variants({"trn2.hbm_bandwidth": "kernel-guide"})
        >>> guided.value("trn2", "hbm_bandwidth")
        3000000000000.0
        """
        # Equal catalogues may have rows of other notes, and a memo must not exchange those.
        return _with_variants(self, id(self.rows), tuple(names.items()))

    def with_overlay(self, path: Path | str) -> Catalogue:
        """Return a catalogue with the rows of a CSV file added.

        A row replaces that of the same part, quantity and variant; both must measure the same kind
        of quantity. Variants in force stay in force.

        Refused are, with file and line, a unit of another quantity, a variant without a default,
        and a quantity or a part that no command reads.
        """
        overlay = read_entries(Path(path), str(path))
        if not overlay:
            raise InputError(f"{path} holds no rows. Add rows to it, or leave the file out.")
        check_overlay(self.rows, self._in_force, overlay, str(path))
        # A price that is replaced is paid in another way, if the file does not say that it is not.
        priced = {row.part for _, row in overlay if row[1:3] == ("price", "")}
        kept = (row for row in self.rows if row[1] != "price_basis" or row.part not in priced)
        changed = replace(self, rows=tuple(kept)).with_rows(row for _, row in overlay)
        for part in dict.fromkeys(row.part for _, row in overlay):
            check_peaks(changed.entries(part), f"{path}: {part} ")
        return changed

    def with_rows(self, rows: Iterable[Entry]) -> Catalogue:
        """Return a catalogue with these rows, which replace those of the same names."""
        added = tuple(rows)
        merged = {row[:3]: row for row in (*self.rows, *added)}
        texts = {**self._texts, **_texts_of(added)}
        return _catalogue(tuple(merged.values()), texts, _by_key(self.chosen))


@functools.lru_cache(maxsize=128)
def _with_variants(base: Catalogue, _rows: int, names: tuple[tuple[str, str], ...]) -> Catalogue:
    chosen = _by_key(base.chosen)
    for path, name in names:
        part, _, quantity = path.rpartition(".")
        variants = [row.variant for row in base.variants(part, quantity) if row.variant]
        if name and name not in variants:
            choices = f"there are {', '.join(variants)}" if variants else "it has none"
            raise InputError(
                f"{path} has no variant {name[:80]!r}; {choices}. A factor is written x1.5; a "
                "value of your own goes into a catalogue file (--catalogue)."
            )
        chosen[base.entry(part, quantity)[:2]] = name
    return _catalogue(base.rows, base._texts, chosen)


@functools.cache
def shipped_catalogue() -> Catalogue:
    """Return the shipped catalogue.

    Examples
    --------
    >>> shipped_catalogue().entry("trn2", "bf16_peak").written
    '667 TFLOP/s'
    """
    digest, rows = shipped_rows()
    return Catalogue(digest, tuple(rows))


def choose(
    variants: Sequence[str] = (), overlay: Catalogue | Path | str | None = None
) -> Catalogue:
    """Return the shipped catalogue with the rows of an overlay, and with variants switched on.

    A variant may be a factor on the value that would be in force. A whole catalogue in place of
    the overlay takes the place of the shipped one.

    >>> choose(["trn2.hbm_bandwidth=x1.5"]).entry("trn2", "hbm_bandwidth").written
    'x1.5 of 2.9 TB/s'
    """
    base = overlay if isinstance(overlay, Catalogue) else shipped_catalogue()
    if isinstance(overlay, Path | str):
        base = base.with_overlay(overlay)
    names = dict[str, str]()
    for text in variants:
        path, equals, name = text.partition("=")
        if not equals or "." not in path:
            raise InputError(
                f"variant {text[:80]!r} is not of the form PART.QUANTITY=NAME. See list variants."
            )
        path, name = path.strip(), name.strip()
        if names.setdefault(path, name) != name:
            raise InputError(f"{path} is both {names[path][:80]} and {name[:80]}. Keep one.")
        _check_read(base, path)
    factors = {path: name for path, name in names.items() if _FACTOR.fullmatch(name)}
    scaled = [row for path, factor in factors.items() for row in _scaled(base, path, factor)]
    named = {path: name for path, name in names.items() if path not in factors}
    changed = base.with_rows(scaled).with_variants(named) if names else base
    for path, factor in factors.items():
        check_peaks(changed.entries(path.rpartition(".")[0]), f"--variant {path}={factor}: ")
    return changed


def _scaled(base: Catalogue, path: str, factor: str) -> list[Entry]:
    """Return a value and its named alternatives times a factor, as rows of that very part."""
    part, _, quantity = path.rpartition(".")
    row, times = base.entry(part, quantity), Fraction(factor[1:])
    if row.unit == NAME or not times:
        raise InputError(
            f"{path} is {row.written}, and cannot be scaled by {factor}. Leave that out."
        )
    return [
        each._replace(
            part=part,
            quantity=quantity,
            exact=times * each.exact,
            low=None if each.low is None else float(times) * each.low,
            high=None if each.high is None else float(times) * each.high,
            grade="assumed",
            note=f"{factor[1:]} times the {each.grade} value",
            written=f"{factor} of {each.written}",
        )
        for each in base.variants(part, quantity)
    ]


def _check_read(base: Catalogue, path: str) -> None:
    """Refuse a variant of a value that no command reads, since it would change nothing."""
    part, _, quantity = path.rpartition(".")
    unit = base.entry(part, quantity).unit if base.has(part, quantity) else NAME
    if unit != NAME and is_reference(part, quantity, unit):
        raise InputError(
            f"{path} is kept for reference only: no command reads it, so no alternative of it "
            "changes a result. Leave it out."
        )


def _with_likes(stated: dict[Key, Entry]) -> dict[Key, Entry]:
    """Add the rows that chips take from the chip that ``like`` names, and that from another."""
    # Its own rows and constants in parts and quantities whose names end with the chip's, as
    # ``serving.trn2`` and ``scheduling_trn2``. Rows of the taking chip itself stay.
    likes = {
        part: row.written
        for (part, quantity), row in stated.items()
        if quantity == LIKE and part != row.written
    }
    added = dict[Key, Entry]()
    for chip in likes:
        lenders = [chip]
        while (like := likes.get(lenders[-1], chip)) not in lenders:
            lenders.append(like)
        for like in reversed(lenders[1:]):  # rows of the nearest come last, and stay
            for (part, quantity), row in stated.items():
                if part == like:
                    added[chip, quantity] = row
                elif part.endswith(f".{like}"):
                    added[part.removesuffix(like) + chip, quantity] = row
                elif quantity.endswith(f"_{like}"):
                    added[part, quantity.removesuffix(like) + chip] = row
    return {**added, **stated}


def _by_key(chosen: Iterable[tuple[str, str, str]]) -> dict[Key, str]:
    return {(part, quantity): variant for part, quantity, variant in chosen}


def _catalogue(
    rows: tuple[Entry, ...], texts: dict[tuple[str, ...], str], chosen: Mapping[Key, str]
) -> Catalogue:
    switched = tuple(sorted((*key, variant) for key, variant in chosen.items() if variant))
    derived = Catalogue(_digest(texts, switched), rows, switched)
    # Most of its rows are those of the catalogue that it is from, and are not described again.
    vars(derived)["_texts"] = texts
    return derived


def _whole(entry: Entry, scale: int) -> int:
    """Return the nearest integer to ``scale`` times a value, which must be close to it."""
    scaled = entry.exact * scale
    whole = round(scaled)
    if abs(whole - scaled) * 1000 > scaled or whole > LIMIT:
        raise InputError(
            f"{entry.part} {entry.quantity} is {entry.written}, which is not near "
            f"a whole number of at most {LIMIT:.3g}."
        )
    return whole


DATA = Path(__file__).parents[1] / "data"
_SOURCES = "sources.csv"
_PARSERS = ("catalogue/reader.py", "catalogue/catalogue.py", "support/units.py")


def shipped_rows() -> tuple[str, list[Entry]]:
    """Return the digest and all rows in the order of the files, parsed only after they changed."""
    files = sorted(path for path in DATA.glob("*.csv") if path.name != _SOURCES)
    parsers = [DATA.parent / name for name in _PARSERS]
    inputs = [part for path in files + parsers for part in (path.name, path.read_bytes())]

    def parsed() -> tuple[str, list[Entry]]:
        rows = [row for path in files for _, row in read_entries(path, path.name)]
        return digest_of(rows), rows

    digest = kept_files.digest(*inputs)
    return kept_files.made_once("catalogue", digest, parsed, _entries, _plain, most=0)


def _entries(document: Any) -> tuple[str, list[Entry]]:
    """Digest and rows of a kept catalogue; a ValueError if they do not belong together."""
    digest, plain = document
    rows = [Entry._make((*row, Fraction(*exact))) for *row, exact in plain]
    if digest_of(rows) != digest:
        raise ValueError(digest)
    return digest, rows


def _plain(shipped: tuple[str, list[Entry]]) -> list[Any]:
    """Return digest and rows for JSON; an exact value has a denominator unless that is 1."""
    digest, rows = shipped
    ratios = ((row, row.exact.as_integer_ratio()) for row in rows)
    return [digest, [[*row[:-1], ratio if ratio[1] > 1 else ratio[:1]] for row, ratio in ratios]]


def digest_of(rows: Iterable[Entry]) -> str:
    """Return a digest that depends neither on the order of rows nor on their notes."""
    return _digest(_texts_of(rows))


def _texts_of(rows: Iterable[Entry]) -> dict[tuple[str, ...], str]:
    """Return the part of each row that its catalogue's digest covers."""
    return {
        row[:3]: repr((*row[:3], row.written if row.unit == NAME else row.exact, row.unit))
        for row in rows
    }


def _digest(
    texts: Mapping[tuple[str, ...], str], switched: tuple[tuple[str, str, str], ...] = ()
) -> str:
    in_order = (texts[key] for key in sorted(texts))
    return hashlib.sha256("".join((repr(switched), *in_order)).encode()).hexdigest()


def usable_hbm_bytes(chip: str, catalogue: Catalogue) -> int:
    """Return the memory that the driver reports or, if unknown, that of the data sheet [B]."""
    # A GB on NVIDIA's data sheets is nearly a GiB.
    usable = "hbm_usable_bytes" if catalogue.has(chip, "hbm_usable_bytes") else "hbm_bytes"
    return catalogue.integer(chip, usable)


NEURON, NCCL = "neuron", "nccl"  # collective runtimes whose choices of algorithms are modelled
UNKNOWN = "gpu"  # family of a chip whose rows name none: a GPU without measurements
PREFIX = "family."  # beginning of the names of the catalogue's parts that describe families


@dataclass(frozen=True)
class ChipFamily:
    """Properties that a chip shares with others of its family."""

    # Name of the family, such as ``trainium`` or ``h100``, which the rows of the part
    # ``family.<name>`` describe
    name: str
    runtime: str  # collective runtime: ``neuron``, ``nccl`` or another word
    ranks_per_chip: int  # logical cores that a chip presents to programs; 1 for a GPU
    kernels: str  # part with the constants of kernels, such as ``kernels.h100``
    serving: str  # part with the overheads of the serving engine, such as ``serving.gpu``
    measured_on: str  # chip on which the kernels were measured; empty if they were not
    # Best provenance of a kernel time on this chip: ``measured``, ``interpolated`` from another
    # chip of the family, or ``assumed``
    provenance: str

    @property
    def is_neuron(self) -> bool:
        """Return whether programs run under the Neuron compiler and runtime."""
        return self.runtime == NEURON


@functools.lru_cache(maxsize=256)
def chip_family(chip: str, catalogue: Catalogue | None = None) -> ChipFamily:
    """Return the family of a chip, by default according to the shipped catalogue."""
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    name = catalogue.name(chip, "family", UNKNOWN)
    part = PREFIX + name
    check_choice(f"the family of {chip[:80]}", name, families(catalogue))
    return ChipFamily(
        name=name,
        runtime=catalogue.name(part, "runtime"),
        ranks_per_chip=catalogue.integer(chip, "ranks_per_chip", 1),
        kernels=catalogue.name(part, "kernels"),
        serving=catalogue.name(part, "serving"),
        measured_on=catalogue.name(catalogue.name(part, "kernels"), "measured_on", ""),
        provenance=catalogue.name(chip, "kernel_times", "assumed"),
    )


def is_invented(chip: str, catalogue: Catalogue) -> bool:
    """Return whether a chip's own rates, of arithmetic and of memory, are all assumed."""
    # Rows that it takes from the chip that it is like are no rates of its own. No answer reads them
    # here, so that nothing is recorded.
    grades = [
        row.grade
        for (part, quantity), row in catalogue._in_force.items()
        if part == row.part == chip and (quantity.endswith("_peak") or quantity == "hbm_bandwidth")
    ]
    return len(grades) > 1 and {*grades} == {"assumed"}


def families(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(part.removeprefix(PREFIX) for part in catalogue.parts() if part.startswith(PREFIX))
