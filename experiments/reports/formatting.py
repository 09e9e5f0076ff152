"""Text of numbers for people; the unit at the end of a name determines the format of its values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from topologies.support.units import format_bytes, format_memory, format_rate, format_seconds
from workloads.confidence.interval import Interval

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 10**300  # limit beyond which a number is no quantity, and is not written out
LONG = 1e9  # limit from which a bare number is written with an SI prefix instead of all its digits
SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_interval(ends: Interval) -> str:
    """Text of the interval of a time, to be written after the time.

    >>> format_interval(Interval(14.1, 19.0))
    '(80 %: 14.1 s – 19 s)'
    """
    return f"({ends.level:.0%}: {format_seconds(ends.low)} – {format_seconds(ends.high)})".replace(
        "%:", " %:"
    )


def _prefixed(unit: str) -> Callable[[Any], str]:
    """Return a function that writes values with the largest SI prefix below them."""

    def text(value: float) -> str:
        for factor, prefix in SI:
            if abs(value) >= factor:
                return f"{value / factor:.4g} {prefix}{unit}"
        return f"{value:.4g} {unit}"

    return text


def _usd(value: Any) -> str:
    """Text of an amount of money, whose only prefix is a million.

    >>> _usd(2046000), _usd(2428e6), _usd(0.53412)
    ('2,046,000 USD', '2,428 M USD', '0.5341 USD')
    """
    return f"{value / 1e6:,.0f} M USD" if abs(value) >= LONG else f"{number(value)} USD"


UNITS: Mapping[str, Callable[[Any], str]] = {
    "_flops_per_s": _prefixed("FLOP/s"),
    "_bytes_per_s_per_chip": format_rate,
    "_bytes_per_s": format_rate,
    "_requests_per_s": lambda value: f"{number(value)} requests/s",
    "_per_s": lambda value: f"{number(value)} /s",
    "_memory_bytes": lambda value: format_memory(int(value)),
    "_bytes": lambda value: format_bytes(int(value)),
    "_joules": lambda value: _prefixed("Wh")(value / 3600),
    "_w": _prefixed("W"),
    "_kg": lambda value: f"{number(value)} kg",
    "_usd": _usd,
    "_ps": lambda value: f"{value:,} ps",
    "_s": format_seconds,
}
"""Formats of values by the end of their name. The first match counts, so longer ends come first."""


RATIOS = {
    "attainment", "confidence", "efficiency", "error", "goodput", "hfu", "mfu", "regret", "share",
    "slower", "utilisation",
}  # fmt: skip
"""Words in the names of numbers without a unit that are written in per cent."""


SHARES = {
    "useful", "lost_work", "checkpoint", "restart", "detection", "waiting_for_spares", "stragglers",
    "fewer_replicas", "neighbours", "down", "idle", "used", "idle_beside_waiting", "scattered",
}  # fmt: skip
"""Names of shares of the time of jobs and servers, by themselves or in a ``breakdown``."""


def number(value: Any) -> str:
    """Text of a number without a unit: integers in full, others and very large ones to four digits.

    >>> number(2095104), number(0.36849), number(1234567.8), number(6416127680889)
    ('2,095,104', '0.3685', '1,235,000', '6.416 T')
    """
    if LONG <= abs(value) < 1000 * SI[0][0]:
        return _prefixed("")(float(value)).strip()
    if isinstance(value, Integral):
        return f"{int(value):,}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1000 <= abs(rounded) < LONG else f"{rounded:.4g}"


def days_text(days: float) -> str:
    """Text of a length in days, in a smaller unit where it is short.

    >>> days_text(94.67), days_text(0.0183)
    ('94.67 d', '26.35 min')
    """
    return format_seconds(86_400 * days)


def sentence(text: str) -> str:
    """Return text with a capital letter, but where it begins with the name of a machine.

    >>> sentence("a replica takes 1 chip."), sentence("trn2-ultraserver@us: 1 chip.")
    ('A replica takes 1 chip.', 'trn2-ultraserver@us: 1 chip.')
    """
    is_word = text.partition(" ")[0].rstrip(",.;:").isalpha()
    return text[:1].upper() + text[1:] if is_word else text


def ranges(places: Iterable[int]) -> str:
    """Whole numbers in ascending order, with three or more in a row as their first and last.

    >>> ranges([2, 3, 4, 7, 9, 10])
    '2–4, 7, 9, 10'
    """
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts)


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or pandas' own."""
    return value is None or type(value).__name__ == "NAType" or value != value


def value_text(name: str, value: Any) -> str:
    """Text of a value with the unit at the end of its name."""
    if is_missing(value):
        return "-"
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Real):
        return str(value)
    if value in (math.inf, -math.inf):
        return "∞" if value == math.inf else "−∞"
    if not -LARGEST <= value <= LARGEST:  # type: ignore[operator]
        return "beyond 1e300"
    unit = unit_of(f"_{name}")
    if name in SHARES or (name.startswith("breakdown.") and not unit):
        return f"{100 * value:.4g} %"
    if not unit and RATIOS.intersection(re.split(r"[_.]", name)):
        return f"{100 * value:.4g} %"
    return UNITS.get(unit, number)(value)


