"""Search for the fewest units of a machine on which a job ends in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster_sim.collectives.algorithms.hierarchical import prime_factors
from cluster_sim.progress import progress
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import FILES, GRAPHS, RAINIER, RAINIER_MACHINE, machine
from topologies.support.arguments import check_names, checked
from topologies.support.errors import InputError
from topologies.support.units import parse_count
from workloads.job.front import DAY_S, whole_job
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.options.job import LEAST_DAYS, MOST_DAYS
from workloads.search.search import Estimates, Search, estimates
from workloads.training.plan.plan import PLAN_FIELDS

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration

MOST_TRIES = 10  # numbers of units that are tried, each with a search for a plan of some seconds
GROWTH = 1.25  # factor by which guesses that follow one another in being too few grow faster
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
    A number that ``days_on`` refuses has no plan, and others are tried. Longer jobs are taken to
    need more units, so that few are tried.

    >>> fewest_in_time(lambda count: 60 / count, 10, usable_counts(24, 3), 1)
    (6, [])
    """
    # The first guess after each answer is that of a job whose speed is that of its units; where
    # more units hardly help, the guesses grow.
    tried: dict[int, float] = {}
    refused: dict[int, InputError] = {}
    aim, short, enough, misses = float(start), 0, 1 << 62, 0
    while left := [each for each in counts if short < each < enough and each not in refused]:
        if len(tried) + len(refused) == MOST_TRIES:
            break
        count = next((each for each in left if each >= aim), left[-1])
        try:
            days = tried[count] = days_on(count)
        except InputError as mistake:
            refused[count] = mistake
            # Too few lack memory; more than a number that has a plan are too many for the batch.
            aim = math.sqrt(short * count) or 2.0 * count
            continue
        misses = misses + 1 if days > limit else 0
        aim = count * max(days / limit, GROWTH ** (misses - 1) if misses else 0.0)
        short, enough = (count, enough) if misses else (short, count)
    if not tried:
        raise next(reversed(refused.values()))
    return (None if enough == 1 << 62 else enough), left


@dataclass(frozen=True, eq=False)
class Sizes:
    """Numbers of units of a machine that were tried for a deadline.

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
        Fewest units that end in time by the prediction.
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


def sizes_in_time(
    weigh: Callable[[str], Estimates],
    cluster: Cluster,
    text: str,
    shared: int,
    tokens: int,
    days: float,
    *,
    finish: Callable[[Estimates], Search] = Estimates.simulate,
    seed: int = 0,
) -> Sizes:
    """Find the fewest units of a machine on which a job ends in time.

    ``weigh``: function that estimates the plans on a cluster by name. ``text``: name of the cluster
    that limits the units if it counts them. ``shared``: as of :func:`usable_counts`. ``finish``:
    function that simulates the best plans of the fewest units.
    """
    name, _, most = text.partition(":")
    if name.endswith((*FILES, *GRAPHS)):
        raise InputError(
            f"days is {days:g}, for which units of a machine are counted, and {name} is a whole "
            f"cluster. Name a machine, such as {RAINIER_MACHINE}."
        )
    domain = cluster.chips_per_domain
    unit, scale = (RAINIER_MACHINE, domain) if name == RAINIER else (name, 1)  # it counts chips
    counts = usable_counts(cluster.domains if most else MOST_CHIPS // domain, shared)
    weighed: dict[int, Estimates] = {}
    rows: dict[int, dict[str, Any]] = {}

    def on(count: int, key: str = "days") -> float:
        """Days of the job of the plan with the best estimate on a number of units."""
        if count not in rows:
            weighed[count] = weigh(f"{name}:{count * scale}")
            step = weighed[count].first_step()
            least = tokens / step.plan.tokens * step.iteration_s / DAY_S
            if least > FAR * days:
                return least  # too far off for its failures to matter
            rows[count] = _row(count, step, tokens, seed)
        return float(rows[count][key])

    fewest, untried = fewest_in_time(on, days, counts, max(1, LEAST_CHIPS // domain))
    if fewest is None:
        tried = f"of {MOST_TRIES} numbers of {unit} all that have a plan, " if untried else ""
        tried += f"up to {max(weighed):,}," if untried else f"up to {max(weighed):,} of {unit}"
        raise InputError(
            f"days is {days:g}, and {tried} take longer for {tokens:,} tokens at this batch. Allow "
            "more days, units or sequences of a batch."
        )
    search = finish(weighed[fewest])
    rows[fewest] = _row(fewest, search.first, tokens, seed)
    more = [count for count in counts if count >= fewest]
    start = math.ceil(fewest * rows[fewest]["days_high"] / days)
    sure, _ = fewest_in_time(partial(on, key="days_high"), days, more, start)
    smaller = max((count for count in counts if count < fewest), default=0)
    ends = tuple(sorted({untried[0], untried[-1]})) if untried else ()
    listed = tuple(rows[count] for count in sorted(rows))
    return Sizes(unit, days, listed, fewest, sure, smaller, ends, search)


OF_A_SIZE = ("units", "chips", "iteration_s", "days_low", "days_high")
"""Keys of a row beside those of its job."""


def _row(count: int, step: Iteration, tokens: int, seed: int) -> dict[str, Any]:
    job = whole_job(step, tokens, seed)["job"]
    ends = {f"days_{end}": job["interval"]["days"][end] for end in ("low", "high")}
    return {"units": count, "chips": step.chips, "iteration_s": step.iteration_s, **job, **ends}


@checked(model=MODEL_REMEDY, cluster="Pass a name, such as 'p5.48xlarge'.")
def search_sizes(
    model: Model | str,
    cluster: str,
    global_batch: int,
    *,
    tokens: str | float,
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
        Tokens of the job, such as ``"15T"``, and the days in which it has to end, with failures and
        checkpoints as ``run_job`` has them.
    finalists, quiet : int, bool
        Plans to simulate in full on the fewest units; whether no progress is shown.
    **stated
        Fields of a plan that are kept, such as ``seq=8192``; all others are varied.

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
    >>> shape = {"tp": 2, "pp": 1, "microbatch": 1, "seq": 1024, "zero": 1}
    >>> sizes = search_sizes("gpt2", "trn2.48xlarge", 64, tokens="10G", days=1, quiet=True, **shape)
    >>> sizes.fewest, sizes.job["days"] < 1
    (1, True)
    """
    parameters = ("model", "cluster", "global_batch", "tokens", "days", "finalists", "quiet")
    check_names("search_sizes", stated, [*parameters, *PLAN_FIELDS])
    if not LEAST_DAYS <= days <= MOST_DAYS:
        raise InputError(f"days is {days:g}; it must be from {LEAST_DAYS:g} to {MOST_DAYS:g}.")
    model, watch = as_model(model), partial(progress, quiet=quiet)

    def weigh(name: str) -> Estimates:
        """Estimate the plans on one number of units."""
        where = machine(name)
        return estimates(
            model, where, global_batch, stated=stated, finalists=finalists, watch=watch
        )

    goal, shared = parse_count(str(tokens), "tokens"), global_batch * model.layers
    return sizes_in_time(weigh, machine(cluster), cluster, shared, goal, float(days))
