"""The night question: how many units can be lent, for how long, and with which confidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.demand.what_if import minute_of_day
from workloads.fleet.lending.backtest import (
    USUAL,
    Backtest,
    NightErrors,
    Nights,
    backtest,
    borne_out,
    cut_nights,
    errors_for,
    night_errors,
    surest,
)
from workloads.fleet.state.services import BatchWork


@dataclass(frozen=True)
class Window:
    """Units that are lent from minute ``first`` to minute ``last`` of the night."""

    first: int
    last: int
    units: int


def merged(edges: Sequence[int], units: Sequence[int]) -> list[Window]:
    """Join neighbouring windows with the same number of units."""
    result: list[Window] = []
    for first, last, count in zip(edges[:-1], edges[1:], units, strict=True):
        if result and result[-1].units == count:
            result[-1] = Window(result[-1].first, last, count)
        else:
            result.append(Window(first, last, count))
    return result


def whole_loans(edges: Sequence[int], units: Sequence[int]) -> list[Window]:
    """Divide a changing number of units into loans without a break, the longest first.

    Units that were lent last are given back first.
    """
    result: list[Window] = []
    open_loans: list[tuple[int, int]] = []  # begin and size, the last begun on top
    level = 0
    for moment, count in zip(edges, [*units, 0], strict=True):
        while level > count:
            first, size = open_loans.pop()
            back = min(size, level - count)
            result.append(Window(first, moment, back))
            level -= back
            if size > back:
                open_loans.append((first, size - back))
        if count > level:
            open_loans.append((moment, count - level))
            level = count
    return sorted(result, key=lambda window: (window.first, -window.last))


def without_short_loans(edges: Sequence[int], units: IntArray, least_minutes: float) -> IntArray:
    """Keep units that would be lent for ``least_minutes`` or less without a break."""
    if least_minutes < min(np.diff(edges)):
        return units
    begins = np.asarray(edges[:-1])
    lent: IntArray = np.zeros_like(units)
    for loan in whole_loans(edges, units.tolist()):
        if loan.last - loan.first > least_minutes:
            lent[(begins >= loan.first) & (begins < loan.last)] += loan.units
    return lent


def largest_return(loans: Sequence[Window]) -> int:
    """Most units that come back at the same time."""
    back: Counter[int] = Counter()
    for loan in loans:
        back[loan.last] += loan.units
    return max(back.values(), default=0)


@dataclass(frozen=True, eq=False)
class BatchNeed:
    """Unit-hours that a batch tier needs in the coming night, and in those of the backtest."""

    # Requests that arrived within one deadline before the decision are known by then, and are due
    # within one deadline after it.

    tonight: float  # need of the coming night [unit-hours]
    nights_too_short: int  # nights of the backtest on which the answer lent less


def batch_need(work: BatchWork, days_back: npt.NDArray[np.int64], lent: FloatArray) -> BatchNeed:
    """Return the need of a batch tier in the coming night and in the nights of the backtest.

    A tier that keeps one unit busy all day needs 24 unit-hours of every night:

    >>> from workloads.demand import constant
    >>> work = BatchWork(constant(120.0, minutes=4320), np.full(4320, 2.0))
    >>> need = batch_need(work, np.array([1]), np.array([20.0]))
    >>> round(need.tonight, 6), need.nights_too_short
    (24.0, 1)
    """
    unit_hours = work.demand.requests[0] / (work.rate_per_s * 60.0) / 60.0
    sums = np.concatenate([[0.0], np.cumsum(unit_hours)])
    ends = len(unit_hours) - MINUTES_PER_DAY * np.concatenate([[0], days_back])
    need = sums[np.maximum(ends, 0)] - sums[np.maximum(ends - work.deadline_minutes, 0)]
    return BatchNeed(float(need[0]), int((need[1:] > lent).sum()))


HOUR_S = 3600.0
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
BY_CHANCE = 0.01  # probability below which a weekday's broken nights are more than chance explains


def chance_of(broken: int, nights: int, risk: float) -> float:
    """Probability of as many broken nights or more, each broken with probability ``risk``.

    >>> round(chance_of(1, 2, 0.1), 9)
    0.19
    """
    fewer = (
        math.comb(nights, count) * risk**count * (1 - risk) ** (nights - count)
        for count in range(broken)
    )
    return 1.0 - sum(fewer)


@dataclass(frozen=True)
class Night:
    """Terms of the night question: the end of the night, its service level, its confidence."""

    until: str = "06:00"  # time of day, UTC, at which all units serve again: ``06:00``
    begin: str = ""  # time of day at which lending may begin; empty for the end of the history
    # Share of the night's minutes in which demand must stay within the units kept for serving
    share: float = 0.999
    # Share of nights on which ``share`` must be met; by default 95 %, or less where the history
    # bears out less
    confidence: float | None = None
    # Length of the windows in which the number of lent units is constant [minutes]
    window_minutes: int = 60
    # Dates such as ``2024-12-25`` on which demand is that of a weekend
    holidays: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("slo share", self.share), ("confidence", self.confidence)):
            if value is not None and not 0.5 <= value < 1:
                raise InputError(
                    f"a {name} of {value:.4g} is not in [0.5, 1); write it as 99.9% or 0.999."
                )

    def errors(self, need: FloatArray, start: pd.Timestamp, lead: int, minutes: int) -> NightErrors:
        """Return the expectation of every night of a history, and its error."""
        # Nights begin ``lead`` minutes after the decision and last ``minutes``.
        window, days = self.window_minutes, self.holidays
        nights = cut_nights(
            need, start=start, lead=lead, minutes=minutes, window=window, holidays=days
        )
        return night_errors(nights, self.share)

    def span(self, end: pd.Timestamp) -> tuple[int, int]:
        """Minutes from the end of the history to the night, and the length of the night."""
        now = end.hour * 60 + end.minute
        lead = (minute_of_day(self.begin) - now) % MINUTES_PER_DAY if self.begin else 0
        minutes = (minute_of_day(self.until) - now - lead) % MINUTES_PER_DAY
        return lead, minutes or MINUTES_PER_DAY


@dataclass(frozen=True)
class Terms:
    """Costs and earnings of lending on a fleet."""

    # units, chips_per_unit: size of the fleet
    units: int
    chips_per_unit: int = 64
    # Units that are never lent, because they may be under repair or are kept back
    reserve_units: int = 0
    # start_s, reclaim_s: time until a unit that served trains, and from an order until a unit that
    # trained serves [s]
    start_s: float = 0.0
    reclaim_s: float = 0.0
    tokens_per_unit_s: float = 0.0  # training throughput of one unit [tokens/s]
    usd_per_chip_s: float = 0.0  # price of a chip; 0 where none is known [USD/s]
    # Power that the site draws for a chip that trains; 0 where unknown [W]
    watts_per_chip: float = 0.0
    # Share of its time that a lent unit computes for in the mean, for failures
    goodput: float = 1.0
    floor_units: int = 0  # fewest units that serve
    block: int = 1  # units that are lent together
    # Time that a loan has to outlast, where that is more than a change to training and back [s]:
    # units that share a store come back later the more of them there are, so that a short loan may
    # have to be left out for the others' sake
    shortest_s: float = 0.0

    @property
    def most_units(self) -> float:
        """Most units that can serve: all that are not in reserve."""
        return float(max(self.units - self.reserve_units, 0))

    @property
    def fewest_units(self) -> float:
        """Fewest units that serve: those of the floor, as far as they are not in reserve."""
        return min(float(self.floor_units), self.most_units)

    @property
    def least_minutes(self) -> float:
        """Time that a loan has to outlast: at least a change to training and back [minutes]."""
        return max(self.start_s + self.reclaim_s, self.shortest_s) / 60.0


@dataclass(frozen=True, eq=False)
class Loan:
    """The answer for the coming night, and the results of the same method on the nights before."""

    question: Night
    confidence: float  # the stated one, or the one that the history bears out
    terms: Terms
    begin: pd.Timestamp  # beginning of the night, UTC
    errors: NightErrors
    tested: Backtest
    batch: BatchNeed | None = None  # part of the loans that requests of a batch tier need

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Numbers of units that can be lent, one window after the other."""
        units = lendable_units(self.terms, self.tested.coming, self.nights.edges)
        return tuple(merged(self.nights.edges.tolist(), units.tolist()))

    @cached_property
    def runs(self) -> tuple[Window, ...]:
        """The same units as loans without a break from ``first`` to ``last``; they overlap."""
        edges = [0, *(window.last for window in self.windows)]
        return tuple(whole_loans(edges, [window.units for window in self.windows]))

    @property
    def nights(self) -> Nights:
        """The nights of the history."""
        return self.errors.nights

    @property
    def note(self) -> str:
        """Sentence for a usual confidence that the history is too short for; else empty."""
        if self.confidence >= USUAL or self.question.confidence is not None:
            return ""
        return (
            f"{self.errors.known} nights of history bear out a confidence of "
            f"{self.confidence:.0%} at most, so it takes the place of {USUAL:.0%}, for which "
            f"{errors_for(USUAL)} nights are needed."
        )

    @property
    def weekday_note(self) -> str:
        """Sentence about weekdays on which the answer broke more often than by chance, or empty."""
        risk = 1 - self.confidence
        worse = [
            f"{row['violated']} of {row['nights']} {row['weekday']}s"
            for row in self.by_weekday()
            if chance_of(row["violated"], row["nights"], risk) < BY_CHANCE
        ]
        if not worse:
            return ""
        return (
            f"demand exceeded the answer on {' and '.join(worse)}, more than chance explains at "
            f"{self.confidence:.4g}; state a higher --confidence for these nights."
        )

    def by_weekday(self) -> list[dict[str, Any]]:
        """Return nights of the backtest and those that broke, by the weekday of their middle."""
        days, broken = self.nights.weekday[self.tested.number], self.tested.violated
        return [
            {
                "weekday": WEEKDAYS[day],
                "nights": int((days == day).sum()),
                "violated": int(broken[days == day].sum()),
            }
            for day in range(len(WEEKDAYS))
            if (days == day).any()
        ]

    def on_holidays(self) -> dict[str, Any]:
        """Return the nights of the backtest on holidays, and those of them that broke."""
        # Without a calendar, they are the nights that were unlike others of their weekday.
        stated, number = bool(self.question.holidays), self.tested.number
        rest = (self.nights.holiday[:-1] if stated else self.nights.unlike)[number]
        return {
            "calendar": stated,
            "nights": int(rest.sum()),
            "violated": int(self.tested.violated[rest].sum()),
        }

    @property
    def short_note(self) -> str:
        """Sentence about units that are free for too short a time to be lent; empty without any."""
        free = free_units(self.terms, self.tested.coming)
        hours = float(free @ np.diff(self.nights.edges)) / 60.0 - self.unit_hours
        if hours <= 0:
            return ""
        if math.isinf(self.terms.least_minutes):
            return f"{hours:,.0f} free unit-hours are not lent, as no unit can change its role."
        return (
            f"{hours:,.0f} free unit-hours are not lent: they come in pieces no longer than a "
            f"change to training and back, {self.terms.least_minutes:,.0f} min."
        )

    @property
    def unit_hours(self) -> float:
        """Unit-hours that are lent tonight."""
        return sum(run.units * (run.last - run.first) for run in self.runs) / 60.0

    @property
    def training_tokens(self) -> float:
        """Tokens that the loans train, after batch work, role changes and failures."""
        lost_s = self.terms.start_s + self.terms.reclaim_s
        useful_s = sum(
            run.units * max(0.0, (run.last - run.first) * 60.0 - lost_s) for run in self.runs
        )
        if self.batch is not None:
            useful_s = max(0.0, useful_s - self.batch.tonight * HOUR_S)
        return useful_s * self.terms.tokens_per_unit_s * self.terms.goodput

    @property
    def usd(self) -> float | None:
        """Value of the lent chip-hours at the machine's price [USD]; None without a price."""
        price = self.terms.chips_per_unit * self.terms.usd_per_chip_s * HOUR_S
        return self.unit_hours * price if price else None

    @property
    def energy_joules(self) -> float | None:
        """Energy that the site draws for lent units at work [J]; None if their power is unknown."""
        watts = self.terms.chips_per_unit * self.terms.watts_per_chip
        return self.unit_hours * HOUR_S * watts if watts else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of the lent chip-hours for each million trained tokens [USD]; None if unknown."""
        usd, tokens = self.usd, self.training_tokens
        return usd * 1e6 / tokens if usd and tokens else None

    def at_speed(self, factor: float) -> Loan:
        """Return the answer where a unit serves ``factor`` times the predicted rate."""
        return replace(self, tested=replace(self.tested, coming=self.tested.coming / factor))

    @property
    def taken_back(self) -> FloatArray:
        """Share of the free unit-time of each night of the backtest that demand took back."""
        need, number = self.nights.need, self.tested.number
        free = self.terms.most_units - np.repeat(
            self.tested.capacity, np.diff(self.nights.edges), axis=1
        )
        over = self.tested.missed * need[number].sum(axis=1)
        return np.asarray(np.minimum(over / np.maximum(free.sum(axis=1), 1e-9), 1.0))

    def moment(self, minute: int) -> str:
        """Return a minute of the night as a time, UTC."""
        return str((self.begin + pd.Timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M"))

    def lent_and_hindsight(self) -> tuple[FloatArray, FloatArray]:
        """Unit-hours lent on each night of the backtest, and in hindsight; both (answered,)."""
        # Hindsight keeps for serving what each window turned out to need.
        width = np.diff(self.nights.edges) / 60.0
        need = self.nights.need[self.tested.number]
        foresight = np.maximum.reduceat(need, self.nights.edges[:-1], axis=1)
        return (
            lendable_units(self.terms, self.tested.capacity, self.nights.edges) @ width,
            lendable_units(self.terms, foresight, self.nights.edges) @ width,
        )

    def summary(self) -> dict[str, Any]:
        """The answer by its keys in the command line's JSON."""
        # ``reclaim_latency_s`` is None where no unit comes back, as changes are forbidden.
        lent, hindsight = self.lent_and_hindsight()
        violated = int(self.tested.violated.sum())
        # Whole minutes by which a unit is ordered back early, so that it serves at its loan's end.
        early = math.ceil(self.terms.reclaim_s / 60) if self.runs else 0
        moment = self.moment
        batch = self.batch and {
            "unit_hours": self.batch.tonight,
            "fits": self.batch.tonight <= self.unit_hours,
            "nights_too_short": self.batch.nights_too_short,
        }
        return {
            "windows": [
                {"from": moment(window.first), "to": moment(window.last), "units": window.units}
                for window in self.windows
            ],
            "loans": [
                {
                    "from": moment(run.first),
                    "to": moment(run.last),
                    "reclaim_at": moment(run.last - early),
                    "units": run.units,
                    "chips": run.units * self.terms.chips_per_unit,
                }
                for run in self.runs
            ],
            "confidence": self.confidence,
            "slo_share": self.question.share,
            "history_nights": self.errors.known,
            "confidence_from_history": min(surest(self.errors.known), self.confidence),
            "units": self.terms.units,
            "reserve_units": self.terms.reserve_units,
            "lent_unit_hours": self.unit_hours,
            "backtest": {
                "nights": len(self.tested),
                "violated": violated,
                "violated_share": violated / len(self.tested),
                "lent_unit_hours": float(lent.sum()),
                "hindsight_unit_hours": float(hindsight.sum()),
                "worst_night_missed_share": float(self.tested.missed.max()),
                "nights_borne_out": int(self.tested.borne.sum()),
                "violated_borne_out": int(self.tested.violated[self.tested.borne].sum()),
                "by_weekday": self.by_weekday(),
                "holidays": self.on_holidays(),
            },
            "expectation": self.tested.form,
            "reclaim_latency_s": (
                self.terms.reclaim_s if math.isfinite(self.terms.reclaim_s) else None
            ),
            "training_tokens": self.training_tokens,
            "training_goodput": self.terms.goodput,
            "usd": self.usd,
            "usd_per_million_trained_tokens": self.usd_per_million_tokens,
            "energy_joules": self.energy_joules,
            **({} if batch is None else {"batch": batch}),
        }

    def frame(self) -> pd.DataFrame:
        """Return every night of the backtest, one row a night."""
        lent, hindsight = self.lent_and_hindsight()
        days = len(self.nights) - self.tested.number
        return pd.DataFrame(
            {
                "night": [self.begin - pd.Timedelta(days=int(back)) for back in days],
                "weekday": [WEEKDAYS[day] for day in self.nights.weekday[self.tested.number]],
                "lent_unit_hours": lent,
                "hindsight_unit_hours": hindsight,
                "violated": self.tested.violated,
                "borne_out": self.tested.borne,
                "missed_share": self.tested.missed,
            }
        )