COUNTED = ("n", "count")
"""Keys of an object whose values are counts, whatever the unit of the object."""
STATISTICS = re.compile(r"p\d+|mean|median|min|max|n|count")
"""Keys of statistics of one set of values, which are no parts of a whole."""


@cache
def unit_of(name: str) -> str:
    """Unit at the end of a name, empty for none; a key of an object has the object's unit.

    >>> unit_of("busbw_bytes_per_s"), unit_of("ranks"), unit_of("breakdown_s.bubble")
    ('_bytes_per_s', '', '_s')
    >>> unit_of("ttft_s.n"), unit_of("tokens_per_usd")
    ('', '')
    """
    before, _, last = name.rpartition(".")
    ending = next((end for end in UNITS if last.endswith(end)), "")
    if last.endswith(f"_per{ending}") and ending != "_per_s":
        return ""
    return ending or ("" if not before or last in COUNTED else unit_of(before))


ABBREVIATIONS = frozenset(
    {"hbm", "hfu", "itl", "kv", "mfu", "nic", "sbuf", "slo", "tpot", "ttft", "usd"}
)


def heading(name: str) -> str:
    """Heading of a column: its name without the unit, which the values have.

    >>> heading("busbw_bytes_per_s"), heading("scale_up_bytes_per_s_per_chip")
    ('busbw', 'scale up per chip')
    """
    units = {part: unit_of(part) for part in name.split(".")}
    parts = [
        part.removesuffix(unit) + "_per_chip" * unit.endswith("_per_chip")
        for part, unit in units.items()
    ]
    words = "_".join(parts).replace("_per_s_", "/s_").split("_")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)


class Column(NamedTuple):
    """A column of a printed table, or a number of a document.

    >>> Column("low", "80 % from", like="time_s").text({"low": 0.0188})
    '18.8 ms'
    """

    name: str  # key of a row, whose end is the unit of its values
    heading: str
    like: str = ""  # key that ends with their unit, where the name does not
    write: Callable[[Any], str] | None = None  # function that writes them, in place of their unit's

    def text(self, row: Mapping[str, Any]) -> str:
        """Text of the column's value in a row."""
        return self.written(row[self.name])

    def written(self, value: Any) -> str:
        """Text of a value of the column."""
        return self.write(value) if self.write else value_text(self.like or self.name, value)


def columns_of(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the values of each column by its name; a named index becomes columns."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    return {str(name): column.tolist() for name, column in frame.items()}


def is_number(values: Sequence[Any]) -> bool:
    """Return whether a column holds numbers (or truth values) only; missing ones are NaN."""
    return bool(values) and all(
        isinstance(value, int | float) or type(value).__name__ == "NAType" for value in values
    )


def table_text(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of a table as text, for a terminal or a page."""
    texts = [
        [
            "" if is_missing(value) and not is_number(values) else value_text(name, value)
            for value in values
        ]
        for name, values in columns_of(frame).items()
    ]
    return [heading(name) for name in columns_of(frame)], [
        list(row) for row in zip(*texts, strict=True)
    ]


def constants(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the columns that are the same in all rows as one line, and the table without them.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"cluster": ["ring:8"] * 2, "time_s": [1.0, 2.0]})
    >>> text, rest = constants(rows)
    >>> text, list(rest.columns)
    ('cluster ring:8', ['time_s'])
    """
    if len(frame) < 2:
        return "", frame
    same = {}
    for name, values in columns_of(frame).items():
        texts = (value_text(name, value) for value in values)
        first = next(texts)
        if all(text == first for text in texts):  # a generator, so it stops at a difference
            same[name] = first
    words = [f"{heading(name)} {text}" for name, text in same.items() if text not in ("", "-", "∞")]
    return " · ".join(words), frame.drop(columns=[name for name in same if name in frame])


OPTIONS = {"bucket_bytes": "bucket"}


def option_name(field: str) -> str:
    """Return the option that sets a field of the inputs.

    >>> option_name("bucket_bytes"), option_name("cp_exchange")
    ('--bucket', '--cp-exchange')
    """
    return f"--{OPTIONS.get(field, field).replace('_', '-')}"


def idle_entry(idle: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """Return the entry of a document for options that change nothing; none where there are none.

    >>> idle_entry({"cp_exchange": "cp is 1"})
    {'without_effect': {'cp_exchange': 'cp is 1'}}
    >>> idle_entry({})
    {}
    """
    return {"without_effect": idle} if idle else {}


def idle_sentences(idle: Mapping[str, str]) -> list[str]:
    """Return a sentence for each option that changes nothing, as commands print them.

    >>> idle_sentences({"cp_exchange": "cp is 1"})
    ['--cp-exchange changes nothing here: cp is 1.']
    """
    return [f"{option_name(name)} changes nothing here: {reason}." for name, reason in idle.items()]


def values_of(thing: object, *names: str) -> dict[str, Any]:
    """Return attributes of a result as entries of a document, each under its own name."""
    return {name: getattr(thing, name) for name in names}
