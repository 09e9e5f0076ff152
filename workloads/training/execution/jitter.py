"""Disturbances: kernels that take a little longer or shorter each time, chips that are slow.

A jittered duration is d + ((d · k) >> 20) (rule 6), where k is a quantile of the normal
distribution, taken from a table by a hash of (seed, rank, op). Compiled code for single ops and
array arithmetic give the same integers, so every level of detail has the same durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import inlined
from cluster_sim.schedule.table import FLOW, Schedule
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from workloads.training.execution.causes import named_causes
from workloads.training.program.program import Program

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
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # with MIX_2, the multipliers of its finaliser
MIX_2 = np.uint64(0x94D049BB133111EB)

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
        return drawn or slow or self.jitter > 0 or self.network > 0 or bool(self.causes)

    @property
    def table(self) -> IntArray:
        """Quantiles of the jitter in parts of 2^20, int64 (1024,)."""
        sigma, quantiles = round(self.jitter * 2**UNIT), np.array(normal_quantiles(), np.int64)
        scaled = (np.abs(quantiles) * sigma + 2 ** (UNIT - 1)) >> UNIT
        return np.asarray(np.sign(quantiles) * scaled)

    def keys(self, ranks: IntArray) -> KeyArray:
        """Return the seed of the hash of each rank's ops, uint64 (ranks,)."""
        mixed = mix_array(np.array([self.seed % 2**64], np.uint64) + GOLDEN)
        return mix_array(mixed + (ranks.astype(np.uint64) + np.uint64(1)) * GOLDEN)

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


def mix_array(values: KeyArray) -> KeyArray:
    """Return the values mixed by the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = values ^ (values >> np.uint64(30))
    x = x * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    mixed: KeyArray = x ^ (x >> np.uint64(31))
    return mixed


def disturbed_array(
    duration_ps: IntArray, key: KeyArray, op: IntArray, slow: IntArray, table: IntArray
) -> IntArray:
    """Return the disturbed durations of ops [ps]; arguments are broadcast against each other."""
    # ``duration_ps``: undisturbed durations [ps]. ``table`` (1024,): quantiles of the jitter, from
    # ``Disturbance.table``.
    slowed = _scale_array(duration_ps, slow)
    code = mix_array(key + np.atleast_1d(op).astype(np.uint64) * GOLDEN) >> np.uint64(
        64 - TABLE_BITS
    )
    return np.maximum(1, _scale_array(slowed, table[code.astype(np.int64)]))


def jittered(duration_ps: IntArray, table: IntArray) -> IntArray:
    """Return the times that each duration takes at each place of the table of jitter [ps]."""
    # ``duration_ps`` (durations,). ``table`` (places,).
    # Returns an array (durations, places).
    lasts: IntArray = np.maximum(1, _scale_array(duration_ps[:, None], table))
    return np.ascontiguousarray(lasts)


def _scale_array(duration_ps: IntArray, k: IntArray) -> IntArray:
    """Durations scaled by 1 + k / 2^20, rounded down."""
    # d + ((d · k) >> 20), with the product in two parts so that it fits in 64 bits.
    high, low = duration_ps >> UNIT, duration_ps & (2**UNIT - 1)
    scaled: IntArray = duration_ps + high * k + ((low * k) >> UNIT)
    return scaled


@inlined
def scale(duration_ps: int, k: int) -> int:
    """Return one duration scaled as :func:`disturbed_array` scales it [ps]."""
    low = duration_ps & 0xFFFFF
    return duration_ps + (duration_ps >> 20) * k + ((low * k) >> 20)


@inlined
def draw(key: np.uint64, op_key: np.uint64) -> np.uint64:
    """Return the place in the table of jitter by the hash of rank and op."""
    # The same as mix_array, with its constants written out.
    x = key + op_key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(54)


def with_slower_network(whole: Program, domain: IntArray, longer: float) -> Program:
    """Return the program of all ranks whose calls between scale-up domains take longer."""
    # ``domain`` (ranks,): domain of each rank. ``longer``: share of a call's time that is added.
    exchanges = []
    for exchange in whole.exchanges:
        lasts_ps = exchange.duration_ps.copy()
        members = domain[exchange.members]
        across = np.unique(exchange.kind[(members != members[:, :1]).any(axis=1)])
        lasts_ps[across] = np.rint(lasts_ps[across] * (1 + longer)).astype(np.int64)
        exchanges.append(replace(exchange, duration_ps=lasts_ps))
    return replace(whole, exchanges=tuple(exchanges))


def disturb(schedule: Schedule, program: Program, how: Disturbance) -> Schedule:
    """Return the schedule of a program with disturbed kernels."""
    # A kernel that is a flow on memory has its rate changed instead of its duration.
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    first = np.cumsum(length) - length
    duration, rate = schedule.duration_ps.copy(), schedule.flows.cap_bytes_per_s.copy()
    keys, slow, table = how.keys(program.rank), how.slowness(program.rank), how.table
    for stage in range(len(program.streams)):
        rows = np.flatnonzero(program.stage == stage)
        alone = np.flatnonzero(~program.communicates[stage])
        at = first[rows][:, None] + alone
        usual_ps = program.step_ps[program.streams[stage].ops.step[alone]]
        lasts_ps = disturbed_array(usual_ps, keys[rows][:, None], alone, slow[rows][:, None], table)
        flows = schedule.kind[at] == FLOW
        duration[at] = np.where(flows, 0, lasts_ps)
        changed = np.searchsorted(schedule.flows.op, at[flows])
        part = (usual_ps / lasts_ps)[flows]
        rate[changed] = np.maximum(1, rate[changed] * part).astype(np.int64)
    flows_now = replace(schedule.flows, cap_bytes_per_s=rate)
    return replace(schedule, duration_ps=duration, flows=flows_now)
