"""Demand as requests and tokens per service and minute, and the arithmetic on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, check_choice

if TYPE_CHECKING:
    import pandas as pd

MINUTES_PER_DAY = 1440
MINUTES_PER_WEEK = 7 * MINUTES_PER_DAY


@dataclass(frozen=True, eq=False)
class Demand:
    """Requests and tokens of each service, minute by minute.

    >>> from workloads.demand import constant
    >>> constant(60.0, minutes=120)
    Demand(service, 120 minutes from 2024-01-01T00:00, mean 60.0, peak 60.0 requests/min)
    """

    services: tuple[str, ...]
    start: str  # first minute, UTC, ISO 8601 (``2024-05-10T00:00``); it fixes the day of the week
    requests: FloatArray  # (services, minutes): requests that arrive in the minute
    # prompt_tokens, output_tokens (services, minutes): mean tokens of one request that arrives in
    # the minute
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    # Whether ``requests`` counts requests of this fleet; False for a shape, whose size means
    # nothing before it is scaled to a fleet
    absolute: bool = True
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        total = self.requests.sum(axis=0)
        return (
            f"Demand({'+'.join(self.services)}, {self.minutes:,} minutes from {self.start}, "
            f"mean {total.mean():,.1f}, peak {total.max():,.1f} requests/min)"
        )

    @property
    def minutes(self) -> int:
        """Length [minutes]."""
        return int(self.requests.shape[1])

    @property
    def index(self) -> pd.DatetimeIndex:
        """Start of every minute, UTC."""
        import pandas as pd

        return pd.date_range(self.start, periods=self.minutes, freq="min")

    def between(self, first: int, last: int) -> Demand:
        """Cut out the minutes from ``first`` to before ``last``."""
        import pandas as pd

        if not 0 <= first < last <= self.minutes:
            raise InputError(
                f"minutes {first} to {last} are not inside the demand, which has {self.minutes}; "
                "choose fewer days or an earlier start."
            )
        begin = pd.Timestamp(self.start) + pd.Timedelta(minutes=first)
        start = begin.strftime("%Y-%m-%dT%H:%M")
        return replace(self, start=start, **_tables(lambda table: table[:, first:last], self))

    def only(self, service: str) -> Demand:
        """Return the demand of one service."""
        check_choice("service", service, self.services)
        row = [self.services.index(service)]
        return replace(self, services=(service,), **_tables(lambda table: table[row], self))

    def some(self, begin: int, end: int) -> Demand:
        """Return the demand of the services from number ``begin`` to before ``end``."""
        names = self.services[begin:end]
        return replace(self, services=names, **_tables(lambda table: table[begin:end], self))

    def times(self, factor: npt.ArrayLike) -> Demand:
        """Multiply requests; the factor broadcasts over (services, minutes)."""
        return replace(self, requests=self.requests * np.asarray(factor, float))

    def averaged(self, minutes: int) -> Demand:
        """Spread the requests of each period evenly over its minutes."""
        if minutes < 1:
            raise InputError(f"cannot average demand over {minutes} minutes; use 1 or more.")
        return _with_requests(
            self,
            period_means(self.requests, minutes),
            lambda name: period_means(self.requests * getattr(self, name), minutes),
        )

    def mean_lengths(self) -> tuple[float, float]:
        """Mean tokens of the prompt and of the output of a request of the first service."""
        weights = self.requests[0] if self.requests[0].any() else None
        columns = self.prompt_tokens[0], self.output_tokens[0]
        prompt, output = (float(np.average(each, weights=weights)) for each in columns)
        return prompt, output

    def repeated(self, minutes: int) -> Demand:
        """Repeat the demand end to end, to a length of ``minutes``."""
        rounds = -(-minutes // self.minutes)
        tiled = _tables(lambda table: np.tile(table, (1, rounds))[:, :minutes], self)
        return replace(self, **tiled)


def _tables(make: Callable[..., FloatArray], *demands: Demand) -> dict[str, Any]:
    """Return requests and tokens, each made from that table of all demands."""
    names = ("requests", "prompt_tokens", "output_tokens")
    return {name: make(*(getattr(demand, name) for demand in demands)) for name in names}


def period_means(values: FloatArray, minutes: int) -> FloatArray:
    """Replace each value by the mean of its period of ``minutes`` columns; same shape."""
    length = values.shape[-1]
    edges = np.arange(0, length, minutes)
    sums = np.add.reduceat(values, edges, axis=-1)
    counts = np.diff(np.append(edges, length))
    means: FloatArray = np.repeat(sums / counts, counts, axis=-1)
    return means


def largest_within(values: FloatArray, *, ahead: int = 0, behind: int = 0) -> FloatArray:
    """Largest value from ``behind`` minutes before each minute, or until ``ahead`` after it.

    >>> largest_within(np.array([1.0, 3.0, 2.0]), ahead=1).tolist()
    [3.0, 3.0, 2.0]
    """
    import pandas as pd  # names of policies are listed without it

    # A window of pandas ends at its row, so windows that begin there are found from behind.
    size, way = min(ahead + behind, len(values) - 1) + 1, 1 if behind else -1
    maxima: FloatArray = pd.Series(values[::way]).rolling(size, min_periods=1).max().to_numpy()
    return maxima[::way]


def constant(
    requests_per_minute: float,
    *,
    minutes: int = MINUTES_PER_WEEK,
    prompt_tokens: float = 1000.0,
    output_tokens: float = 100.0,
    start: str = "2024-01-01T00:00",
) -> Demand:
    """Return a demand that never changes."""
    shape = (1, minutes)
    return Demand(
        ("service",),
        start,
        np.full(shape, float(requests_per_minute)),
        np.full(shape, float(prompt_tokens)),
        np.full(shape, float(output_tokens)),
    )


def mix(demands: Sequence[Demand]) -> Demand:
    """Put services side by side, aligned by the time of the week, cut to the shortest."""
    # The first demand that does not last whole weeks, or else the first of all, sets the start. A
    # demand of whole weeks that starts at another time of the week is rolled. Any other is refused,
    # because its end does not continue at its beginning.
    if not demands:
        raise InputError("a mix needs at least one demand; none was given.")
    fixed = [demand for demand in demands if demand.minutes % MINUTES_PER_WEEK]
    first = (fixed or demands)[0]
    minutes = min(demand.minutes for demand in demands)
    parts = [_rolled_to(demand, first.start).between(0, minutes) for demand in demands]
    names = _distinct([name for part in parts for name in part.services])
    return replace(beside(parts, names), start=first.start)


def beside(parts: Sequence[Demand], services: Sequence[str]) -> Demand:
    """Put services of the same minutes side by side, under these names."""
    return replace(
        parts[0],
        services=tuple(services),
        absolute=all(part.absolute for part in parts),
        notes=tuple(note for part in parts for note in part.notes),
        **_tables(lambda *tables: np.concatenate(tables), *parts),
    )


def joined(parts: Sequence[Demand]) -> Demand:
    """Put demands of the same services one after the other in time."""
    return replace(parts[0], **_tables(lambda *tables: np.concatenate(tables, axis=1), *parts))


def in_zone(demand: Demand, hours: float) -> Demand:
    """Return the demand of users whose clocks are some hours ahead."""
    # The end continues at the beginning, so that requests keep their number.
    moved = _tables(lambda table: np.roll(table, -round(60 * hours), axis=1), demand)
    return replace(demand, **moved)


def from_zones(demand: Demand, shares: Mapping[float, float]) -> Demand:
    """Sum a demand over time zones: hours by which their clocks are ahead, and their shares."""
    parts = [in_zone(demand, hours).times(share) for hours, share in shares.items()]
    return _with_requests(
        demand,
        np.sum([part.requests for part in parts], axis=0),
        lambda name: np.sum([part.requests * getattr(part, name) for part in parts], axis=0),
    )


def _with_requests(
    demand: Demand, requests: FloatArray, tokens: Callable[[str], FloatArray]
) -> Demand:
    """Return a demand with other requests, whose lengths follow from the tokens of all of them."""
    lengths = {
        # Minutes without requests keep the lengths that they have.
        name: np.divide(
            tokens(name), requests, out=getattr(demand, name).astype(float), where=requests > 0
        )
        for name in ("prompt_tokens", "output_tokens")
    }
    return replace(demand, requests=requests, **lengths)


def whole_requests(demand: Demand) -> npt.NDArray[np.int64]:
    """Requests as integers whose running sums stay within one half of the demand's; same shape."""
    sums = np.rint(np.cumsum(demand.requests, axis=1)).astype(np.int64)
    return np.diff(sums, axis=1, prepend=0)


def _rolled_to(demand: Demand, start: str) -> Demand:
    shift = _minute_of_week(start) - _minute_of_week(demand.start)
    if shift == 0:
        return demand
    if demand.minutes % MINUTES_PER_WEEK:
        raise InputError(
            f"cannot align {'+'.join(demand.services)}, which starts {demand.start}, with {start}: "
            "only demands of whole weeks can be rolled; cut it to 10,080 minutes."
        )
    rolled = _tables(lambda table: np.roll(table, -shift, axis=1), demand)
    return replace(demand, start=start, **rolled)


def _minute_of_week(start: str) -> int:
    import pandas as pd

    moment = pd.Timestamp(start)
    return int(moment.weekday() * MINUTES_PER_DAY + moment.hour * 60 + moment.minute)


def _distinct(names: list[str]) -> list[str]:
    """Number repeated names: ``chat``, ``chat-2``."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return result
