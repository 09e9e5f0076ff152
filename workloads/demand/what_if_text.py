"""Texts of what-ifs, such as ``growth=30%``; each kind is one entry of ``KINDS``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from topologies.errors import InputError, suggestion
from topologies.units import parse_seconds
from workloads.demand.trace import MINUTES_PER_DAY, Demand, joined
from workloads.demand.whatif import failover, first_monday, minute_from_start, raised


@dataclass(frozen=True, eq=False)
class Horizon:
    """Demand of a run, and the demand before it, which policies know.

    Attributes
    ----------
    demand : Demand
    history : Demand, optional
        Demand that ends where the run begins.
    """

    demand: Demand
    history: Demand | None = None


Change = Callable[[Horizon], Horizon]

PLACE = re.compile(
    r"(?:@(?P<day>\d+)d\+?(?P<clock>\d{1,2}:\d\d)?|@(?P<only_clock>\d{1,2}:\d\d))?"
    r"(?:x(?P<factor>\d+(?:\.\d+)?))?"
    r"(?:[/+](?P<length>\d+(?:\.\d+)?\s*[a-z]+))?"
)
"""Pattern of ``@2d02:00x3/30min``: a moment, a factor and a length, all of them optional."""


def horizons(base: Horizon, what_ifs: Sequence[str]) -> list[tuple[str, Horizon]]:
    """Return the horizon, named ``base``, and one changed by each what-if, named by its text.

    Several changes in one what-if are joined by commas: ``growth=30%,spike@2d02:00x3/30min``.

    Raises
    ------
    InputError
        For an unknown kind, a text that cannot be read, a moment outside the run.
    """
    rows = [("base", base)]
    for text in what_ifs:
        rows.append((text, changed(base, text)))
    return rows


def check_texts(what_ifs: Sequence[str]) -> None:
    """Check that what-ifs can be read, before there is a demand to change.

    Raises
    ------
    InputError
    """
    for text in what_ifs:
        for part in text.split(","):
            _change(part.strip())


def changed(base: Horizon, text: str) -> Horizon:
    """Apply the changes of one what-if in the order of its text."""
    horizon = base
    for part in text.split(","):
        horizon = _change(part.strip())(horizon)
    return horizon


def _change(text: str) -> Change:
    """Read one change, such as ``growth=30%``."""
    name = re.split(r"[@=x/+]|-\d", text, maxsplit=1)[0].strip()
    rest = text[len(name) :]
    if name in KINDS and name not in ("growth", "plus") and rest.startswith("="):
        raise InputError(f"what-if {text!r} takes no '='; write it as {KINDS[name][1]}.")
    if name not in KINDS:
        forms = ", ".join(form for _, form in KINDS.values())
        raise InputError(
            f"unknown what-if {text!r}; choose from {forms}." + suggestion(name, KINDS)
        )
    return KINDS[name][0](text, rest)


def _growth(text: str, rest: str) -> Change:
    """Multiply demand at all times, its history included."""
    size = rest.removeprefix("=") if text.startswith("growth") else rest.lstrip("=-")
    factor = 1.0 + share_from(size, f"what-if {text!r}", "growth=30%")

    def change(horizon: Horizon) -> Horizon:
        history = horizon.history
        return Horizon(
            horizon.demand.times(factor), None if history is None else history.times(factor)
        )

    return change


def _launch(text: str, rest: str) -> Change:
    """Multiply demand from a moment of the run on, which no history shows."""
    place, _, size = rest.partition("=")
    factor = 1.0 + share_from(size, f"what-if {text!r}", KINDS["launch"][1])
    match = _placed(text, place, "launch")

    def change(horizon: Horizon) -> Horizon:
        first = _minute(horizon.demand, match, 0)
        return replace(
            horizon, demand=raised(horizon.demand, first, horizon.demand.minutes, factor)
        )

    return change


def _spike(text: str, rest: str) -> Change:
    """Multiply demand for some minutes, by default by two for 30 minutes from 02:00 of day 1."""
    match = _placed(text, rest, "spike")

    def change(horizon: Horizon) -> Horizon:
        demand = horizon.demand
        night = min(1, demand.minutes // MINUTES_PER_DAY - 1)  # day 0 of a run of one day
        default = max(night, 0) * MINUTES_PER_DAY + minute_from_start(demand, "02:00")
        first = _minute(demand, match, default)
        return replace(
            horizon, demand=raised(demand, first, _length(text, match, 30), _factor(match, 2.0))
        )

    return change


def _failover(text: str, rest: str) -> Change:
    """Add another region's load, by default from the middle of the run on for 12 hours."""
    match = _placed(text, rest, "failover")

    def change(horizon: Horizon) -> Horizon:
        demand = horizon.demand
        first = _minute(demand, match, demand.minutes // 2)
        minutes, factor = _length(text, match, 720), _factor(match, 2.0)
        return replace(
            horizon, demand=failover(demand, minute=first, minutes=minutes, factor=factor)
        )

    return change


def _monday(text: str, rest: str) -> Change:
    """Cut the run to its first whole Monday; the days before it become history."""
    if rest:
        raise InputError(f"what-if {text!r} takes no numbers; write monday.")

    def change(horizon: Horizon) -> Horizon:
        first = first_monday(horizon.demand)
        history = [horizon.history] if horizon.history is not None else []
        if first:
            history.append(horizon.demand.between(0, first))
        return Horizon(
            horizon.demand.between(first, first + MINUTES_PER_DAY),
            joined(history) if history else None,
        )

    return change


KINDS: dict[str, tuple[Callable[[str, str], Change], str]] = {
    "growth": (_growth, "growth=30%"),
    "plus": (_growth, "plus-30"),
    "launch": (_launch, "launch@2d09:00=30%"),
    "spike": (_spike, "spike@2d02:00x3/30min"),
    "failover": (_failover, "failover@3d12:00+12h"),
    "monday": (_monday, "monday"),
}
"""Kinds of what-ifs: a function that reads the text, and an example of the text."""


def share_from(text: str, where: str, example: str) -> float:
    """Read ``30%`` or ``0.3``; a whole number of at least 1 counts as per cent.

    Raises
    ------
    InputError

    Examples
    --------
    >>> share_from("30%", "", ""), share_from("0.3", "", ""), share_from("30", "", "")
    (0.3, 0.3, 0.3)
    """
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%"))
    except ValueError:
        raise InputError(f"{where}: {text!r} is not a share; write {example}.") from None
    if plain.endswith("%") or abs(value) >= 1:
        value /= 100.0
    if not -1 < value < 100:
        raise InputError(f"{where}: a share of {value:g} is not in (-1, 100); write {example}.")
    return value


def _placed(text: str, rest: str, name: str) -> re.Match[str]:
    """Match the moment, factor and length in the rest of a what-if's text."""
    match = PLACE.fullmatch(rest.strip())
    if match is None:
        raise InputError(f"what-if {text!r} cannot be read; write it as {KINDS[name][1]}.")
    return match


def _minute(demand: Demand, match: re.Match[str], default: int) -> int:
    """Minute of the run for a moment: its days after the start, then its next time of day."""
    clock = match["clock"] or match["only_clock"]
    if match["day"] is None and clock is None:
        return default
    minute = int(match["day"] or 0) * MINUTES_PER_DAY + (
        minute_from_start(demand, clock) if clock else 0
    )
    if minute >= demand.minutes:
        raise InputError(
            f"what-if at {match.group()[1:]!r}: that is {minute / MINUTES_PER_DAY:.4g} days after "
            f"the start of a run of {demand.minutes / MINUTES_PER_DAY:.4g} days; choose an earlier "
            "moment or more days."
        )
    return minute


def _length(text: str, match: re.Match[str], default: int) -> int:
    """Minutes of a length, at least one."""
    if match["length"] is None:
        return default
    return max(1, round(parse_seconds(match["length"], f"what-if {text!r}") / 60.0))


def _factor(match: re.Match[str], default: float) -> float:
    """Factor on the demand."""
    return default if match["factor"] is None else float(match["factor"])
