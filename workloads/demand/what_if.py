"""Changes of a demand for what-ifs, their texts such as ``growth=30%``, and noise of arrivals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, suggestion
from topologies.support.units import parse_seconds
from workloads.demand.trace import MINUTES_PER_DAY, Demand, from_zones, joined

TREND = 61  # minutes of the centred mean around which noise is measured
LARGEST_NOISE = 10.0
"""Largest relative spread; beyond it nearly all minutes of a Gamma–Poisson are empty."""


def measured_noise(demand: Demand) -> FloatArray:
    """Relative standard deviation of the minutes around their hourly trend; (services,)."""
    # The trend is the centred mean of 61 minutes; hours with under one request a minute are left
    # out. Azure 2024: 0.116 (code) and 0.070 (conversation), against 0.032 and 0.020 of a Poisson
    # stream.
    if demand.minutes < 2 * TREND:
        raise InputError(
            f"a demand of {demand.minutes} minutes is too short to measure its noise, which takes "
            f"{2 * TREND}; give the noise as a number such as 0.1."
        )
    kernel = np.ones(TREND) / TREND
    noise = []
    for requests in demand.requests:
        trend = np.convolve(requests, kernel, "same")[TREND // 2 : -(TREND // 2)]
        inside = requests[TREND // 2 : -(TREND // 2)]
        busy = trend > 1.0
        noise.append(np.std(inside[busy] / trend[busy] - 1.0) if busy.any() else 0.0)
    return np.asarray(noise)


def with_noise(
    demand: Demand, rng: np.random.Generator, *, relative_sd: float | FloatArray
) -> Demand:
    """Draw each minute's requests from a Gamma–Poisson of the demand's mean."""
    spread = np.broadcast_to(np.asarray(relative_sd, float), (len(demand.services),))
    if not np.all((spread >= 0) & (spread <= LARGEST_NOISE)):
        raise InputError(
            f"a noise of {spread.max()} is not between 0 and {LARGEST_NOISE:g}; "
            f"give a relative spread such as 0.1."
        )
    factors = np.ones_like(demand.requests)
    for row, sd in enumerate(spread.tolist()):
        if sd > 0:
            shape = 1.0 / sd**2
            factors[row] = rng.gamma(shape, 1.0 / shape, demand.minutes)
    return replace(demand, requests=rng.poisson(demand.requests * factors).astype(float))


def minute_from_start(demand: Demand, clock: str) -> int:
    """Minutes from the start of a demand to the first moment with a time of day."""
    first = demand.index[0]
    return int((minute_of_day(clock) - first.hour * 60 - first.minute) % MINUTES_PER_DAY)


def minute_of_day(text: str) -> int:
    """Read a time of day such as ``06:00`` as minutes since midnight."""
    digits = re.fullmatch(r"([0-9]{1,2}):([0-9]{1,2})", text.strip())
    if not (digits and int(digits[1]) < 24 and int(digits[2]) < 60):
        raise InputError(f"{text!r} is not a time of day; write it as 06:00 (UTC).")
    return int(digits[1]) * 60 + int(digits[2])


@dataclass(frozen=True, eq=False)
class Horizon:
    """Demand of a run, and the demand before it, which policies know."""

    demand: Demand
    history: Demand | None = None  # demand that ends where the run begins


Change = Callable[[Horizon], Horizon]

PLACE = re.compile(
    r"(?:@(?P<day>\d+)d\+?(?P<clock>\d{1,2}:\d\d)?|@(?P<only_clock>\d{1,2}:\d\d))?"
    r"(?:x(?P<factor>\d+(?:\.\d+)?))?"
    r"(?:[/+](?P<length>\d+(?:\.\d+)?\s*[a-z]+))?"
)
"""Pattern of ``@2d02:00x3/30min``: a moment, a factor and a length, all of them optional."""


def check_texts(what_ifs: Sequence[str]) -> None:
    """Check that what-ifs can be read, before there is a demand to change."""
    for text in what_ifs:
        for part in text.split(","):
            _change(part.strip())


def changed(base: Horizon, text: str) -> Horizon:
    """Apply the changes of one what-if: ``growth=30%,spike@2d02:00x3/30min``, in this order."""
    horizon = base
    for part in text.split(","):
        horizon = _change(part.strip())(horizon)
    return horizon


def _change(text: str) -> Change:
    name = re.split(r"[@=x/+]|-\d", text, maxsplit=1)[0].strip()
    rest = text[len(name) :]
    if name in KINDS and name not in ("growth", "plus", "zones") and rest.startswith("="):
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
    return lambda horizon: Horizon(
        horizon.demand.times(factor), horizon.history and horizon.history.times(factor)
    )


def _launch(text: str, rest: str) -> Change:
    """Multiply demand from a moment of the run on, which no history shows."""
    place, _, size = rest.partition("=")
    factor = 1.0 + share_from(size, f"what-if {text!r}", KINDS["launch"][1])
    return _raising(text, place, name="launch", begin=lambda _demand: 0, factor=factor)


def _raising(
    text: str,
    rest: str,
    *,
    name: str,
    begin: Callable[[Demand], int],
    minutes: int | None = None,
    factor: float = 2.0,
) -> Change:
    """Multiply demand for some minutes from a moment of the run, or to its end."""
    match = PLACE.fullmatch(rest.strip())
    if match is None:
        raise InputError(f"what-if {text!r} cannot be read; write it as {KINDS[name][1]}.")
    if match["length"] is not None:
        minutes = max(1, round(parse_seconds(match["length"], f"what-if {text!r}") / 60.0))
    times = factor if match["factor"] is None else float(match["factor"])

    def change(horizon: Horizon) -> Horizon:
        """Multiply the demand of a run."""
        demand = horizon.demand
        first = minute_at(demand, match, begin(demand))
        if first >= demand.minutes:
            raise InputError(
                f"what-if {text!r} begins in minute {first} of a demand of {demand.minutes} "
                "minutes; state its moment, or more days."
            )
        factors = np.ones(demand.minutes)
        factors[first : first + (minutes or demand.minutes)] = times
        return replace(horizon, demand=demand.times(factors))

    return change


def _second_night(demand: Demand) -> int:
    """Minute of 02:00 on day 1, or on day 0 of a run of one day."""
    day = max(min(1, demand.minutes // MINUTES_PER_DAY - 1), 0)
    return day * MINUTES_PER_DAY + minute_from_start(demand, "02:00")


def _monday(text: str, rest: str) -> Change:
    """Cut the run to its first whole Monday; the days before it become history."""
    if rest:
        raise InputError(f"what-if {text!r} takes no numbers; write monday.")

    def change(horizon: Horizon) -> Horizon:
        """Return the first whole Monday, with the days before it as history."""
        # Monday is the day for which the day before is the worst forecast.
        demand, history = horizon.demand, [*filter(None, [horizon.history])]
        midnight = (demand.index.hour.to_numpy() == 0) & (demand.index.minute.to_numpy() == 0)
        starts = np.flatnonzero(midnight & (demand.index.day_of_week.to_numpy() == 0))
        starts = starts[starts + MINUTES_PER_DAY <= demand.minutes]
        if not len(starts):
            raise InputError("the demand has no whole Monday; choose more days.")
        if first := int(starts[0]):
            history.append(demand.between(0, first))
        day = demand.between(first, first + MINUTES_PER_DAY)
        return Horizon(day, joined(history) if history else None)

    return change


ZONE = re.compile(r"(?P<hours>[+-]?\d+(?:\.\d+)?):(?P<share>[^/]+)")
"""Pattern of ``+9:20%``: hours by which the users' clocks are ahead, and their share."""


