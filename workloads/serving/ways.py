"""Ways to run prompts, ranked by their rate under an SLO; kept in files like capacity tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.files import kept_files
from workloads.serving.capacity import Slo, SloMissed
from workloads.serving.capacity_file import MOST_KEPT
from workloads.serving.capacity_runs import TableRuns, table_digest
from workloads.serving.highest_rate import MOST, Offered, highest_rate, what_binds
from workloads.serving.profile import Profile
from workloads.serving.requests import Lengths


@dataclass(frozen=True)
class Ranking:
    """The best of several ways to run prompts.

    Attributes
    ----------
    best : tuple of (int, float)
        Number of each of the two best ways, or of the only one that keeps the SLO, and the rate
        within the SLO of one replica [1/s].
    binds : tuple of str
        Cause that binds the best way, for requests of each kind, see
        :func:`workloads.serving.highest_rate.what_binds`.
    """

    best: tuple[tuple[int, float], ...]
    binds: tuple[str, ...]


def rank_ways(
    profile: Profile,
    kinds: Sequence[tuple[Lengths, float]],
    slo: Slo,
    ways: Sequence[Sequence[TableRuns]],
    *,
    cache: Path | None = None,
) -> Ranking:
    """Return the two ways in which each replica serves most requests under an SLO.

    No way serves more than when it is saturated, and so most of them need no search.

    Parameters
    ----------
    profile : Profile
        One replica.
    kinds : sequence of (Lengths, float)
        Lengths of each kind of request, and its share of all requests.
    slo : Slo
    ways : sequence of sequence of TableRuns
        The runs of each way for each kind.
    cache : Path, optional
        Folder in which rankings are kept; by default the folder of all kept files.

    Raises
    ------
    SloMissed
        If idle replicas miss the SLO in every way.
    """
    name = f"ways-{table_digest(profile, kinds, slo, ways)}.json"
    within = () if cache is None else (cache,)
    kept = kept_files.read_json(name, _read, within)
    if kept is not None:
        return kept
    offers = [
        [runs.offered(profile, lengths) for (lengths, _), runs in zip(kinds, way, strict=True)]
        for way in ways
    ]
    ranking = _ranked(offers, [share for _, share in kinds], slo)
    content = json.dumps({"best": ranking.best, "binds": ranking.binds}).encode()
    kept_files.keep(name, content, "ways-*.json", most=MOST_KEPT, within=within)
    return ranking


def _ranked(offers: list[list[Offered]], shares: list[float], slo: Slo) -> Ranking:
    """Search the ways from the fastest saturated one on, as long as one may be among the best."""
    most = [
        MOST * _together([each.saturated_per_s for each in way], shares) / _replicas(way)
        for way in offers
    ]
    ranked: list[tuple[float, int, list[float]]] = []
    missed: list[SloMissed] = []
    for way in sorted(range(len(offers)), key=lambda way: -most[way]):
        least = ranked[1][0] if len(ranked) > 1 else 0.0
        if most[way] <= least:
            break
        try:
            rates = _rates(offers[way], shares, slo, least * _replicas(offers[way]))
        except SloMissed as miss:
            missed.append(miss)
            continue
        if all(rates):
            ranked.append((_together(rates, shares) / _replicas(offers[way]), way, rates))
            ranked = sorted(ranked, key=lambda each: -each[0])[:2]
    if not ranked:
        raise max(missed, key=lambda miss: miss.attained)
    _, first, rates = ranked[0]
    binds = (what_binds(each, slo, rate) for each, rate in zip(offers[first], rates, strict=True))
    return Ranking(tuple((way, rate) for rate, way, _ in ranked), tuple(binds))


def _rates(way: list[Offered], shares: list[float], slo: Slo, least_per_s: float) -> list[float]:
    """Return the highest rate for each kind; 0 where all together stay below the least one.

    Replicas that serve all kinds at the least rate serve each alone at its share of it.
    """
    rates = []
    for offered, share in zip(way, shares, strict=True):
        rates.append(highest_rate(offered, slo, above_per_s=share * least_per_s))
        if not rates[-1]:
            break
    return rates


def _together(rates: list[float], shares: list[float]) -> float:
    """Return the rate of all requests where replicas spend their time on one kind at a time."""
    return sum(shares) / sum(share / rate for share, rate in zip(shares, rates, strict=True))


def _replicas(way: list[Offered]) -> int:
    """Number of replicas that serve together."""
    return way[0].deployment.chips // way[0].deployment.profile.chips


def _read(document: Any) -> Ranking:
    best = tuple((int(way), float(rate)) for way, rate in document["best"])
    return Ranking(best, tuple(map(str, document["binds"])))