def lend(
    need: npt.ArrayLike, start: str, question: Night, terms: Terms | Callable[[float], Terms]
) -> Loan:
    """Answer the night question from a history of demand that ends now.

    The terms may be a function of the confidence, which is what the history bears out.

    A fleet of 100 units whose demand is the same every day, 20 units at night and 80 by day:

    >>> day = np.repeat([20.0, 80.0], [480, 960])
    >>> loan = lend(np.tile(day, 14), "2024-01-01T00:00", Night("08:00"), Terms(100))
    >>> [(loan.moment(window.first), window.units) for window in loan.windows]
    [('2024-01-15T00:00', 80)]
    """
    history, begin = np.asarray(need, float), pd.Timestamp(start)
    end = begin + pd.Timedelta(minutes=len(history))
    lead, minutes = question.span(end)
    errors = question.errors(history, begin, lead, minutes)
    confidence = borne_out(question.confidence, errors.known)
    terms = terms if isinstance(terms, Terms) else terms(confidence)
    return Loan(
        question=question,
        confidence=confidence,
        terms=terms,
        begin=end + pd.Timedelta(minutes=lead),
        errors=errors,
        tested=backtest(errors, confidence, terms.fewest_units, terms.most_units),
    )


def at_confidence(loan: Loan, confidence: float) -> IntArray:
    """Units lent in each window of the same night at another confidence."""
    tested = backtest(loan.errors, confidence, loan.terms.fewest_units, loan.terms.most_units)
    return lendable_units(loan.terms, tested.coming, loan.nights.edges)


def lendable_units(terms: Terms, kept: FloatArray, edges: IntArray) -> IntArray:
    """Free units of each window that are free for longer than a change to training and back."""
    # Others would train nothing, and may not be back when they are needed.
    free = free_units(terms, kept)
    rows = free.reshape(-1, free.shape[-1])
    minutes = edges.tolist()
    lent = [without_short_loans(minutes, row, terms.least_minutes) for row in rows]
    return np.asarray(lent, np.int64).reshape(free.shape)


def free_units(terms: Terms, kept: FloatArray) -> IntArray:
    """Units that neither serving nor the reserve keeps, in whole blocks."""
    serving = np.maximum(kept, terms.floor_units)
    blocks = np.floor((terms.units - terms.reserve_units - serving) / terms.block + 1e-9)
    return np.maximum(blocks, 0).astype(np.int64) * terms.block
