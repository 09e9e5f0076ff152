"""Plausibility check of the results of every command, by the ends of their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from topologies.support.errors import InputError, shown

SHARES = ("mfu", "hfu", "slo_attainment", "coverage")
MEASURES = ("_s", "_ps", "_bytes", "_usd", "_joules", "_w", "_kg", "_hours", "_hops")
"""Ends of names whose numbers are finite and not below zero; rates end in ``_s`` as well."""
SIGNED = ("error", "change", "bias", "saved", "difference", "net", "delta", "margin", "regret")
"""Words in names of numbers that may be below zero."""
ROUNDING = 1e-9
NAMES = 1024  # names whose meaning is remembered: the rows of a long table have the same ones
REMEDY = (
    "so something is wrong. Check the values of the cluster file, the plan and --catalogue; "
    "where they are the shipped ones, report it."
)


def check_results(document: Any) -> None:
    """Check the results of a command before anything is printed or written."""
    _check(document, "", signed=False)


def _check(value: Any, name: str, *, signed: bool) -> None:
    """Check a value and everything in it; a key without a unit has the unit of its object."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        _check_row(value)
        for key, item in value.items():
            if isinstance(item, str) or item is None:
                continue
            part = str(key) if _is_known(str(key)) or not _is_known(name) else name
            _check(item, part, signed=signed or _is_signed(str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, name, signed=signed)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, name, signed=signed)


@lru_cache(NAMES)
def _is_known(name: str) -> bool:
    return name in SHARES or name.endswith(MEASURES)


@lru_cache(NAMES)
def _is_signed(name: str) -> bool:
    return any(word in name for word in SIGNED)


def _check_number(value: float, name: str, *, signed: bool) -> None:
    if name in SHARES and not 0 <= value <= 1 + ROUNDING:
        raise InputError(f"{name} is {value:.4g} and must lie between 0 and 1, {REMEDY}")
    if not name.endswith(MEASURES):
        return
    if not math.isfinite(value):
        raise InputError(f"{shown(name)} is {value} and must be a finite number, {REMEDY}")
    if value < 0 and not signed:
        raise InputError(f"{shown(name)} is {value:.4g} and must not be below 0, {REMEDY}")


def _check_row(row: Mapping[Any, Any]) -> None:
    """Check the numbers of one mapping against each other."""
    time_s, bound_s = _number(row.get("time_s")), _number(row.get("lower_bound_s"))
    if time_s < bound_s * (1 - ROUNDING):
        raise InputError(
            f"time_s is {time_s:.6g} and must not be below lower_bound_s of {bound_s:.6g}, {REMEDY}"
        )
    low, high = _number(row.get("low")), _number(row.get("high"))
    if low > high:
        raise InputError(f"low is {low:.6g} and must not be above high of {high:.6g}, {REMEDY}")
    parts, whole = row.get("breakdown_s"), row.get("iteration_s")
    if isinstance(parts, Mapping) and parts and isinstance(whole, float):
        total = math.fsum(parts.values())
        if not math.isclose(total, whole, rel_tol=1e-6, abs_tol=1e-11):
            raise InputError(
                f"breakdown_s sums to {total:.9g} and must sum to iteration_s of {whole:.9g}, "
                f"{REMEDY}"
            )


def _number(value: Any) -> float:
    """Return a number, or NaN for any other value, which makes every comparison false."""
    return float(value) if isinstance(value, int | float) else math.nan
