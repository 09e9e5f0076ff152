"""Disturbances: kernels that take a little longer or shorter each time, chips that are slow.

A jittered duration is d + ((d · k) >> 20) (rule 6), where k is a quantile of the normal
distribution, taken from a table by a hash of (seed, rank, op). Compiled code for single ops and
array arithmetic give the same integers, so every level of detail has the same durations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import inlined
from cluster_sim.schedule.table import FLOW, Schedule
from topologies.catalogue.catalogue import Catalogue
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, suggestion
from workloads.training.program.program import OWN, Program

UNIT = 20  # bits of the fraction in which durations are scaled: a scale is a whole number of 2^-20
TABLE_BITS = 10
"""Bits of the number of quantiles in the table; the outermost of 2^10 are 3.3 standard deviations
away."""
LARGEST_JITTER = 0.25
"""Largest standard deviation over the mean; with it the shortest kernel keeps a sixth of its
time."""
LARGEST_FACTOR = 1000.0  # largest factor by which a rank may be slower than its peers
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64 (Steele, Lea and Flood 2014): 2^64 over the golden ratio."""

KeyArray = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Disturbance:
    """Jitter and stragglers: deviations of kernels from their undisturbed times."""

    jitter: float = 0.0  # standard deviation of a kernel's time over its mean
    seed: int = 0  # seed of the jitter; the same seed gives the same times
    # Slow ranks, each with the factor by which all its kernels take longer, exact to a millionth
    stragglers: tuple[tuple[int, float], ...] = ()
    causes: tuple[str, ...] = ()  # causes of uneven chips by name, which draw the next two
    # (ranks of the plan,): share by which kernels of each rank take longer; None for none
    uneven: FloatArray | None = field(default=None, repr=False)
    network: float = 0.0  # share by which collectives between scale-up domains take longer
    within: float = 0.0  # share by which those within a domain do

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= LARGEST_JITTER:
            raise InputError(
                f"jitter {self.jitter:g} is outside 0 to {LARGEST_JITTER}: a standard deviation "
                "over the mean, such as 0.01."
            )
        for rank, factor in self.stragglers:
            if not 1 <= factor <= LARGEST_FACTOR:
                raise InputError(
                    f"straggler {rank}:{factor:g}: the factor is outside 1 to "
                    f"{LARGEST_FACTOR:g}; 1.2 makes its kernels take 1.2 times as long."
                )

    def __bool__(self) -> bool:
        drawn = self.uneven is not None and bool(self.uneven.any())
        slow = any(factor != 1 for _, factor in self.stragglers)
        late = self.network > 0 or self.within > 0
        return drawn or slow or late or self.jitter > 0 or bool(self.causes)

    @property
    def table(self) -> IntArray:
        """Quantiles of the jitter in parts of 2^20, int64 (1024,)."""
        sigma, quantiles = round(self.jitter * 2**UNIT), np.array(normal_quantiles(), np.int64)
        scaled = (np.abs(quantiles) * sigma + 2 ** (UNIT - 1)) >> UNIT
        return np.asarray(np.sign(quantiles) * scaled)

    def keys(self, ranks: IntArray) -> KeyArray:
        """Return the seed of the hash of each rank's ops, uint64 (ranks,)."""
        mixed = _mixed(np.array([self.seed % 2**64], np.uint64) + GOLDEN)
        seeds: KeyArray = _mixed(mixed + (ranks.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return seeds

    def slowness(self, ranks: IntArray) -> IntArray:
        """Return the excess of each rank's kernel times in parts of 2^20, int64 (ranks,)."""
        uneven = np.zeros(len(ranks)) if self.uneven is None else self.uneven[ranks]
        excess: IntArray = np.rint(uneven * 2**UNIT).astype(np.int64)
        for rank, factor in self.stragglers:
            here = ranks == rank
            if not here.any():
                raise InputError(
                    f"straggler {rank} is no rank of the plan: ranks are 0 to {ranks.max()}."
                )
            excess[here] += round((factor - 1) * 2**UNIT)
        return excess

    def slow_rows(self, ranks: IntArray) -> IntArray:
        """Return the rows of the stragglers among ranks, which no other rank equals, ascending."""
        apart = np.isin(ranks, [rank for rank, _ in self.stragglers])
        excess = self.slowness(ranks)
        if self.uneven is not None:
            values, counts = np.unique(excess, return_counts=True)
            apart |= excess != values[counts.argmax()]
        return np.flatnonzero(apart)


def disturbance(jitter: float | str, seed: int, stragglers: Sequence[str]) -> Disturbance:
    """Return the disturbance that options state: a number or causes by name, and stragglers."""
    slow = tuple(_straggler(text) for text in stragglers)
    try:
        spread = float(jitter or 0.0)
    except ValueError:
        return Disturbance(0.0, seed, slow, named_causes(str(jitter)))
    return Disturbance(spread, seed, slow)


def _straggler(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise InputError(f"straggler {text!r} is no RANK:FACTOR; write 17:1.25.") from None


@cache
def normal_quantiles() -> tuple[int, ...]:
    """Return quantiles of the standard normal distribution in parts of 2^20, symmetric about 0."""
    size = 2**TABLE_BITS
    upper = [NormalDist().inv_cdf((i + 0.5) / size) for i in range(size // 2, size)]
    positive = [round(end * 2**UNIT) for end in upper]
    return (*(-end for end in reversed(positive)), *positive)


# Array arithmetic calls these as they are, and compiled code by the names below for single ops.


def _mixed(x: Any) -> Any:
    """Values mixed by the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _scaled(duration_ps: Any, k: Any) -> Any:
    """Durations scaled by 1 + k / 2^20, rounded down."""
    # d + ((d · k) >> 20), with the product in two parts so that it fits in 64 bits.
    low = duration_ps & 0xFFFFF
    return duration_ps + (duration_ps >> 20) * k + ((low * k) >> 20)


mix, scale = inlined(_mixed), inlined(_scaled)


@inlined
def draw(key: np.uint64, op_key: np.uint64) -> np.uint64:
    """Return the place in the table of jitter by the hash of rank and op."""
    place: np.uint64 = mix(key + op_key) >> np.uint64(54)
    return place


def disturbed_array(
    duration_ps: IntArray, key: KeyArray, op: IntArray, slow: IntArray, table: IntArray
) -> IntArray:
    """Return the disturbed durations of ops [ps]; arguments are broadcast against each other."""
    # ``duration_ps``: undisturbed durations [ps]. ``table`` (1024,): quantiles of the jitter, from
    # ``Disturbance.table``.
    code = _mixed(key + np.atleast_1d(op).astype(np.uint64) * GOLDEN) >> np.uint64(64 - TABLE_BITS)
    drawn_ps: IntArray = _scaled(_scaled(duration_ps, slow), table[code.astype(np.int64)])
    return np.maximum(1, drawn_ps)


def with_slower_network(whole: Program, domain: IntArray, between: float, within: float) -> Program:
    """Return the program of all ranks whose calls take longer between or within their domains."""
    # ``domain`` (ranks,): scale-up domain of each rank. ``between``, ``within``: share of the time
    # of a call between domains, or within one, that is added.
    exchanges = []
    for exchange in whole.exchanges:
        lasts_ps = exchange.duration_ps.copy()
        members = domain[exchange.members]
        crosses = (members != members[:, :1]).any(axis=1)
        for longer, groups in ((between, crosses), (within, ~crosses)):
            kinds = np.unique(exchange.kind[groups])
            lasts_ps[kinds] = np.rint(lasts_ps[kinds] * (1 + longer)).astype(np.int64)
        exchanges.append(replace(exchange, duration_ps=lasts_ps))
    return replace(whole, exchanges=tuple(exchanges))


def disturb(schedule: Schedule, program: Program, how: Disturbance) -> Schedule:
    """Return the schedule of a program with disturbed kernels."""
    # A kernel that is a flow on memory has its rate changed instead of its duration.
    duration, rate = schedule.duration_ps.copy(), schedule.flows.cap_bytes_per_s.copy()
    keys, slow, table = how.keys(program.rank), how.slowness(program.rank), how.table
    for stage in range(len(program.streams)):
        rows = np.flatnonzero(program.stage == stage)
        alone = np.flatnonzero(program.calls[stage][0] < 0)
        at = program.offset[rows, OWN, None] + alone
        usual_ps = program.step_ps[program.streams[stage].ops.step[alone]]
        lasts_ps = disturbed_array(usual_ps, keys[rows][:, None], alone, slow[rows][:, None], table)
        flows = schedule.kind[at] == FLOW
        duration[at] = np.where(flows, 0, lasts_ps)
        changed = np.searchsorted(schedule.flows.op, at[flows])
        part = (usual_ps / lasts_ps)[flows]
        rate[changed] = np.maximum(1, rate[changed] * part).astype(np.int64)
    flows_now = replace(schedule.flows, cap_bytes_per_s=rate)
    return replace(schedule, duration_ps=duration, flows=flows_now)


# Causes of uneven chips: what makes some slower than others, and what the slowest of many costs.
#
# A step waits for its slowest rank, so what matters of a spread is its largest value among all
# chips or servers, which grows with their number. A cause is one row of ``CAUSES``; its numbers are
# in the catalogue, part ``jitter.<name>``.

POINTS = 4096  # probabilities at which the mean of the largest of normal values is summed up


class Law(NamedTuple):
    """A distribution: values of many units, and the mean of the largest of them."""

    # Both take the numbers of a cause: its spread, and the share of units that it strikes.
    draw: Callable[[np.random.Generator, int, float, float], FloatArray]
    largest: Callable[[int, float, float], float]


@cache
def _largest_normal(count: int) -> float:
    """Return the mean of the largest of standard normal values, by its quantiles."""
    # The largest of n is below x with probability F(x)^n, so that its quantile at p is that of one
    # value at p^(1/n).
    within = (np.arange(POINTS) + 0.5) / POINTS
    beyond = -np.expm1(np.log(within) / count)
    return -sum(map(NormalDist().inv_cdf, beyond.tolist())) / POINTS


def _harmonic(count: int) -> float:
    """Return 1 + 1/2 + … + 1/n, the mean of the largest of n exponential values of mean 1."""
    if count < POINTS:
        return float((1 / np.arange(1, count + 1)).sum())
    return float(np.log(count) + np.euler_gamma + 1 / (2 * count))


LAWS = {
    "normal": Law(
        lambda rng, count, spread, _: rng.normal(0.0, spread, count),
        lambda count, spread, _: spread * _largest_normal(count),
    ),
    "exponential": Law(
        lambda rng, count, spread, _: rng.exponential(spread, count),
        lambda count, spread, _: spread * _harmonic(count),
    ),
    "rare": Law(
        lambda rng, count, spread, share: np.where(rng.random(count) < share, spread, 0.0),
        lambda count, spread, share: spread * -float(np.expm1(count * np.log1p(-share))),
    ),
    "daily": Law(
        lambda rng, count, spread, _: np.asarray(spread * np.cos(2 * np.pi * rng.random(count))),
        lambda count, spread, _: 0.0 if count == 1 else spread,
    ),
}
"""Laws by name. Spread is the standard deviation of ``normal``, the mean of ``exponential``, the
value where ``rare`` strikes, and the amplitude of the wave ``daily``, which all chips share."""


@dataclass(frozen=True)
class Cause:
    """One cause of uneven chips."""

    name: str
    each: str  # what has a value of its own: "chip" (where steady), "server" or "cluster"
    steady: bool  # the same in all steps of a job; otherwise drawn anew for every step
    law: str  # name of its law
    on: str  # what takes longer: "kernels", or "network", collectives between scale-up domains
    about: str

    def numbers(self, catalogue: Catalogue, spread: float | None = None) -> tuple[float, float]:
        """Return its spread, or another one, and the share of units that it strikes."""
        part, rare = f"jitter.{self.name}", self.law == "rare"
        return (
            catalogue.value(part, "spread") if spread is None else spread,
            catalogue.value(part, "share") if rare else 1.0,
        )

    def in_seconds(self, catalogue: Catalogue) -> bool:
        """Return whether it adds seconds to a step; otherwise it adds a share of a time."""
        return catalogue.entry(f"jitter.{self.name}", "spread").unit == "s"


CAUSES = {
    cause.name: cause
    for cause in (
        Cause("chips", "chip", True, "normal", "kernels", "bins and cooling of chips differ"),
        Cause("servers", "server", True, "rare", "kernels", "a few slow ones are not yet replaced"),
        Cause("hosts", "server", False, "exponential", "kernels", "hosts start a step late"),
        Cause("heat", "cluster", False, "daily", "kernels", "clocks follow the heat of the day"),
        Cause("network", "server", False, "exponential", "network", "the slowest adapters of all"),
    )
}
"""Causes by name. Another one is a row here, its numbers rows of the catalogue."""
TYPICAL = ("chips", "hosts", "heat", "network")
"""Causes that ``typical`` stands for: those of a cluster whose slow servers are replaced."""


def named_causes(text: str) -> tuple[str, ...]:
    """Return the causes that a text names: ``typical``, ``chips,hosts`` or ``typical+servers``."""
    stated = [name.strip() for name in text.replace("+", ",").split(",")]
    names = [each for name in stated for each in (TYPICAL if name == "typical" else (name,))]
    for name in names:
        if name not in CAUSES:
            raise InputError(
                f"jitter {text[:80]!r} is no standard deviation such as 0.01, and {name[:40]!r} is "
                f"no cause.{suggestion(name, CAUSES)} Use typical, or {', '.join(CAUSES)}."
            )
    return tuple(dict.fromkeys(names))


def largest(
    names: tuple[str, ...], chips: int, servers: int, catalogue: Catalogue, *, end: str = "value"
) -> float:
    """Return how much longer kernels of the slowest chip take, as a mean over many draws."""
    # The sum of the largest value of each cause, an upper bound for several causes at once. Causes
    # in seconds and of the network are left out. ``end`` ("low", "high"): end of the range of each
    # spread to take, which is that spread itself where no range is stated.
    count = {"chip": chips, "server": servers, "cluster": 1}
    total = 0.0
    for cause in (CAUSES[name] for name in names):
        if cause.on == "kernels" and not cause.in_seconds(catalogue):
            stated = getattr(catalogue.entry(f"jitter.{cause.name}", "spread"), end)
            numbers = cause.numbers(catalogue, stated)
            total += LAWS[cause.law].largest(count[cause.each], *numbers)
    return total


@dataclass(frozen=True)
class Straggler:
    """The rank for which a step waits."""

    rank: int
    chip: int
    cause: str  # cause that contributes most to its slowness
    slower: float  # share by which its kernels, or its collectives, take longer
    share_of_steps: float = 0.0  # share of the drawn steps in which its server has the slowest chip


def slowest_alone(slower: FloatArray, stage: IntArray) -> FloatArray:
    """Return the slowness of ranks where only the slowest of each stage differs from others."""
    # ``slower``, ``stage`` (ranks,): slowness and stage of each rank. A step waits for the slowest
    # of each stage; all others are as the median one, so that equal ranks can be folded.
    alone = np.full(len(stage), np.median(slower))
    for number in range(int(stage.max()) + 1):
        ranks = np.flatnonzero(stage == number)
        worst = ranks[slower[ranks].argmax()]
        alone[ranks] = np.minimum(alone[ranks], slower[worst])
        alone[worst] = slower[worst]
    return alone


@dataclass(frozen=True, eq=False)
class Uneven:
    """Draws of causes for the chips of a job in some steps, and the times of these steps."""

    # The median step is simulated. Others are as much longer or shorter as their estimated loss is.

    causes: tuple[str, ...]
    slower: FloatArray  # (ranks,): share by which kernels take longer in the median step
    network: float  # share by which collectives between domains take longer in that step
    loss_s: FloatArray  # (iterations,): estimated loss of each step [s]
    median: int  # number of the median step
    straggler: Straggler
    kept_loss_s: float  # estimated loss of the median step with the straggler's server replaced [s]
    even_s: float = 0.0  # time of the step on equal chips [s]
    median_s: float = 0.0  # time of the median step [s]

    @property
    def _scale(self) -> float:
        estimated_s = self.loss_s[self.median]
        return float((self.median_s - self.even_s) / estimated_s) if estimated_s else 1.0

    @property
    def steps_s(self) -> FloatArray:
        """Time of each drawn step [s], (iterations,)."""
        times_s = self.even_s + self._scale * self.loss_s
        times_s[self.median] = self.median_s
        return times_s

    @property
    def without_straggler_s(self) -> float:
        """Time of the median step with the straggler's server replaced [s]."""
        return self.even_s + self._scale * self.kept_loss_s

    def quantile_s(self, percent: float) -> float:
        """Return a percentile of the drawn steps [s]."""
        return float(np.percentile(self.steps_s, percent, method="inverted_cdf"))

    def document(self) -> dict[str, object]:
        """Return the entries of a document."""
        times = {f"p{percent}_s": self.quantile_s(percent) for percent in (50, 90, 99)}
        drawn = {"causes": list(self.causes), "steps": len(self.loss_s), **times}
        straggler = {**vars(self.straggler), "without_it_s": self.without_straggler_s}
        return {"uneven": {**drawn, "mean_s": float(self.steps_s.mean())}, "straggler": straggler}


@dataclass(frozen=True, eq=False)
class Chips:
    """The chips of a job, from which causes draw."""

    # More chips draw the same values and further ones, so their slowest is at least as slow.

    chip: IntArray  # (ranks,): chip of each rank
    per_server: int
    seed: int
    own_s: float  # time of a step in which a rank does not wait for others [s]
    exposed_s: float  # time in which it waits for collectives between domains [s]
    catalogue: Catalogue

    @cached_property
    def unit(self) -> dict[str, IntArray]:
        """Number of the unit of each kind to which each chip belongs, int64 (chips,)."""
        number = np.arange(int(self.chip.max()) + 1)
        return {"chip": number, "server": number // self.per_server, "cluster": 0 * number}

    def values(self, cause: Cause, step: int) -> FloatArray:
        """Return the values of all units in a step, as shares of what the cause lengthens."""
        state = [self.seed % 2**32, list(CAUSES).index(cause.name), 0 if cause.steady else step]
        count, numbers = int(self.unit[cause.each][-1]) + 1, cause.numbers(self.catalogue)
        drawn = LAWS[cause.law].draw(np.random.default_rng(state), count, *numbers)
        return drawn / self.own_s if cause.in_seconds(self.catalogue) else drawn

    def draw(self, names: tuple[str, ...], steps: int) -> Uneven:
        """Draw how slow each chip is in each of some steps."""
        causes = [CAUSES[name] for name in names]
        on_kernels = [cause for cause in causes if cause.on == "kernels"]
        on_network = [cause for cause in causes if cause.on == "network"]
        passing = [cause for cause in on_kernels if not cause.steady]
        steady = np.full(len(self.unit["chip"]), -np.inf)
        steady[self.chip] = 0.0
        for cause in on_kernels:
            if cause.steady:
                steady += self.values(cause, 0)[self.unit[cause.each]]
        worst_of_server = np.maximum.reduceat(steady, np.arange(0, len(steady), self.per_server))
        loss_s, slowest = np.zeros(steps), np.zeros(steps, np.int64)
        for step in range(steps):
            slower = worst_of_server + sum(self.values(cause, step) for cause in passing)
            slowest[step] = slower.argmax()
            late = sum(float(self.values(cause, step).max()) for cause in on_network)
            loss_s[step] = slower.max() * self.own_s + late * self.exposed_s
        median = int(np.argsort(loss_s, kind="stable")[(steps - 1) // 2])
        parts = {c.name: self.values(c, median)[self.unit[c.each]] for c in causes}
        whole = sum((parts[cause.name] for cause in passing), steady)
        delayed = sum((parts[cause.name] for cause in on_network), np.zeros(len(steady)))
        straggler, kept_loss_s = self._straggler(parts, whole, delayed)
        server = straggler.chip // self.per_server
        return Uneven(
            *(names, whole[self.chip], float(delayed.max()), loss_s, median),
            replace(straggler, share_of_steps=float((slowest == server).mean())),
            kept_loss_s,
        )

    def _straggler(
        self, parts: dict[str, FloatArray], slower: FloatArray, late: FloatArray
    ) -> tuple[Straggler, float]:
        """Return the slowest chip, and the estimated loss with its server replaced [s]."""
        losses_s = {"kernels": slower.max() * self.own_s, "network": late.max() * self.exposed_s}
        on = max({CAUSES[name].on for name in parts}, key=lambda kind: losses_s[kind])
        excess = late if on == "network" else slower
        chip = int(excess.argmax())
        cause = max((n for n in parts if CAUSES[n].on == on), key=lambda name: parts[name][chip])
        others = self.unit["server"] != self.unit["server"][chip]
        without_s = slower[others].max(initial=min(0.0, slower[chip])) * self.own_s
        without_s += late[others].max(initial=0.0) * self.exposed_s
        rank = int(np.flatnonzero(self.chip == chip)[0])
        return Straggler(rank, chip, cause, float(excess[chip])), without_s
