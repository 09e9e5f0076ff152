"""Cells of files of measurements, read by the type of their column."""

from __future__ import annotations

from experiments.validation.reading.columns import Column, Value
from topologies.errors import InputError, suggestion

LARGEST_COUNT = 2**62
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-12, 1e25
"""Range of any number in SI units, whatever its quantity."""
LONGEST_CELL = 1000
FLAGS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}
"""Values of a flag as people and table programs write them."""


def read_cell(column: Column, text: str) -> Value:
    """Value of a cell; None when it is empty.

    Raises InputError: column, value and remedy in one line.
    """
    text = text.strip()
    if not text:
        return None
    shown = repr(text if len(text) <= 40 else text[:40] + "…")
    if column.holds == "text":
        return _text(column, text, shown)
    if column.holds == "flag":
        return _flag(column, text, shown)
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        raise InputError(f"{column.name} {shown} is not a number. Write digits only.") from None
    if number == 0 and text.lower().partition("e")[0].strip("+-0.,"):
        raise InputError(f"{column.name} {shown} is too small to be a number. Correct it.")
    if column.holds == "count":
        return _count(column, number, shown)
    if not 0 < number < float("inf"):
        raise InputError(f"{column.name} {shown} is not above 0 and finite. State it in SI units.")
    if not SMALLEST_NUMBER <= number <= LARGEST_NUMBER:
        raise InputError(
            f"{column.name} {shown} is not within {SMALLEST_NUMBER:g} to {LARGEST_NUMBER:g}. "
            "State it in SI units."
        )
    return number


def _flag(column: Column, text: str, shown: str) -> int:
    flag = FLAGS.get(text.lower())
    if flag is None:
        raise InputError(f"{column.name} {shown} is neither 0 nor 1. Write 0 or 1.")
    return flag


def _count(column: Column, number: float, shown: str) -> int | None:
    """Whole number; None for a 0 in an optional column whose values begin above it."""
    if not number.is_integer():
        raise InputError(f"{column.name} {shown} is not a whole number. Write it as digits.")
    if number == 0 < column.least and not column.required:
        return None
    if not column.least <= number <= LARGEST_COUNT:
        raise InputError(
            f"{column.name} {shown} is not between {column.least:g} and 2^62. Correct it."
        )
    return int(number)


def _choice(column: Column, text: str) -> str | None:
    """Choice that a spelling stands for: itself, another spelling, or its first word."""
    plain = text.lower().replace("_", "-").split("(")[0].strip()
    spelled = (plain, plain.replace(" ", "-"), plain.split(" ")[0])
    spellings = {**dict(zip(column.choices, column.choices, strict=True)), **column.also}
    return next((spellings[spelling] for spelling in spelled if spelling in spellings), None)


def _text(column: Column, text: str, shown: str) -> str:
    if len(text) > LONGEST_CELL:
        raise InputError(f"{column.name} {shown} is over {LONGEST_CELL} characters. Shorten it.")
    if not column.choices:
        return text
    choice = _choice(column, text)
    if choice is None:
        near = suggestion(text.lower(), column.choices)
        choices = ", ".join(column.choices)
        raise InputError(
            f"{column.name} {shown} is none of {choices}.{near or ' Use one of them.'}"
        )
    return choice
