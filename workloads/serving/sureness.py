"""Intervals of a served replica: its latencies, its rate, and the price of a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from topologies.clusters.cluster import Cluster
from workloads.confidence.answers import first_token_interval, serving_interval
from workloads.confidence.interval import Interval
from workloads.models.model import Model
from workloads.serving.deployment import Deployed
from workloads.serving.requests import Requests


def with_intervals(
    document: Mapping[str, Any], model: Model, cluster: Cluster, deployed: Deployed
) -> dict[str, Any]:
    """Return the headline numbers of a run, with 80 % intervals of the predicted ones.

    ``document``: summary and cost of ``deployed``. ``cluster``: machine of the replica, whose
    catalogue says how sure its numbers are. ``deployed``: replicas whose engine, weights and chips
    say how sure the answer is, and the requests.

    Returns the document, with ``interval`` of the median time to first token, ``tpot_interval`` of
    the median time per token if there is one, ``tokens_per_s_interval``, and, for chips with a
    price, ``usd_per_million_tokens_interval``. Where the run is at the highest rate within the SLO,
    that rate has an interval too, and the others follow from it.
    """
    first_s, later_s = document["ttft_s"]["p50"], document["tpot_s"]["p50"]
    complete, features = {**document}, deployed.known
    requests, chips = deployed.served.requests, deployed.deployment.profile.chips
    first_token = first_token_interval(model, cluster, chips, first_s, **features)
    complete["interval"] = first_token.document()
    per_token = serving_interval(model, cluster, chips, later_s or 1.0, **features)
    if later_s is not None:
        complete["tpot_interval"] = per_token.document()
    busy, offered = _busiest(document), offered_per_s(requests)
    if {"max_rate_per_s", "concurrency"} & document.keys():  # a faster replica is offered more
        busy, offered = 1.0, math.inf
    if "max_rate_per_s" in document:
        highest = rate_ends(document["max_rate_per_s"], busy, offered, per_token)
        complete["max_rate_per_s_interval"] = highest
    rate = rate_ends(document["tokens_per_s"], busy, offered, per_token)
    complete["tokens_per_s_interval"] = rate
    usd = document.get("usd_per_million_tokens")
    if usd is not None:
        at = usd * document["tokens_per_s"]
        ends = {"low": at / rate["high"], "high": at / rate["low"]}
        complete["usd_per_million_tokens_interval"] = ends
    return complete


def rate_ends(
    tokens_per_s: float, busy: float, offered_per_s: float, ends: Interval
) -> dict[str, float]:
    """Return the ends of the interval of a replica's rate [1/s].

    The replica may be slower or faster than predicted by the factor of an interval of time. If it
    idles between requests, its rate is that of the requests: a slower replica first has less idle
    time. The rate of a replica that is always busy changes by the factor.

    ``tokens_per_s``: predicted rate [1/s]. ``busy``: share of time in which the replica works.
    ``offered_per_s``: rate of output tokens of arriving requests, which no replica exceeds [1/s].
    ``ends``: interval of a time, of which the factor is used.

    >>> ends = Interval(8.0, 12.5)
    >>> rate_ends(100.0, 0.5, 100.0, ends), rate_ends(100.0, 1.0, 500.0, ends)
    ({'low': 100.0, 'high': 100.0}, {'low': 80.0, 'high': 125.0})
    """
    most = max(tokens_per_s, offered_per_s)
    return {
        "low": tokens_per_s / max(1.0, busy * ends.factor),
        "high": min(tokens_per_s * ends.factor, most),
    }


def offered_per_s(requests: Requests) -> float:
    """Return the rate of output tokens of requests over the time in which they arrive [1/s]."""
    span = float(requests.arrival_s[-1] - requests.arrival_s[0])
    return float(requests.output.sum()) / span if span > 0 else float("inf")


def _busiest(document: Mapping[str, Any]) -> float:
    """Share of time in which a replica works, or the busier pool of two."""
    names = ("prefill_utilisation", "decode_utilisation")
    return float(max(document.get(name, document["utilisation"]) for name in names))
