"""Capacity of one unit of a fleet: its rates under an SLO, and its latency by utilisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from topologies.errors import InputError, suggestion
from topologies.units import format_seconds, parse_seconds


@dataclass(frozen=True)
class Slo:
    """Service-level objective: limits that a request must keep to count as attained."""

    # ttft_s, tpot_s: largest time to first token and mean time per later token [s]
    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    # Share of requests that must attain both for a rate to count as under the SLO
    share: float = 0.99

    def __str__(self) -> str:
        """Text of the limits as people write it; a limit that is not set is left out."""
        limits = (("ttft", self.ttft_s), ("tpot", self.tpot_s))
        limited = [f"{name} {format_seconds(value)}" for name, value in limits if value < math.inf]
        return " and ".join(limited) or "no limit"


LIMITS = ("ttft", "tpot")


def parse_slo(text: str, *, share: float = 0.99) -> Slo:
    """Read ``ttft=2s,tpot=50ms,share=99.9%``; a limit that is left out is infinite.

    >>> parse_slo("ttft=2s,tpot=50ms")
    Slo(ttft_s=2.0, tpot_s=0.05, share=0.99)
    >>> parse_slo("tpot=50ms,share=99.9%").share
    0.999
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if name == "share" or (not equals and name.endswith("%")):
            share = parse_share(value if equals else name, "slo share")
            continue
        if not equals or name not in LIMITS:
            raise InputError(
                f"slo {part.strip()!r} is not of the form ttft=2s,tpot=50ms."
                + suggestion(name, LIMITS)
            )
        if name in limits:
            raise InputError(f"slo {text!r} names {name} twice; keep one limit.")
        limits[name] = parse_seconds(value, f"slo {name}")
        if not limits[name] > 0:
            raise InputError(f"slo {name} is {value}; it must be above 0.")
    return Slo(limits.get("ttft", math.inf), limits.get("tpot", math.inf), share)


def parse_share(text: str, where: str) -> float:
    """Read a share below 1, as ``99.9%`` or ``0.999``.

    >>> parse_share("99.9%", "slo share"), parse_share("0.95", "slo share")
    (0.999, 0.95)
    """
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%")) / (100.0 if plain.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"{where} is {text!r}; write a share such as 99.9% or 0.999.")
    return round(value, 12)


class SloMissed(InputError):  # noqa: N818 - a property of the replica, not a fault of the program
    """An SLO that a replica misses even at a twentieth of its full rate.

    ``replica``: name of the replica.
    ``attained``: share of the requests that keep the limits at that rate.
    ``of_each``: shares that keep each of several limits, by its name.
    """

    def __init__(
        self, replica: str, slo: Slo, attained: float, of_each: Mapping[str, float]
    ) -> None:
        apart = ", ".join(f"{name} alone {share:.1%}" for name, share in of_each.items())
        super().__init__(
            f"{replica} keeps {slo} for only {attained:.1%} of the requests, even at 5% of its "
            f"full rate, under {slo.share:.0%}{f' ({apart})' if apart else ''}; use more chips, "
            "shorter requests or a looser SLO."
        )
        self.replica, self.attained, self.of_each = replica, attained, of_each


