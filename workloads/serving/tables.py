"""Capacity tables and rankings of ways to run prompts: runs of a replica, kept by their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from topologies.support.files import kept_files
from workloads.serving.batching import Batching
from workloads.serving.deployment import Deployment, Pools
from workloads.serving.deployment_search import (
    MOST,
    Offered,
    highest_rate,
    narrowed,
    rates_apart,
    what_binds,
)
from workloads.serving.profile import Profile
from workloads.serving.requests import Lengths, Requests, share_hits
from workloads.serving.served import Served, Slo, SloMissed, attained, attained_alone
from workloads.serving.speculation import Speculation


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
        """Return the work of a request of these mean lengths, relative to the reference mix."""
        # Bilinear between the mixes that were run, and constant outside them.
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
        """Return the share of requests that keep the SLO after waiting in a backlog."""
        # The wait shifts the distribution of the time to first token; its share under the limit,
        # relative to that without a wait, scales the tabulated attainment.
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
    """Return a capacity without a latency model: a request keeps the SLO unless it is queued."""
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


RATES = ("rate_slo_per_s", "rate_max_per_s")
ARRAYS = (
    "utilisation", "quantiles", "ttft_s", "tpot_s", "attainment", "prompt_tokens", "output_tokens",
    "cost",
)  # fmt: skip


def _plain(table: Capacity) -> dict[str, Any]:
    rates = {name: float(getattr(table, name)) for name in RATES}
    return rates | {name: getattr(table, name).tolist() for name in ARRAYS}


LOADS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Rates of the runs over the saturated rate."""
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Levels of the quantiles of latency that a table holds."""
_Row = tuple[float, FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class TableRuns:
    """Runs from which a capacity table is made."""

    batching: Batching = field(default_factory=Batching)
    # prompt_means, output_means: mean lengths at which the work of a request is measured,
    # ascending; by default the mean of the reference mix alone
    prompt_means: FloatArray | None = None
    output_means: FloatArray | None = None
    requests: int = 3000
    seed: int = 0
    # Share of every prompt that a prefix cache holds, see
    # :func:`workloads.serving.requests.share_hits`
    prefix_share: float = 0.0
    speculation: Speculation | None = None
    # Prefill and decode replicas that serve together; by default one replica does both
    pools: Pools | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_share < 1:
            raise InputError(
                f"a prefix cache that holds {self.prefix_share} of each prompt; use 0 to below 1."
            )

    def offered(self, profile: Profile, lengths: Lengths) -> Offered:
        """Return requests of these lengths, offered to replicas as these runs have them."""
        replicas = Deployment(profile, self.batching, self.speculation, self.pools)
        return Offered(replicas, lengths, self.requests, self.seed, self._with_hits)

    def _with_hits(self, requests: Requests) -> Requests:
        """Return the requests with the share of each prompt that the cache holds."""
        if not self.prefix_share:
            return requests
        return replace(requests, cached=share_hits(requests.prompt, self.prefix_share))


def capacity_table(
    profile: Profile,
    lengths: Lengths,
    slo: Slo,
    runs: TableRuns | None = None,
    *,
    replicas: float = 1,
    cache: Path | None = None,
    **changes: Any,
) -> Capacity:
    """Run one replica at many loads and mixes, and say what ``replicas`` of them can serve."""
    # Each of a unit's replicas gets its share of Poisson arrivals, without imbalance, and latencies
    # are trusted up to about 85 to 90 % of saturation.
    how = replace(runs or TableRuns(), **changes)

    def table(values: Any) -> Capacity:
        """Return the capacity that a kept file describes, exactly as it was."""
        arrays = {name: np.array(values[name], float) for name in ARRAYS}
        rates = {name: float(values[name]) for name in RATES}
        return Capacity(slo=slo, **rates, **arrays)  # type: ignore[arg-type]

    digest = table_digest(profile, lengths, slo, how)
    capacity = kept_files.made_once(
        "capacity", digest, lambda: _run(profile, lengths, slo, how), table, _plain, within=cache
    )
    return replace(
        capacity,
        rate_slo_per_s=capacity.rate_slo_per_s * replicas,
        rate_max_per_s=capacity.rate_max_per_s * replicas,
    )


def _means(lengths: IntArray, lengths_at: FloatArray | None) -> tuple[float, ...]:
    means = np.unique([lengths.mean()] if lengths_at is None else lengths_at)
    return tuple(means.tolist())


def saturated_rate(profile: Profile, lengths: Lengths, runs: TableRuns) -> float:
    """Requests per second that a replica finishes when some always wait [1/s]."""
    return runs.offered(profile, lengths).saturated_per_s


def _run(profile: Profile, lengths: Lengths, slo: Slo, runs: TableRuns) -> Capacity:
    """Run the replica at saturation, at every load, and at every mix of lengths."""
    offered = runs.offered(profile, lengths)
    most = offered.saturated_per_s
    rows: dict[float, _Row] = {}
    for load in LOADS:
        served = offered.run(load * most).served
        rows[load] = _row(served, slo)
        if rows[LOADS[0]][0] < slo.share:
            raise SloMissed(profile.name, slo, rows[load][0], attained_alone(served, slo))
    best = LOADS[-1]
    missed = next((load for load in LOADS if rows[load][0] < slo.share), None)
    if missed is not None:
        kept = LOADS[LOADS.index(missed) - 1]
        ends = narrowed(offered, slo, kept * most, missed * most)
        best, beyond = (rate / most for rate in ends)
        more = {best, beyond} - rows.keys()
        rows |= {load: _row(offered.run(load * most).served, slo) for load in more}
    loads = sorted(rows)
    attainment, ttft, tpot = (
        np.array(column) for column in zip(*(rows[load] for load in loads), strict=True)
    )
    prompts = _means(lengths.prompt, runs.prompt_means)
    outputs = _means(lengths.output, runs.output_means)
    mixes = [[lengths.with_means(prompt, output) for output in outputs] for prompt in prompts]
    rates = [[saturated_rate(profile, mix, runs) for mix in row] for row in mixes]
    return Capacity(
        rate_slo_per_s=best * most,
        rate_max_per_s=most,
        slo=slo,
        utilisation=np.array(loads),
        quantiles=np.array(LEVELS),
        ttft_s=ttft,
        tpot_s=tpot,
        attainment=np.minimum.accumulate(attainment),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        cost=most / np.array(rates),
    )


def _row(served: Served, slo: Slo) -> _Row:
    """Share of the requests that keep the SLO, and quantiles of TTFT and TPOT [s]."""
    later = served.tpot_s[np.isfinite(served.tpot_s)]
    tpot = np.quantile(later, LEVELS) if len(later) else np.zeros(len(LEVELS))
    return float(attained(served, slo).mean()), np.quantile(served.ttft_s, LEVELS), tpot


def table_digest(*inputs: object) -> str:
    """Return a digest of all inputs of a table, with the code of serving and numpy's release."""
    every_input = (*inputs, LOADS, LEVELS, np.__version__)
    return kept_files.digest(kept_files.exact_text(every_input), *_program())


