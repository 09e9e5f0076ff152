"""The highest rate of requests that replicas serve under an SLO, and what binds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from workloads.serving.deployment import Deployed, Deployment
from workloads.serving.requests import Lengths, Requests, poisson
from workloads.serving.served import Slo, SloMissed, attained, attained_alone

LEAST, MOST = 0.05, 0.99  # rates between which the search goes, over the saturated rate
NEAR = 1.01  # ratio of a rate that misses the SLO to one that keeps it at which the search ends
BEYOND = 1.05  # rate at which the binding cause is looked for, over the highest one
FREED = 2  # factor on the memory of the cache, or on the slots, that shows whether it binds
FILLS = 16  # least number of times that the requests of a run fill all slots that decode


@dataclass(frozen=True, eq=False)
class Offered:
    """Requests that are offered to replicas at any rate, as a Poisson process."""

    deployment: Deployment
    lengths: Lengths  # lengths that are drawn
    count: int  # number of requests of each run
    seed: int = 0  # seed of arrivals, lengths and accepted proposals, the same at all rates
    # Returns them with the tokens that a prefix cache holds
    cached: Callable[[Requests], Requests] = field(default=lambda requests: requests)
    demand_per_s: float | None = None  # rate for which replicas are counted [1/s]

    def requests(self, rate_per_s: float) -> Requests:
        """Draw the requests at a rate; all arrive at once where it is infinite."""
        rng = np.random.default_rng(self.seed)
        return self.cached(poisson(rate_per_s, self.count, self.lengths, rng))

    def run(self, rate_per_s: float) -> Deployed:
        """Serve the requests at a rate."""
        return self.deployment.run(self.requests(rate_per_s), self.seed)

    def share(self, rate_per_s: float, slo: Slo) -> float:
        """Return the share of the requests that keep the SLO at a rate."""
        return float(attained(self.run(rate_per_s).served, slo).mean())

    @cached_property
    def saturated_per_s(self) -> float:
        """Requests per second that are finished when some always wait [1/s].

        The first and last fifth of the completions are left out: the batch fills and empties there.
        """
        prompt, output = self.lengths.draw(self.count, np.random.default_rng(self.seed))
        requests = Requests(np.zeros(self.count), prompt, output)
        ends = np.sort(self.deployment.run(self.cached(requests), self.seed).served.end_s)
        first, last = self.count // 5, self.count - self.count // 5 - 1
        if not ends[last] > ends[first]:  # one batch of equal requests, which end together
            return float(self.count / ends[last])
        return float((last - first) / (ends[last] - ends[first]))

    def freed(self) -> Iterator[tuple[str, Offered]]:
        """Yield the same replicas with more memory for the cache, and with more slots."""
        deployment, batching = self.deployment, self.deployment.batching
        profile = deployment.profile
        roomy = replace(profile, kv_budget_bytes=FREED * profile.kv_budget_bytes)
        yield "memory", replace(self, deployment=replace(deployment, profile=roomy))
        most = batching.chunk_tokens - 1 if batching.chunk_tokens else FREED * batching.slots
        slots = max(batching.slots, min(FREED * batching.slots, most))
        wide = replace(deployment, batching=replace(batching, slots=slots))
        yield "slots", replace(self, deployment=wide)


def highest_rate(offered: Offered, slo: Slo, *, above_per_s: float = 0.0) -> float:
    """Return the highest rate at which a run keeps the SLO, to one per cent [1/s]."""
    kept = LEAST * offered.saturated_per_s
    missed = MOST * offered.saturated_per_s
    if above_per_s > kept:
        if above_per_s >= missed or offered.share(above_per_s, slo) < slo.share:
            return 0.0
        kept = above_per_s
    elif (share := offered.share(kept, slo)) < slo.share:
        alone = attained_alone(offered.run(kept).served, slo)
        raise SloMissed(offered.deployment.profile.name, slo, share, alone)
    if offered.share(missed, slo) >= slo.share:
        return missed
    return narrowed(offered, slo, kept, missed)[0]


def narrowed(offered: Offered, slo: Slo, kept: float, missed: float) -> tuple[float, float]:
    """Return rates one per cent apart, of which the lower one keeps the SLO, by bisection [1/s]."""
    while missed > NEAR * kept:
        middle = (kept + missed) / 2
        if offered.share(middle, slo) >= slo.share:
            kept = middle
        else:
            missed = middle
    return kept, missed


def at_highest_rate(offered: Offered, slo: Slo, *, least: int | None = None) -> Deployed:
    """Return what replicas serve at the highest rate that keeps an SLO.

    ``least``: number of requests to begin with, where fewer than those offered may be enough to
    fill the slots that are in use at the highest rate.
    """
    enough = min(least or offered.count, offered.count)
    while True:
        tried = replace(offered, count=enough)
        rate = highest_rate(tried, slo)
        deployed = tried.run(rate)
        served = deployed.served
        # By Little's law, the requests that are served at once.
        at_once = rate * float(np.mean(served.end_s - served.requests.arrival_s))
        enough = min(math.ceil(FILLS * at_once), offered.count)
        if enough <= tried.count:
            return at_rate(tried, slo, rate, deployed)


def at_rate(offered: Offered, slo: Slo, rate_per_s: float, deployed: Deployed) -> Deployed:
    """Return an outcome at the highest rate with what binds and the rate to be served."""
    binds = what_binds(offered, slo, rate_per_s)
    return replace(deployed, rate_per_s=rate_per_s, binds=binds, demand_per_s=offered.demand_per_s)


def what_binds(offered: Offered, slo: Slo, rate_per_s: float) -> str:
    """Return what keeps replicas from a higher rate than the highest one.

    It is ``memory`` or ``slots`` where twice as much would allow a rate 5 % higher, else the limit
    that more requests miss at that rate, ``TTFT`` or ``TPOT``. Where few miss any, the replicas
    are always busy: ``throughput``.
    """
    beyond = BEYOND * rate_per_s
    served = offered.run(beyond).served
    late = float(np.mean(served.ttft_s > slo.ttft_s))
    slow = float(np.mean(np.nan_to_num(served.tpot_s, nan=0.0) > slo.tpot_s))
    saturated = late + slow <= 1 - slo.share
    for name, freed in offered.freed():
        enough = freed.saturated_per_s >= BEYOND * offered.saturated_per_s
        if enough if saturated else freed.share(beyond, slo) >= slo.share:
            return name
    if saturated:
        return "throughput"
    return "TTFT" if late >= slow else "TPOT"
