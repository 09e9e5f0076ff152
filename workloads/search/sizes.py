"""Search for the fewest units of a machine on which a job ends in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster_sim.collectives.algorithms.hierarchical import prime_factors
from cluster_sim.progress import progress
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import FILES, GRAPHS, RAINIER, RAINIER_MACHINE, machine
from topologies.support.arguments import check_names, checked
from topologies.support.errors import InputError
from topologies.support.units import parse_count
from workloads.economics import bought_s
from workloads.job.front import whole_job
from workloads.job.result import DAY_S
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.options.job import LEAST_DAYS, MOST_DAYS, check_tokens, usd_of
from workloads.search.search import Estimates, Search, estimates
from workloads.training.iteration import Iteration
from workloads.training.plan.plan import PLAN_FIELDS

MOST_TRIES = 12  # numbers of units that are tried, each with a search for a plan of some seconds
GROWTH = 1.25  # factor by which guesses that follow one another in being too few grow faster
MOST_GROWTH = 8  # most by which one guess exceeds the one before: on too many a job is no faster
TURNED = 4  # times the fastest number up to which more units are tried that are no faster
UNEVEN = 2  # times on a number that divides batch and layers badly, over those beside it
LARGEST_FACTOR = 7
LEAST_CHIPS, MOST_CHIPS = 64, 131_072  # the first that are tried, and the most
FAR = 3  # times the deadline beyond which a size is no more than a step to others


def divides_well(count: int) -> bool:
    """Return whether a number has no prime factor above 7, so that plans have enough shapes."""
    return max(prime_factors(count), default=1) <= LARGEST_FACTOR


def usable_counts(most: int, shared: int) -> list[int]:
    """Return the numbers of units, up to ``most``, among which a batch and layers can be shared.

    The odd part of a number divides ``shared``, the product of sequences and layers.

    >>> usable_counts(24, 512 * 80 * 11)
    [1, 2, 4, 5, 8, 10, 16, 20]
    """
    odd_parts = ((count, count // (count & -count)) for count in range(1, most + 1))
    return [count for count, odd in odd_parts if shared % odd == 0 and divides_well(count)]


def fewest_in_time(
    days_on: Callable[[int], float], limit: float, counts: Sequence[int], start: int
) -> tuple[int | None, list[int]]:
    """Return the fewest units on which a job takes at most ``limit`` days, or None if none do.

    The list has the numbers that may be fewer, of which none was tried: at most ``MOST_TRIES`` are.
    A number that ``days_on`` refuses has no plan, and others are tried. Beyond some number a job
    is no faster on more units, and numbers that divide worse take up to ``UNEVEN`` times as long.

    >>> fewest_in_time(lambda count: 60 / count, 10, usable_counts(24, 3), 1)
    (6, [])
    """
    days: dict[int, float] = {}
    refused: InputError | None = None
    while len(days) < MOST_TRIES and (count := _next_count(days, limit, counts, start)):
        try:
            days[count] = days_on(count)
        except InputError as mistake:
            days[count], refused = math.inf, mistake
    if refused and not _with_plan(days):
        raise refused
    enough = [count for count in days if days[count] <= limit]
    return min(enough, default=None), _may_do(days, limit, counts)


def _with_plan(days: Mapping[int, float]) -> list[int]:
    """Return the numbers of units that have a plan, the fastest first."""
    return sorted((count for count in days if days[count] < math.inf), key=lambda each: days[each])


def _odd(count: int) -> int:
    """Return the odd part of a number; times of numbers that share it fall and rise smoothly."""
    return count // (count & -count)


def _may_do(days: Mapping[int, float], limit: float, counts: Sequence[int]) -> list[int]:
    """Return the numbers that may be fewer than those that are enough, and were not tried."""
    planned = _with_plan(days)
    fewest = min((count for count in planned if days[count] <= limit), default=math.inf)
    # The speed grows with the units at most: from the least number with a plan on, fewer are slow.
    reach = min((count * days[count] for count in planned), default=0.0) / limit
    least = min(planned, default=0)
    slow = [count for count in days if days[count] > limit and count < fewest < math.inf]
    far = max((each for each in slow if UNEVEN * limit < days[each] < math.inf), default=0)
    smooth: dict[int, int] = {}
    for count in slow:
        smooth[_odd(count)] = max(count, smooth.get(_odd(count), 0))
    return [
        count
        for count in counts
        if max(far, smooth.get(_odd(count), 0)) < count < fewest
        and count not in days
        and not least < count < reach
    ]


def _next_count(
    days: Mapping[int, float], limit: float, counts: Sequence[int], start: int
) -> int | None:
    """Return the number of units to try next; None where none may do that was not tried."""
    if not days:
        return next((count for count in counts if count >= start), counts[-1])
    planned, left = _with_plan(days), _may_do(days, limit, counts)
    enough = min((count for count in planned if days[count] <= limit), default=None)
    if enough:
        lower = max((count for count in days if count < enough), default=0)
        between = [count for count in left if count > lower] or left
        if lower or not left:
            return between[len(between) // 2] if between else None
        aim = enough * days[enough] / limit
        return max((count for count in left if count <= aim), default=left[0])
    last, fastest = max(days), planned[0] if planned else None
    above = [count for count in counts if count > last]
    if above and not (fastest and last >= TURNED * fastest):
        # The first guess is that of a job whose speed is that of its units; guesses that follow
        # one another in being too few grow. After a slower one, unevenness is kept out.
        if fastest and fastest < last:
            above = [count for count in above if _odd(count) == _odd(fastest)] or above
        ratio = 2.0 if days[last] == math.inf else days[last] / limit
        aim = last * min(max(ratio, GROWTH ** (len(days) - 1)), MOST_GROWTH)
        return next((count for count in above if count >= aim), above[-1])
    return _near_fastest(days, limit, counts, left) if fastest else None


def _near_fastest(
    days: Mapping[int, float], limit: float, counts: Sequence[int], left: Sequence[int]
) -> int | None:
    """Return a number beside the fastest that was tried, of which no number is enough."""
    fastest = _with_plan(days)[0]
    like = [count for count in {*counts, *days} if _odd(count) == _odd(fastest)]
    low = max((count for count in like if count in days and count < fastest), default=0)
    high = min((count for count in like if count in days and count > fastest), default=math.inf)
    near = like if days[fastest] > UNEVEN * limit else [*like, *left]
    between = [count for count in near if low < count < high and count not in days]
    return min(between, key=lambda count: abs(math.log(count / fastest)), default=None)


@dataclass(frozen=True, eq=False)
class Sizes:
    """Numbers of units of a machine that were tried for a deadline or a budget.

    Attributes
    ----------
    unit : str
        Machine that is counted.
    days : float
        Deadline [d].
    rows : tuple of mapping
        Sizes that were tried, the smallest first: ``units``, ``chips``, ``iteration_s``, and the
        job's ``days`` with its interval (``days_low``, ``days_high``), ``cost_usd`` and the like.
    fewest : int
        Fewest units that end in time by the prediction; of a budget those that train most.
    sure : int or None
        Fewest units whose interval ends in time; None where none that was tried does.
    next_smaller : int
        Largest number below ``fewest`` that divides batch and layers; 0 for none.
    untried : tuple of int
        First and last number below ``fewest`` that may do and was not tried; empty if none.
    search : Search
        Plans on the fewest units.
    """

    unit: str
    days: float
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)
    fewest: int
    sure: int | None
    next_smaller: int
    untried: tuple[int, ...]
    search: Search = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Return the sizes as an entry of the command's JSON."""
        return {name: value for name, value in vars(self).items() if name != "search"}

    @property
    def job(self) -> dict[str, Any]:
        """Job on the fewest units."""
        row = next(row for row in self.rows if row["units"] == self.fewest)
        return {name: value for name, value in row.items() if name not in OF_A_SIZE}


