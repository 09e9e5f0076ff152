"""Parsing of quantities with units into exact SI numbers, and formatting of numbers for people.

Only the units listed here are accepted: ``5Ms`` for ``5ms`` is refused, and not read as
megaseconds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from topologies.support.errors import InputError, suggestion

PS_PER_S = 10**12
PS_PER_US = 10**6
PS_PER_NS = 10**3
_SI = ("B", "FLOP", "J", "USD", "count", "m", "s", "ratio")
"""SI units to which all others are converted, in the order in which products are written."""
LIMIT = 2**62  # largest value of a quantity, in B, B/s or ps

_DECIMAL = {prefix: 1000**power for power, prefix in enumerate(["", *"kMGTPE"])}
_BINARY = {prefix + "i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_SIZES = _DECIMAL | {"K": 1000} | _BINARY
_MICRO = ("u", "\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}")
_SECONDS = {"s": 0, "ms": 3, **{f"{micro}s": 6 for micro in _MICRO}, "ns": 9, "ps": 12}
_LONG = {"min": 60, "h": 3600, "d": 86400}
_UNITS: dict[str, tuple[Fraction, str]] = (
    {f"{prefix}B": (Fraction(factor), "B") for prefix, factor in _SIZES.items()}
    | {f"{prefix}bit": (Fraction(factor, 8), "B") for prefix, factor in _SIZES.items()}
    | {f"{prefix}b": (Fraction(factor, 8), "B") for prefix, factor in _SIZES.items() if prefix}
    | {
        f"{prefix}bps": (Fraction(factor, 8), "B/s")
        for prefix, factor in _DECIMAL.items()
        if prefix
    }
    | {f"{prefix}FLOP": (Fraction(factor), "FLOP") for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}OP": (Fraction(factor), "FLOP") for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}Hz": (Fraction(factor), "/s") for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}W": (Fraction(factor), "J/s") for prefix, factor in _DECIMAL.items()}
    | {name: (Fraction(1, 10**power), "s") for name, power in _SECONDS.items()}
    | {name: (Fraction(seconds), "s") for name, seconds in _LONG.items()}
    | {"pJ": (Fraction(1, 10**12), "J"), "MWh": (Fraction(36 * 10**8), "J")}
    | {"m": (Fraction(1), "m"), "km": (Fraction(1000), "m")}
    | {name: (Fraction(1), name) for name in ("J", "USD", "count", "ratio")}
)
"""Units that are accepted, each with its factor to SI and its SI unit (numerator/denominator)."""

# Units that messages suggest.
_COUNTS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
"""Factors of the suffixes of counts; billions are written B, as in 70B parameters, or G."""
_USUAL = ("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "us", "ms", "min", "h", "d")
_USUAL_RATES = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "GiB/s", "Gbit/s", "Tbit/s", "TFLOP/s")
_FIGURE = re.compile(r"[0-9.]+")  # number of an example
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\D*?)\s*", re.ASCII)
_LONGEST = 60
_LARGEST_EXPONENT = 40
"""Largest power of ten of a number, beyond which exact arithmetic would take long."""
_ROUNDING = Fraction(1, 2000)
"""Largest relative change of a size by rounding to whole bytes: the precision of four digits."""


@functools.cache
def unit(text: str, remedy: str = "") -> tuple[Fraction, str]:
    """Return the factor from a unit to SI, and the SI unit.

    ``remedy``: what to do about a unit that is near to no other.

    >>> unit("GiB")
    (Fraction(1073741824, 1), 'B')
    >>> unit("Gbit/s")
    (Fraction(125000000, 1), 'B/s')
    >>> unit("USD/h")
    (Fraction(1, 3600), 'USD/s')
    """
    names = text.split("/")
    if len(names) > 2 or any(name not in _UNITS for name in names):
        raise InputError(f"unknown unit {text[:_LONGEST]}.{_advice(text) or remedy}")
    factor, dimensions = Fraction(1), dict.fromkeys(_SI, 0)
    for name, sign in zip(names, (1, -1), strict=False):
        size, symbol = _UNITS[name]
        factor *= size**sign
        above, _, below = symbol.partition("/")
        for part, power in ((above, sign), (below, -sign)):
            if part:
                dimensions[part] += power
    return factor, _symbol(dimensions)


def _symbol(dimensions: Mapping[str, int]) -> str:
    """Write a product of powers of SI units, such as ``B/s``."""
    above, below = (
        [
            f"{dimension}**{sign * power}" if sign * power > 1 else dimension
            for dimension, power in dimensions.items()
            if sign * power > 0
        ]
        for sign in (1, -1)
    )
    symbol = "/".join(["*".join(above) or "1" * bool(below), *below])
    return "W" if symbol == "J/s" else symbol


def _advice(text: str) -> str:
    usual = _USUAL + _USUAL_RATES
    same = [name for name in usual if name.lower() == text.lower()]
    longer = [name for name in usual if len(name) > 1]  # a unit without a prefix is near to many
    return f" Did you mean {same[0]}?" if same else suggestion(text, longer)


def si(number: str, unit_text: str) -> tuple[Fraction, str]:
    """Return the exact SI value, and the SI unit, of a number and its unit in separate texts."""
    matched = _NUMBER.fullmatch(number[:_LONGEST])
    if not matched or matched[2]:
        raise InputError(f"{number[:_LONGEST]!r} is not a number. Write digits.")
    factor, base = unit(unit_text)
    return _exact(matched[1]) * factor, base


def _exact(digits: str) -> Fraction:
    number = Decimal(digits)
    if number and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise InputError(f"{digits} is beyond 1e±{_LARGEST_EXPONENT}. Correct it.")
    return Fraction(number)


def _parse(text: str, what: str, base: str, example: str) -> Fraction:
    """Parse a quantity of at least 0 whose SI unit is ``base``, exactly."""
    shown = repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
    matched = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if not matched:
        raise InputError(f"{what} {shown} is not a number with a unit. Write it as {example}.")
    digits, spelled = matched.groups()
    if not spelled:
        example = _FIGURE.sub(digits, example)
        raise InputError(f"{what} {shown} has no unit. Write it as {example}.")
    try:
        factor, dimension = unit(spelled, f" Write it as {example}.")
        value = _exact(digits) * factor
    except InputError as mistake:
        raise InputError(f"{what} {shown}: {mistake}") from None
    if base == "s" and spelled == "m":
        example = f"{digits}min"  # which many write as 10m
    if dimension != base:
        raise InputError(f"{what} {shown} is in {dimension}, not in {base}. Write it as {example}.")
    if value < 0:
        raise InputError(f"{what} {shown} is negative, the least is 0. Write it as {example}.")
    return value


def _whole(value: Fraction, what: str, text: str, base: str, least: int) -> int:
    """Round to the nearest integer, which must be at least ``least``, and 0 for 0 alone."""
    whole = round(value)
    if whole < least or (value and not whole):
        raise InputError(f"{what} {text!r} is below the least, 1 {base}.")
    if whole > LIMIT:
        raise InputError(f"{what} {text!r} is above the limit, {LIMIT:.3g} {base}.")
    return whole


def as_bytes(size: float | str) -> int:
    """Return a number of bytes as it is, or parse a text; see :func:`parse_bytes`.

    >>> as_bytes(2**20) == as_bytes("1MiB")
    True
    """
    if isinstance(size, str):
        return parse_bytes(size)
    # A call of a collective takes whole floats, such as 1e6, and refuses all others.
    return size  # type: ignore[return-value]


def parse_bytes(text: str) -> int:
    """Parse a size in bytes; one such as ``1.1GiB`` is rounded to the nearest whole byte."""
    exact = _parse(text, "size", "B", "256MiB or 1GB")
    whole = _whole(exact, "size", text, "B", least=0)
    if abs(whole - exact) > _ROUNDING * exact:
        raise InputError(f"size {text!r} is {float(exact):g} bytes. Write whole bytes.")
    return whole


def parse_rate(text: str) -> int:
    """Parse a rate in whole B/s, at least 1: ``128GB/s``, ``200Gbit/s``, ``1.5TB/s``."""
    exact = _parse(text, "bandwidth", "B/s", "128GB/s or 200Gbit/s")
    return _whole(exact, "bandwidth", text, "B/s", least=1)


def parse_seconds(text: str, what: str = "time") -> float:
    """Parse a time in seconds: ``1.5us``, ``90s``, ``7d``."""
    return float(_parse(text, what, "s", "20ms or 90s"))


def parse_ps(text: str, what: str = "latency") -> int:
    """Parse a time in whole picoseconds, the unit of time of the simulator."""
    return _whole(_parse(text, what, "s", "1.5us") * PS_PER_S, what, text, "ps", least=0)


def parse_count(text: str, what: str, example: str = "15T or 300B") -> int:
    """Parse a large number of things, such as tokens: ``15T``, ``300B``, ``2e12``.

    >>> parse_count("15T", "--tokens"), parse_count("2e12", "--tokens")
    (15000000000000, 2000000000000)
    """
    matched = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if not matched or matched[2] not in _COUNTS:
        raise InputError(f"{what} {text[:_LONGEST]!r} is not a number; write it as {example}.")
    try:
        value = _exact(matched[1]) * _COUNTS[matched[2]]
    except InputError as mistake:
        raise InputError(f"{what} {text!r}: {mistake}") from None
    if not 1 <= value <= LIMIT:
        raise InputError(f"{what} {text!r} must be from 1 to {LIMIT:.3g}, such as {example}.")
    return round(value)


def share_of(text: str) -> float | None:
    """Return a number that may be written in per cent; None for other text."""
    try:
        return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        return None


def parse_share(text: str, where: str) -> float:
    """Read a share below 1, as ``99.9%`` or ``0.999``."""
    value = share_of(text.strip())
    if value is None or not 0 < value < 1:
        raise InputError(f"{where} is {text!r}; write a share such as 99.9% or 0.999.")
    return round(value, 12)


def format_bytes(size_bytes: int) -> str:
    """Format a size, in KiB, MiB … if that is the shorter exact form."""
    decimal, binary = (_scaled(size_bytes, prefixes) for prefixes in (_DECIMAL, _BINARY))
    exact = [text for text, is_exact in (decimal, binary) if is_exact]
    return min(exact, key=len) + "B" if exact else decimal[0] + "B"


def format_memory(size_bytes: int) -> str:
    """Format a size of memory with four digits, in powers of 1000."""
    # Sizes that are compared or summed have one kind of unit: 96 GiB beside 101 GB would look
    # smaller.
    return _scaled(size_bytes, _DECIMAL)[0] + "B"


def format_rate(rate_bytes_per_s: float) -> str:
    """Format a rate with four digits, in powers of 1000."""
    return _scaled(rate_bytes_per_s, _DECIMAL)[0] + "B/s"


def format_seconds(time_s: float) -> str:
    """Format a time with four digits, in ps … s, min, h or d."""
    scale = {"ps": 1e-12, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    long = {"min": 60.0, "h": 3600.0, "d": 86400.0}
    chosen = "s" if time_s == 0 else "ps"
    for name, factor in (scale | long).items():
        # Below 1, 0.99995 of a unit is still written as 1.000; 90 s is clearer than 1.5 min.
        reached = 2 if name in long else 1 - 5e-5
        if abs(time_s) >= reached * factor:
            chosen = name
    return f"{time_s / (scale | long)[chosen]:.4g} {chosen}"


def _scaled(value: float, prefixes: dict[str, int]) -> tuple[str, bool]:
    """Return the number with the largest prefix that leaves at least 1, and whether it is exact."""
    prefix, factor = "", 1
    for name, candidate in prefixes.items():
        if abs(value) >= candidate * (1 - 5e-5):
            prefix, factor = name, candidate
    shown = f"{value / factor:.4g}"
    return f"{shown} {prefix}", Fraction(shown) * factor == Fraction(value)
