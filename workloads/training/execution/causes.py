"""Causes of uneven chips: what makes some slower than others, and what the slowest of many costs.

A step waits for its slowest rank, so what matters of a spread is its largest value among all chips
or servers, which grows with their number. A cause is one row of ``CAUSES``; its numbers are in the
catalogue, part ``jitter.<name>``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError, suggestion

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

    def slowest(self, stage: IntArray) -> FloatArray:
        """Return the slowness of ranks where only the slowest of each stage differs from others."""
        # ``stage`` (ranks,): stage of each rank. A step waits for the slowest of each stage; all
        # others are as the median one, so that equal ranks can be folded.
        slower = np.full(len(stage), np.median(self.slower))
        for number in range(int(stage.max()) + 1):
            ranks = np.flatnonzero(stage == number)
            worst = ranks[self.slower[ranks].argmax()]
            slower[ranks] = np.minimum(slower[ranks], self.slower[worst])
            slower[worst] = self.slower[worst]
        return slower

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
        whole, delayed = steady, np.zeros(len(steady))
        for cause in passing:
            whole = whole + parts[cause.name]
        for cause in on_network:
            delayed = delayed + parts[cause.name]
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