def _zones(text: str, rest: str) -> Change:
    """Spread the users over time zones, in the history too."""
    example, shares = KINDS["zones"][1], {}
    for part in rest.removeprefix("=").split("/"):
        match = ZONE.fullmatch(part.strip())
        if match is None or abs(float(match["hours"])) > 24 or float(match["hours"]) in shares:
            raise InputError(
                f"what-if {text!r}: {part.strip()!r} is not hours from -24 to 24, each once, and a "
                f"share; write {example}."
            )
        shares[float(match["hours"])] = share_from(match["share"], f"what-if {text!r}", example)
    if min(shares.values()) < 0:
        raise InputError(f"what-if {text!r} has a share below 0; write {example}.")

    return lambda horizon: moved_by_zones(
        horizon, lambda whole: from_zones(whole, shares), f"what-if {text!r}"
    )


def moved_by_zones(horizon: Horizon, move: Callable[[Demand], Demand], what: str) -> Horizon:
    """Move a demand, with its history before it, to other time zones."""
    before = horizon.history.minutes if horizon.history else 0
    whole = joined([*filter(None, [horizon.history]), horizon.demand])
    if whole.minutes % MINUTES_PER_DAY:
        raise InputError(
            f"{what} needs whole days, and the demand with its history has "
            f"{whole.minutes / MINUTES_PER_DAY:.4g}; choose --days."
        )
    moved = move(whole)
    history = moved.between(0, before) if before else None
    return Horizon(moved.between(before, moved.minutes), history)


KINDS: dict[str, tuple[Callable[[str, str], Change], str]] = {
    "growth": (_growth, "growth=30%"),
    "plus": (_growth, "plus-30"),
    "launch": (_launch, "launch@2d09:00=30%"),
    "spike": (
        partial(_raising, name="spike", begin=_second_night, minutes=30),
        "spike@2d02:00x3/30min",
    ),
    # Another region's load, by default from the middle of the run on for 12 hours
    "failover": (
        partial(_raising, name="failover", begin=lambda demand: demand.minutes // 2, minutes=720),
        "failover@3d12:00+12h",
    ),
    "monday": (_monday, "monday"),
    "zones": (_zones, "zones=-8:50%/0:30%/+9:20%"),
}
"""Kinds of what-ifs: a function that reads the text, and an example of the text."""


def share_from(text: str, where: str, example: str) -> float:
    """Read ``30%`` or ``0.3``; a whole number of at least 1 counts as per cent.

    >>> share_from("30%", "", ""), share_from("0.3", "", ""), share_from("1", "", "")
    (0.3, 0.3, 0.01)
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


def minute_at(demand: Demand, match: re.Match[str], default: int, what: str = "what-if") -> int:
    """Minute of the run for a moment: its days after the start, then its next time of day."""
    clock = match["clock"] or match["only_clock"]
    if match["day"] is None and clock is None:
        return default
    minute = int(match["day"] or 0) * MINUTES_PER_DAY + (
        minute_from_start(demand, clock) if clock else 0
    )
    if minute >= demand.minutes:
        raise InputError(
            f"{what} at {match.group()[1:]!r}: that is {minute / MINUTES_PER_DAY:.4g} days after "
            f"the start of a run of {demand.minutes / MINUTES_PER_DAY:.4g} days; choose an earlier "
            "moment or more days."
        )
    return minute
