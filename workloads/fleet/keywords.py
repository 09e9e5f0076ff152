"""Options of ``cluster-sim fleet`` and ``lend`` as keywords of Python functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from topologies.errors import InputError, shown, suggestion
from topologies.options import KEY, Option
from workloads.options.demand import DemandInputs
from workloads.options.fleet import FleetInputs, Question
from workloads.options.money import MoneyInputs
from workloads.options.policy import LimitInputs, PolicyInputs

OLDER = {
    "chunk_tokens": "chunk",
    "unit_rate_per_s": "unit_rate",
    "prefix_share": "prefix_cache",
}
"""Older keywords, which are read as their newer names."""
TIMES = ("average", "hold", "lease", "notice", "change_time", "batch_deadline", "window")
"""Keywords whose plain numbers are seconds."""
Inputs = TypeVar("Inputs")


class LendKeywords(TypedDict, total=False):
    """Options of ``cluster-sim lend`` as keywords, each as on the command line.

    A time may be a number of seconds, and a share a number: ``hold=600``, ``prefix_cache=0.5``.
    """

    start_day: float
    service: str
    weight: Sequence[float]
    average: str | float
    noise: str | float
    batch_share: str | float
    batch_demand: str | Path
    batch_deadline: str | float
    tp: int
    precision: str
    slo: str
    prefill: str
    chunk: int
    prefix_cache: str | float
    speculate: str
    disaggregate: str
    unit_rate: float
    training: str | Path
    post_training: str
    failures: str
    cache: str | Path
    change_time: str | float
    weights: str
    floor: int
    block: int
    reserve: int
    chunk_tokens: int
    unit_rate_per_s: float
    prefix_share: float


class FleetKeywords(LendKeywords, total=False):
    """Options of ``cluster-sim fleet`` as keywords, each as on the command line."""

    what_if: str | Sequence[str]
    headroom: float
    hysteresis: float
    hold: str | float
    quantile: float
    night: str
    night_share: float
    static_units: float
    price_share: float
    power_cap: float
    cap: int
    changes_per_minute: int
    lease: str | float
    notice: str | float
    price: str | Path
    price_cap: float
    token_price: float
    batch_discount: float
    carbon: float


def question_of(words: Mapping[str, Any], options: Sequence[str], **stated: Any) -> Question:
    """Return the question about a fleet that keywords describe.

    Parameters
    ----------
    words : mapping of str to object
        Options as keywords; an option whose value is None keeps its default.
    options : sequence of str
        Keywords that the function takes.
    **stated
        Options that are parameters of the function.

    Raises
    ------
    InputError
        For a keyword that is not among the options, and a value that its option refuses.

    Examples
    --------
    >>> question_of({"hold": 600, "tp": 8}, FleetKeywords.__annotations__).policy.hold
    '600s'
    """
    for name in words:
        if name not in options:
            near = suggestion(name, options)
            raise InputError(
                f"a fleet has no option {shown(name)!r}.{near} Options are those of --help."
            )
    values = {OLDER.get(name, name): value for name, value in {**words, **stated}.items()}
    values = {name: value for name, value in values.items() if value is not None}
    groups: dict[str, Any] = {}
    for group, kind in (
        ("fleet", FleetInputs),
        ("demand", DemandInputs),
        ("policy", PolicyInputs),
        ("limits", LimitInputs),
        ("money", MoneyInputs),
    ):
        groups[group] = read_options(kind, values)
    return Question(**groups)


def read_options(kind: type[Inputs], values: Mapping[str, Any]) -> Inputs:
    """Fill a dataclass of options with those values that are fields of it."""
    return kind(
        **{
            each.name: _read(each, values[each.name])
            for each in fields(kind)  # type: ignore[arg-type]
            if each.name in values
        }
    )


def _read(described: Field[Any], value: Any) -> Any:
    """Return a Python value in the form that its option has on the command line."""
    name, option = described.name, described.metadata[KEY]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in TIMES and number:
        return f"{value:g}s" if value != float("inf") else "inf"
    if "str" in str(described.type) and number:
        return f"{value:g}"
    if isinstance(value, Path) and str(described.type).startswith("str"):
        return str(value)
    if str(described.type).startswith("tuple"):
        return (value,) if isinstance(value, str) else tuple(value)
    _check(name, option, value)
    return value


def _check(name: str, option: Option, value: Any) -> None:
    """Check a value against the choices and limits of its option, as the command line does."""
    choices = option.choices() if callable(option.choices) else option.choices
    if choices and value not in choices:
        near = suggestion(str(value), [str(each) for each in choices])
        raise InputError(
            f"{name} is {shown(repr(value))}; choose from {', '.join(map(str, choices))}.{near}"
        )
    if option.least is None and option.most is None:
        return
    least = float("-inf") if option.least is None else option.least
    most = float("inf") if option.most is None else option.most
    if not isinstance(value, (int, float)) or not least <= value <= most:
        raise InputError(
            f"{name} is {shown(repr(value))}; it must be a number from {least:g} to {most:g}."
        )