@dataclass(frozen=True)
class Offer:
    """Units of a machine of which some are taken for a job, within a number of days."""

    weigh: Callable[[str], Estimates]  # estimates the plans on a cluster by name
    cluster: Cluster
    name: str  # of the cluster; if it counts units, no more are taken
    shared: int  # as of :func:`usable_counts`
    days: float
    finish: Callable[[Estimates], Search] = Estimates.simulate  # simulates the best plans
    seed: int = 0

    def __post_init__(self) -> None:
        if self.machine.endswith((*FILES, *GRAPHS)):
            raise InputError(
                f"days is {self.days:g}, for which units of a machine are counted, and "
                f"{self.machine} is a whole cluster. Name a machine, such as {RAINIER_MACHINE}."
            )

    @property
    def machine(self) -> str:
        """Name of the cluster without a number."""
        return self.name.partition(":")[0]

    @property
    def unit(self) -> str:
        """Machine that is counted."""
        return RAINIER_MACHINE if self.machine == RAINIER else self.machine

    @property
    def most(self) -> int:
        """Most units that may be taken."""
        counted = self.name.partition(":")[2]
        return self.cluster.domains if counted else MOST_CHIPS // self.cluster.chips_per_domain

    def named(self, count: int) -> str:
        """Return the name of a cluster of some units."""
        scale = self.cluster.chips_per_domain if self.machine == RAINIER else 1  # it counts chips
        return f"{self.machine}:{count * scale}"

    def for_job(self, length: Mapping[str, Any]) -> Sizes:
        """Find the fewest units for ``tokens``, or the best for a ``budget``, as of ``run_job``."""
        if "budget" in length:
            return self.most_tokens(length["budget"])
        return self.in_time(parse_count(str(length["tokens"]), "--tokens"))

    def in_time(self, tokens: int) -> Sizes:
        """Find the fewest units on which a job ends in time."""
        days, counts = self.days, usable_counts(self.most, self.shared)
        weighed: dict[int, Estimates] = {}
        rows: dict[int, dict[str, Any]] = {}
        least: dict[int, float] = {}  # days without failures

        def on(count: int, key: str = "days") -> float:
            """Days of the job of the plan with the best estimate on a number of units."""
            if count not in rows:
                weighed[count] = self.weigh(self.named(count))
                step = weighed[count].first_step()
                least[count] = tokens / step.plan.tokens * step.iteration_s / DAY_S
                if least[count] > FAR * days:
                    return least[count]  # too far off for its failures to matter
                rows[count] = _row(count, step, self.seed, tokens=tokens)
            return float(rows[count][key])

        start = max(1, LEAST_CHIPS // self.cluster.chips_per_domain)
        fewest, untried = fewest_in_time(on, days, counts, start)
        if fewest is None:
            fastest = min(least, key=lambda count: least[count])
            remedy = "Allow more days, units or sequences of a batch."
            if fastest < counts[-1]:
                remedy = "More units are no faster: allow more days or sequences of a batch."
            raise InputError(
                f"days is {days:g}, and {tokens:,} tokens at this batch take at least "
                f"{least[fastest]:,.3g} days, on {fastest:,} of {self.unit}. {remedy}"
            )
        search = self.finish(weighed[fewest])
        rows[fewest] = _row(fewest, search.first, self.seed, tokens=tokens)
        more = [count for count in counts if count >= fewest]
        start = math.ceil(fewest * rows[fewest]["days_high"] / days)
        sure, _ = fewest_in_time(partial(on, key="days_high"), days, more, start)
        smaller = max((count for count in counts if count < fewest), default=0)
        ends = tuple(sorted({untried[0], untried[-1]})) if untried else ()
        listed = tuple(rows[count] for count in sorted(rows))
        return Sizes(self.unit, days, listed, fewest, sure, smaller, ends, search)

    def most_tokens(self, budget: str) -> Sizes:
        """Find the units on which a job trains most for a budget, as ``run_job`` takes it."""
        days, cluster = self.days, self.cluster
        paid = bought_s(usd_of(budget) or 0, cluster, cluster.chips_per_domain) / (days * DAY_S)
        counts = usable_counts(min(math.ceil(paid), self.most), self.shared)
        # More units may be no faster, and cost more: half as many are tried while they train more.
        halves = [2**power for power in range(counts[-1].bit_length() - 1, -1, -1)]
        rows: dict[int, dict[str, Any]] = {}
        refused: InputError | None = None
        for count in dict.fromkeys([counts[-1], *halves]):
            try:
                weighed = self.weigh(self.named(count))
                rows[count] = _row(count, weighed.first_step(), self.seed, budget=budget, days=days)
            except InputError as mistake:
                refused = refused or mistake
                continue
            if rows[count]["tokens"] < max(row["tokens"] for row in rows.values()):
                break
            best = weighed
        if refused and not rows:
            raise refused
        fewest = max(rows, key=lambda count: (rows[count]["tokens"], -count))
        search = self.finish(best)
        rows[fewest] = _row(fewest, search.first, self.seed, budget=budget, days=days)
        listed = tuple(rows[count] for count in sorted(rows))
        return Sizes(self.unit, days, listed, fewest, fewest, 0, (), search)


OF_A_SIZE = ("units", "chips", "iteration_s", "days_low", "days_high")
"""Keys of a row beside those of its job."""


def _row(count: int, step: Iteration, seed: int, **length: Any) -> dict[str, Any]:
    job = whole_job(step, seed, **length)["job"]
    sure = {"low": job["days"], "high": job["days"]}  # a budget or a deadline ends it
    ends = {f"days_{end}": job["interval"].get("days", sure)[end] for end in sure}
    return {"units": count, "chips": step.chips, "iteration_s": step.iteration_s, **job, **ends}


@checked(model=MODEL_REMEDY, cluster="Pass a name, such as 'p5.48xlarge'.")
def search_sizes(
    model: Model | str,
    cluster: str,
    global_batch: int,
    *,
    tokens: str | float | None = None,
    days: float,
    finalists: int = 10,
    quiet: bool = False,
    **stated: Any,
) -> Sizes:
    """Find the fewest units of a machine on which a job ends in time, and its plans there.

    Parameters
    ----------
    model, cluster : Model or str, str
        A model or its name, and the name of a machine, such as ``"p5.48xlarge"``; of
        ``"p5.48xlarge:64"`` at most 64 are used.
    global_batch : int
        Sequences of one optimizer step.
    tokens, days : str or float, float
        Tokens, such as ``"15T"``, and days in which the job has to end, as by ``run_job``.
    finalists, quiet : int, bool
        Plans to simulate in full on the fewest units; whether no progress is shown.
    **stated
        Fields of a plan that are kept, such as ``seq=8192``; all others are varied. With
        ``budget="2M"`` [USD] for ``tokens``, the units are those that train most for it.

    Returns
    -------
    Sizes
        ``fewest`` units by the prediction, and ``sure`` by the upper end of its interval.

    Raises
    ------
    InputError
        For an unknown name or field, and when no number of units ends in time.

    Examples
    --------
    >>> few = {"tp": 2, "pp": 1, "microbatch": 1, "seq": 1024, "zero": 1, "quiet": True}
    >>> sizes = search_sizes("gpt2", "trn2.48xlarge", 64, tokens="10G", days=1, **few)
    >>> sizes.fewest, sizes.job["days"] < 1
    (1, True)
    """
    budget = stated.pop("budget", None)
    names = ("model", "cluster", "global_batch", "tokens", "budget", "days", "finalists", "quiet")
    check_names("search_sizes", stated, [*names, *PLAN_FIELDS])
    _check_job(tokens, budget, days)
    model, watch = as_model(model), partial(progress, quiet=quiet)
    how: dict[str, Any] = {"stated": stated, "finalists": finalists, "watch": watch}

    def weigh(name: str) -> Estimates:
        """Estimate the plans on one number of units."""
        return estimates(model, machine(name), global_batch, **how)

    offer = Offer(weigh, machine(cluster), cluster, global_batch * model.layers, float(days))
    return offer.for_job({"tokens": tokens} if budget is None else {"budget": budget})


def _check_job(tokens: str | float | None, budget: str | None, days: float) -> None:
    check_tokens(tokens, budget=budget)
    if tokens is None and budget is None:
        raise InputError("search_sizes is for a whole job: state tokens or budget.")
    if not LEAST_DAYS <= days <= MOST_DAYS:
        raise InputError(f"days is {days:g}; it must be from {LEAST_DAYS:g} to {MOST_DAYS:g}.")