@dataclass(frozen=True, eq=False)
class Capacity:
    """Rates and latencies of one unit, such as an UltraServer with all its replicas."""

    # rate_slo_per_s, rate_max_per_s: rates of requests of the reference mix, within the SLO and at
    # saturation [1/s]
    rate_slo_per_s: float
    rate_max_per_s: float
    slo: Slo
    utilisation: FloatArray  # (loads,): rates of the runs divided by ``rate_max_per_s``, ascending
    quantiles: FloatArray  # (quantiles,): levels of the two tables, from 0 to 1
    # ttft_s, tpot_s (loads, quantiles): latencies at each load [s]
    ttft_s: FloatArray
    tpot_s: FloatArray
    attainment: FloatArray  # (loads,): share of requests that keep both limits
    # prompt_tokens, output_tokens (mixes,): mean lengths at which ``cost`` was measured, ascending
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    # (prompts, outputs): work of a request of each mix relative to the reference mix
    cost: FloatArray

    def work(self, prompt_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike) -> FloatArray:
        """Return the work of a request of these mean lengths, relative to the reference mix.

        It is interpolated bilinearly between the mixes that were run, and constant outside them.
        """
        prompt = np.asarray(prompt_tokens, float)
        output = np.asarray(output_tokens, float)
        row, across = _place(self.prompt_tokens, prompt)
        column, along = _place(self.output_tokens, output)
        next_row = np.minimum(row + 1, len(self.prompt_tokens) - 1)
        next_column = np.minimum(column + 1, len(self.output_tokens) - 1)
        low = self.cost[row, column] * (1 - along) + self.cost[row, next_column] * along
        high = self.cost[next_row, column] * (1 - along) + self.cost[next_row, next_column] * along
        result: FloatArray = low * (1 - across) + high * across
        return result

    def ttft_quantile_s(self, utilisation: npt.ArrayLike, level: float) -> FloatArray:
        """Return the time to first token at a quantile, without waiting for a backlog [s]."""
        at_level = np.array([np.interp(level, self.quantiles, row) for row in self.ttft_s])
        load = np.asarray(utilisation, float)
        return np.asarray(np.interp(load, self.utilisation, at_level))

    def attained(self, utilisation: npt.ArrayLike, wait_s: npt.ArrayLike) -> FloatArray:
        """Return the share of requests that keep the SLO after waiting in a backlog.

        The wait shifts the distribution of the time to first token; its share under the limit,
        relative to the share without a wait, scales the tabulated attainment.
        """
        load, wait = np.broadcast_arrays(np.asarray(utilisation, float), np.asarray(wait_s, float))
        if not np.isfinite(self.slo.ttft_s):
            return np.asarray(np.interp(load, self.utilisation, self.attainment))
        left = self.slo.ttft_s - wait
        shares = np.stack([_share_under(row, self.quantiles, left) for row in self.ttft_s])
        alone = np.array(
            [_share_under(row, self.quantiles, np.asarray(self.slo.ttft_s)) for row in self.ttft_s]
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.where(
                alone[:, None] > 0, shares.reshape(len(alone), -1) / alone[:, None], 0.0
            )
        kept = np.minimum(1.0, scaled) * self.attainment[:, None]
        flat = load.ravel()
        row, along = _place(self.utilisation, flat)
        after = np.minimum(row + 1, len(self.utilisation) - 1)
        column = np.arange(len(flat))
        result: FloatArray = kept[row, column] * (1 - along) + kept[after, column] * along
        return result.reshape(load.shape)


def fixed_rate(rate_per_s: float) -> Capacity:
    """Return a capacity without a latency model: a request keeps the SLO unless it is queued.

    >>> float(fixed_rate(2.0).attained(0.5, 0.0)), float(fixed_rate(2.0).attained(1.0, 90.0))
    (1.0, 0.0)
    """
    if not 0 < rate_per_s < float("inf"):
        raise InputError(f"a unit's rate is {rate_per_s} requests/s; it must be above 0.")
    alone = np.array([1.0])
    return Capacity(
        rate_per_s,
        rate_per_s,
        Slo(ttft_s=1.0),
        np.array([0.0, 1.0]),
        np.array([0.0, 1.0]),
        np.zeros((2, 2)),
        np.zeros((2, 2)),
        np.ones(2),
        alone,
        alone,
        np.ones((1, 1)),
    )


def _place(grid: FloatArray, values: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Index of the grid point at or below each value, and its distance to it in grid steps."""
    if len(grid) == 1:
        return np.zeros(values.shape, np.int64), np.zeros(values.shape)
    index = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    along = (values - grid[index]) / (grid[index + 1] - grid[index])
    return index, np.clip(along, 0.0, 1.0)


def _share_under(latencies: FloatArray, levels: FloatArray, limit: FloatArray) -> FloatArray:
    """Share of a distribution that is at most the limit; its quantiles are ``latencies``."""
    shares = np.interp(limit, latencies, levels, left=0.0, right=1.0)
    return np.where(limit < latencies[0], 0.0, np.where(limit >= latencies[-1], 1.0, shares))
