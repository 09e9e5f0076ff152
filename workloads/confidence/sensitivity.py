"""Sensitivity of an answer to the numbers of the catalogue.

The answer is computed once with a catalogue that records which numbers are read. Each of these is
then raised by one per cent. A number that changes the answer and has a range is also set to either
end of it. The other numbers keep their values, so interactions between numbers are not seen.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from topologies.catalogue.catalogue import Catalogue, Entry
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

STEP = Fraction(1, 100)  # relative step of the elasticity
WIDE_STEP = Fraction(1, 10)
"""Relative step for answers that jump. A request that comes just after the end of an iteration
instead of just before gets its first token a whole iteration later, which hides the effect of one
per cent of a number."""
LEAST = 1e-6  # relative change of the answer below which a number does not matter
COUNTS = ("count",)  # units of whole numbers, which are changed only over their range

Answer = Callable[[Catalogue], float]
Watch = Callable[[Sequence[Entry]], Iterable[Entry]]


@dataclass(frozen=True)
class NotingCatalogue(Catalogue):
    """A catalogue that records which numbers are read."""

    # Every row read so far by its part, quantity and variant, in order
    read: dict[tuple[str, ...], Entry] = field(default_factory=dict, compare=False)
    # One item for each copy that another process may have, whose reads are not recorded here
    copies: list[bool] = field(default_factory=list, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields of a copy, and record that there is one."""
        self.copies.append(True)
        return vars(self)

    def entry(self, part: str, quantity: str) -> Entry:
        """Return the row in force, and record that it was read."""
        row = super().entry(part, quantity)
        self.read[row[:3]] = row
        return row

    def with_variants(self, names: Mapping[str, str]) -> Catalogue:
        """Return a catalogue with other variants that records in the same place."""
        other = super().with_variants(names)
        digest = f"{self.digest} {other.digest}"
        return NotingCatalogue(digest, other.rows, other.chosen, self.read, self.copies)


def noting(catalogue: Catalogue) -> NotingCatalogue:
    """Return a catalogue with the same numbers that records reads."""
    # Its digest is unique, so that no result cached for the original, or for an earlier catalogue
    # that recorded its reads, takes the place of a read.
    digest = f"{catalogue.digest} noted {uuid.uuid4()}"
    return NotingCatalogue(digest, catalogue.rows, catalogue.chosen)


@dataclass(frozen=True)
class Sensitivity:
    """Effect of one number of the catalogue on an answer."""

    input: str  # ``PART.QUANTITY``
    grade: str  # grade of the number in the catalogue
    unit: str  # SI unit of the number, such as ``B/s``
    # low, high: ends of the number's range [``unit``]; None where no source gives a range.
    low: float | None
    high: float | None
    # change_low, change_high: relative change of the answer with the number at either end
    change_low: float | None
    change_high: float | None
    # Relative change of the answer over that of the number, for a rise of one per cent (ten for
    # answers that jump)
    elasticity: float

    @property
    def swing(self) -> float:
        """Largest relative change of the answer over the range, or over ± 10 % without a range."""
        ends = [abs(change) for change in (self.change_low, self.change_high) if change is not None]
        return max(ends, default=abs(self.elasticity) * 0.1)


def sensitivity(
    answer: Answer,
    catalogue: Catalogue,
    watch: Watch = lambda entries: entries,
    step: Fraction = STEP,
) -> list[Sensitivity]:
    """Return the numbers of the catalogue that change an answer, the largest swing first."""
    # ``answer`` is computed from a catalogue, and ``step`` the relative rise of each number.
    noted = noting(catalogue)
    base = answer(noted)
    entries = list(noted.read.values())
    rows = [_of_entry(answer, catalogue, base, entry, step) for entry in watch(entries)]
    moving = [row for row in rows if row is not None]
    return sorted(moving, key=lambda row: (-row.swing, row.input))


def _of_entry(
    answer: Answer, catalogue: Catalogue, base: float, entry: Entry, step: Fraction
) -> Sensitivity | None:
    """Return the effect of one number; None where the answer does not depend on it."""
    elasticity = 0.0
    if entry.unit not in COUNTS:
        change = _change(answer, catalogue, base, entry, entry.exact * (1 + step))
        elasticity = (change or 0.0) / float(step)
    low = high = None
    if entry.unit in COUNTS or abs(elasticity) > LEAST:
        low, high = (
            None if end is None else _change(answer, catalogue, base, entry, Fraction(end))
            for end in (entry.low, entry.high)
        )
    if max(abs(change or 0.0) for change in (elasticity, low, high)) <= LEAST:
        return None
    name = f"{entry.part}.{entry.quantity}"
    unit = entry.unit
    return Sensitivity(name, entry.grade, unit, entry.low, entry.high, low, high, elasticity)


def _change(
    answer: Answer, catalogue: Catalogue, base: float, entry: Entry, value: Fraction
) -> float | None:
    """Relative change of the answer with one number replaced; None for a value that is refused."""
    moved = entry._replace(value=float(value), exact=value, low=None, high=None)
    try:
        seconds = answer(catalogue.with_rows([moved]))
    except InputError:
        return None
    return seconds / base - 1 if math.isfinite(seconds) else None


def sensitivity_frame(rows: Sequence[Sensitivity]) -> pd.DataFrame:
    """Return one row for each number: the keys of the command line's JSON."""
    import pandas as pd

    columns = ("input", "low", "high", "change_low", "change_high", "elasticity", "grade", "unit")
    return pd.DataFrame(
        [[getattr(row, name) for name in columns] for row in rows], columns=list(columns)
    )
