"""View that a policy has of the fleet, its answer, the limits on it, and kinds of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, shown
from topologies.support.options import observed
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecast import largest_ahead
from workloads.options.fleet import PolicyInputs


class JobView(NamedTuple):
    """A training job as a policy sees it, from its arrival until it is done."""

    name: str
    # units, min_units: most and fewest units that the job runs on
    units: int
    min_units: int
    size: int  # units that work for the job, or are on their way to it
    # Unit-minutes until the job is done, at its largest size; infinity without an end
    work_left: float = math.inf
    due_minutes: float = math.inf  # time until the job's deadline [min]; infinity without one
    kind: str = ""  # kind of units on which the job runs
    step_units: int = 1  # units by which the job's size grows above the fewest


class KindView(NamedTuple):
    """Units of one kind as a policy sees them."""

    name: str
    # units, broken: all units of the kind, and those under repair or maintenance
    units: int
    broken: int
    # serving, coming (pools,): units that serve, and that are on their way to serving
    serving: npt.NDArray[np.int64]
    coming: npt.NDArray[np.int64]
    training: int  # units that train, evaluate or do batch work, or are on their way there
    # (pools,): requests that a unit serves relative to one of the first kind; 0 if it never serves
    speed: FloatArray
    # unit_busy_w, unit_idle_w: draw of the site for a unit that computes, and for one that does not
    # [W]
    unit_busy_w: float
    unit_idle_w: float
    # region, reach (pools,): region of the units; ``speed``, also for pools of other regions
    region: str
    reach: FloatArray
    # Price of electricity in the region as ``View`` has it; (minutes ahead,)
    prices_usd_per_mwh: FloatArray = np.empty(0)
    worth: float = 1.0  # tokens that a unit trains relative to one of the first kind
    rest_units: float = math.inf  # units that evaluation and batch work can use beside jobs
    batch: int = 0  # units of ``training`` that do batch work or are on their way there

    @property
    def alive(self) -> int:
        """Units that are not under repair or maintenance."""
        return self.units - self.broken

    @property
    def at_service(self) -> int:
        """Units that serve, or are on their way to serving, in all pools."""
        return int((self.serving + self.coming).sum())

    @property
    def rise_w(self) -> float:
        """Watts by which a unit draws more when it computes."""
        return self.unit_busy_w - self.unit_idle_w


@dataclass(frozen=True, eq=False)
class View:
    """Knowledge of an operator at the start of a minute.

    Attributes
    ----------
    minute : int
        Minutes since the start of the run.
    weekday, hour : int, float
        Day of the week, 0 for Monday, and hour of the day, UTC.
    load : float array (pools, minutes so far)
        Units of the first kind that each past minute's demand needed, at the rate that a unit
        sustains under the SLO; the last column is the minute that has just ended.
    history : int
        Columns of ``load`` before the run began.
    serving, coming : array (pools,)
        Units that serve, and that are on their way to serving; those of several kinds in units of
        the first.
    backlog : float array (pools,)
        Units that would serve the waiting requests within one minute.
    units, broken : int
        Size of the fleet, and the number of units under repair or maintenance.
    training : int
        Units that train, evaluate or do batch work, or are on their way there.
    look_at_jobs : callable
        Returns ``jobs``, training jobs that have arrived and are not done, the first to start
        first. They are looked at when a policy first reads them, in the minute of the view.
    lead_s : float
        Expected time from an order until units serve [s].
    prices_usd_per_mwh : float array (minutes ahead,)
        Price of electricity, and of its carbon, in this minute and the coming ones, where known up
        to a day after the run, for the first kind; empty without prices.
    power_w : float
        Draw of the site in the minute that has just ended [W].
    unit_busy_w, unit_idle_w : float
        Draw of the site for one unit that computes, and for one that does not, the mean of all
        kinds [W].
    batch_due : float array (minutes ahead,)
        Work of waiting batch requests that is due by the end of this minute, the next, and so on
        until the last deadline [unit-minutes]; empty without a batch tier.
    kinds : tuple of KindView
        Kinds of units, in the order in which they serve.
    """

    minute: int
    weekday: int
    hour: float
    load: FloatArray
    history: int
    serving: FloatArray
    coming: FloatArray
    backlog: FloatArray
    units: int
    broken: int
    lead_s: float
    prices_usd_per_mwh: FloatArray = field(default_factory=lambda: np.empty(0))
    power_w: float = 0.0
    unit_busy_w: float = 0.0
    unit_idle_w: float = 0.0
    batch_due: FloatArray = field(default_factory=lambda: np.empty(0))
    training: int = 0
    look_at_jobs: Callable[[], tuple[JobView, ...]] = tuple
    kinds: tuple[KindView, ...] = ()

    @cached_property
    def jobs(self) -> tuple[JobView, ...]:
        """Training jobs that have arrived and are not done, the first to start first."""
        # Few policies look at the jobs, and to list them takes a third of the time of a minute.
        return self.look_at_jobs()

    @property
    def first_weekday(self) -> int:
        """Day of the week of the first minute of ``load``, 0 for Monday."""
        return (self.weekday - (self.history + self.minute) // MINUTES_PER_DAY) % 7

    @property
    def lead_minutes(self) -> int:
        """Whole minutes from an order until units serve, at least one."""
        return max(1, math.ceil(round(self.lead_s * 1000) / 60_000))

    def forecast(self, minutes: int, *, every: int = 15) -> FloatArray:
        """Units that the coming minutes are expected to need; (pools, minutes).

        The expectation is constant in each interval of ``every`` minutes, and comes from the last
        minutes and the same time of an earlier day; see ``largest_ahead``.
        """
        steps, first = -(-minutes // every), self.first_weekday
        rows = [
            largest_ahead(load, every=every, steps=steps, lead=1, first_weekday=first)
            for load in self.load
        ]
        return np.asarray(np.repeat(np.stack(rows), every, axis=1)[:, :minutes])


@dataclass(frozen=True, eq=False)
class Decision:
    """Answer of a policy that also limits training.

    Attributes
    ----------
    serving : array-like or None
        Units that should serve, one number for each pool, in units of the first kind; in a fleet of
        several also (kinds, pools), in units of each. None keeps the last answer.
    training : int or sequence of int, optional
        Most units that may train, evaluate or do batch work, of all kinds together or of each; by
        default all that do not serve.
    batch : int, optional
        Units, of the first kind, that batch work gets before training; by default as many as its
        deadlines need.
    jobs : mapping of str to int, optional
        Most units of training jobs by name; the other jobs have only their own limits.
    power_w : float, optional
        Most that the site may draw in the minute [W]. Training that would draw more waits in place
        for a part of the minute, first where a watt trains least.
    """

    serving: npt.ArrayLike | None
    training: int | Sequence[int] | None = None
    batch: int | None = None
    jobs: Mapping[str, int] | None = None
    power_w: float | None = None


MOST_UNITS = 10**9  # most units that a policy may ask for, more than any fleet has

Policy = Callable[[View], "npt.ArrayLike | Decision | None"]
"""Function of a view that returns the units that should serve, a number for each pool of services
with the same weights; fractions are rounded up, and None keeps the last answer. A
:class:`Decision` also limits training and states the units of batch work."""


def units_wanted(policy: Policy, view: View) -> npt.ArrayLike | None:
    """Units that a policy wants to serve, whatever it decides about training."""
    decision = policy(view)
    return decision.serving if isinstance(decision, Decision) else decision


@dataclass(frozen=True)
class Limits:
    """Bounds that hold for every policy."""

    # floor, cap: least and most serving units of all services together; a cap of 0 means the whole
    # fleet
    floor: int = 0
    cap: int = 0
    block: int = 1  # number of units by which the serving units change, counted from the floor
    # Most role changes that the control plane orders in a minute; 0 means any number
    changes_per_minute: int = 0
    min_lease_s: float = 0.0  # least time for which a lent unit stays lent [s]
    # Time between notice to a training job and the loss of its units [s]; a checkpoint that takes
    # longer is cut off and lost
    notice_s: float = float("inf")
    reserve: int = 0  # spare units that are not lent

    def __post_init__(self) -> None:
        if 0 < self.cap < self.floor:
            raise InputError(
                f"a cap of {self.cap} serving units is below the floor of {self.floor}; "
                f"raise the cap or lower the floor."
            )

    def check(self, units: int) -> None:
        """Check that floor, reserve and block are at most the size of a fleet."""
        block = self.block if self.block > 1 else 0
        for name, value in (("floor", self.floor), ("reserve", self.reserve), ("block", block)):
            if value > units:
                raise InputError(
                    f"a {name} of {value:,} units: the fleet has {units:,}; choose fewer."
                )

    def quantised(self, wanted: FloatArray, units: int) -> npt.NDArray[np.int64]:
        """Round a request up to whole blocks above the floor, within the cap; (services,)."""
        cap = min(self.cap or units, units)
        whole = np.ceil(np.maximum(wanted, 0.0) - 1e-9).astype(np.int64)
        total = max(int(whole.sum()), self.floor)
        blocks = -(-(total - self.floor) // self.block)
        allowed = min(self.floor + blocks * self.block, cap)
        return _shared(whole, allowed)


def _shared(whole: npt.NDArray[np.int64], allowed: int) -> npt.NDArray[np.int64]:
    """Divide ``allowed`` units among services in proportion to their requests, in whole units."""
    # Units left over by rounding down go to the services with the largest remainders.
    total = int(whole.sum())
    if total == allowed:
        return whole
    weights = whole.astype(float) if total else np.ones(len(whole))
    ideal = allowed * weights / weights.sum()
    result = np.floor(ideal).astype(np.int64)
    rest = allowed - int(result.sum())
    result[np.argsort(result - ideal, kind="stable")[:rest]] += 1
    return np.asarray(result)


def answer(policy: Policy, view: View, before: FloatArray) -> Decision:
    """Ask a policy, and check its answer."""
    decision = policy(view)
    if not isinstance(decision, Decision):
        return Decision(before if decision is None else _checked(decision, view))
    trains = _limits_of_training(decision.training, view)
    least = min(trains) if isinstance(trains, list) else trains
    limits = {"train": least, "do batch work": decision.batch}
    limits |= {f"work for job {name}": units for name, units in (decision.jobs or {}).items()}
    for what, count in limits.items():
        if count is not None and not (_is_number(count) and count >= 0):
            raise InputError(
                f"the policy lets {shown(repr(count))} units {what}; it must be a number of at "
                "least 0."
            )
    cap_w = decision.power_w
    if cap_w is not None:
        if not (_is_number(cap_w) and cap_w >= 0):
            raise InputError(
                f"the policy caps power at {shown(repr(cap_w))} W; it must be a number of at "
                "least 0."
            )
        check_power("power_w of the policy", {kind.name: kind.unit_busy_w for kind in view.kinds})
    wish = decision.serving
    serving = before if wish is None else _checked(wish, view)
    return replace(decision, serving=serving, training=trains)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_power(what: str, powers_w: Mapping[str, float]) -> None:
    """Refuse a cap on the power of units that the catalogue does not state."""
    if unknown := ", ".join(name for name, busy_w in powers_w.items() if not busy_w):
        raise InputError(
            f"{what}: the catalogue has no power of {unknown}; leave the cap out, or give a "
            "--catalogue with it."
        )


def _limits_of_training(limits: object, view: View) -> int | list[int] | None:
    """Return limits of training as whole numbers: one for all kinds together, or one for each."""
    if limits is None:
        return None
    each = np.atleast_1d(np.asarray(limits, dtype=object)).tolist()
    if np.ndim(limits) and len(each) != len(view.kinds):  # type: ignore[arg-type]
        raise InputError(
            f"the policy limits training of {len(each)} kinds of units; there are "
            f"{len(view.kinds)}. Return a number for each, or one for all together."
        )
    for number in each:
        if not _is_number(number) or number != number or number % 1:
            raise InputError(
                f"the policy lets {number!r} units train; it must be a whole number of at least 0."
            )
    whole = [int(number) for number in each]
    return whole if np.ndim(limits) else whole[0]  # type: ignore[arg-type]


def _checked(wish: npt.ArrayLike, view: View) -> FloatArray:
    """Return the units of an answer as an array, or refuse them."""
    try:
        wanted = np.atleast_1d(np.asarray(wish, float))
    except (TypeError, ValueError):
        raise InputError(f"the policy answered {wish!r}; it must return units to serve.") from None
    pools, kinds = len(view.load), len(view.kinds)
    if wanted.shape == (1,) and pools > 1:
        raise InputError(
            f"the policy answered one number for {pools} services; return one for each."
        )
    within = (wanted >= 0) & (wanted <= MOST_UNITS)  # false for what is no number
    shapes = [(pools,), (kinds, pools)] if kinds > 1 else [(pools,)]
    if wanted.shape not in shapes or not within.all():
        raise InputError(
            f"the policy answered {shown(repr(wish))} at minute {view.minute}; it must return "
            f"units from 0 to {MOST_UNITS:,}, a number for each of {pools} services."
        )
    return wanted


@dataclass(frozen=True, eq=False)
class Situation:
    """The part of a scenario that policies are configured by."""

    # (pools, minutes): units that each minute of the run needs; only oracle, mpc-oracle, static and
    # clock read it
    need: FloatArray
    lead_s: float  # time from an order until a unit that trained serves [s]
    back_s: float  # time from an order until a unit that served trains [s]
    ramp: int = 0  # most units that can be ordered in a minute, 0 for any number
    priced: bool = False  # whether prices of electricity are known
    # Share of its time for which a unit computes when it serves at the rate under the SLO
    busy_share: float = 1.0


@dataclass(frozen=True)
class PolicyKind:
    """A policy that users choose by name."""

    name: str
    summary: str
    build: Callable[[PolicyInputs, Situation], Policy]  # configures the policy for a scenario
    bound: str = "oracle"  # name of the policy with foresight that bounds this one from above

    @cached_property
    def reads(self) -> set[str]:
        """Options that the policy reads, observed as it is built for an hour of one unit."""
        options, read = observed(PolicyInputs(power_cap=1.0))
        self.check(options, priced=True)
        return read

    def check(self, options: PolicyInputs, *, priced: bool) -> None:
        """Refuse options that the policy cannot run with, as it is built for an hour of a unit."""
        self.build(options, Situation(np.ones((1, 60)), lead_s=60.0, back_s=60.0, priced=priced))