@cache
def _program() -> tuple[bytes, ...]:
    """Return the code of serving, on which a table depends."""
    return tuple(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))


ROUGH = 1.05  # factor on rates of runs, by which they may differ from the bound that they stand for


@dataclass(frozen=True)
class Ranking:
    """The best of several ways to run prompts."""

    # Number of each of the two best ways, or of the only one that keeps the SLO, and the rate
    # within the SLO of one chip [1/s]
    best: tuple[tuple[int, float], ...]
    # Cause that binds the best way, for requests of each kind, see
    # :func:`workloads.serving.deployment_search.what_binds`
    binds: tuple[str, ...]


def rank_ways(
    kinds: Sequence[tuple[Lengths, float]],
    slo: Slo,
    ways: Sequence[tuple[Profile, Sequence[TableRuns]]],
    *,
    cache: Path | None = None,
) -> Ranking:
    """Return the two replicas and ways that serve most requests a chip under an SLO."""

    def ranking() -> Ranking:
        """Search the best of the ways."""
        offers = [
            [runs.offered(served, lengths) for (lengths, _), runs in zip(kinds, way, strict=True)]
            for served, way in ways
        ]
        return _ranked(offers, [share for _, share in kinds], slo)

    digest = table_digest(kinds, slo, ways)
    return kept_files.made_once("ways", digest, ranking, _read, asdict, within=cache)


def _ranked(offers: list[list[Offered]], shares: list[float], slo: Slo) -> Ranking:
    """Search the ways from that of the highest bound on, as long as one may be among the best."""
    apart: dict[int, list[tuple[float, float]]] = {}
    most = [_bound(way, shares, apart) for way in offers]
    ranked: list[tuple[float, int, list[float]]] = []
    missed: list[SloMissed] = []
    for way in sorted(range(len(offers)), key=lambda way: -most[way]):
        least = ranked[1][0] if len(ranked) > 1 else 0.0
        if most[way] <= least:
            break
        saturated = _together([each.saturated_per_s for each in offers[way]], shares)
        if MOST * saturated / _chips(offers[way]) <= least:
            continue
        try:
            rates = _rates(offers[way], shares, slo, least * _chips(offers[way]))
        except SloMissed as miss:
            missed.append(miss)
            continue
        if all(rates):
            ranked.append((_together(rates, shares) / _chips(offers[way]), way, rates))
            ranked = sorted(ranked, key=lambda each: -each[0])[:2]
    if not ranked:
        raise max(missed, key=lambda miss: miss.attained)
    _, first, rates = ranked[0]
    binds = (what_binds(each, slo, rate) for each, rate in zip(offers[first], rates, strict=True))
    return Ranking(tuple((way, rate) for rate, way, _ in ranked), tuple(binds))


def _bound(
    way: list[Offered], shares: list[float], apart: dict[int, list[tuple[float, float]]]
) -> float:
    """Return a rate of a chip that a way cannot exceed [1/s].

    A split serves no more than its prompts' or its decoding replicas alone, whose rates all splits
    of a replica share (``apart``); runs of some thousand requests know these to a few per cent.
    """
    deployment = way[0].deployment
    split = deployment.pools
    if split is None:
        return MOST * _together([each.saturated_per_s for each in way], shares) / _chips(way)
    key = id(deployment.profile)  # of a replica, which the offers keep
    if key not in apart:
        apart[key] = [rates_apart(each) for each in way]
    rates = [min(split.prefill * first, split.decode * then) for first, then in apart[key]]
    return ROUGH * _together(rates, shares) / _chips(way)


def _rates(way: list[Offered], shares: list[float], slo: Slo, least_per_s: float) -> list[float]:
    """Return the highest rate for each kind; 0 where all together stay below the least one."""
    rates = []
    for offered, share in zip(way, shares, strict=True):
        rates.append(highest_rate(offered, slo, above_per_s=share * least_per_s))
        if not rates[-1]:
            break
    return rates


def _together(rates: list[float], shares: list[float]) -> float:
    """Return the rate of all requests where replicas spend their time on one kind at a time."""
    return sum(shares) / sum(share / rate for share, rate in zip(shares, rates, strict=True))


def _chips(way: list[Offered]) -> int:
    return way[0].deployment.chips


def _read(document: Any) -> Ranking:
    best = tuple((int(way), float(rate)) for way, rate in document["best"])
    return Ranking(best, tuple(map(str, document["binds"])))
