"""Account of the batch tier of a run: requests that arrived, were served, wait or were late."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.economics import Economics
from workloads.fleet.results.timeline import role_server_ms
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.ledger import MS
from workloads.fleet.state.roles import Role

HOUR_MS = 3600 * MS


def batch_document(run: FleetRun, economics: Economics) -> dict[str, Any] | None:
    """Return the account of the batch tier by its keys in the command line's JSON.

    Requests and tokens are exact integers, with ``arrived = served + waiting + late``. Waits last
    from a request's arrival to its answer, by the minute. None for a run without a batch tier.
    """
    queue = run.batch
    if queue is None:
        return None
    # Requests leave in order of arrival: in each minute those from begins to between were served,
    # those from between to ends expired.
    ends = np.cumsum(queue.served + queue.late)
    begins = ends - queue.served - queue.late
    between = begins + queue.served
    before, middle, after = (queue.tokens_before(each) for each in (begins, between, ends))
    served, late = int((middle - before).sum()), int((after - middle).sum())
    arrived = int(queue.tokens.sum())
    minutes = np.arange(len(queue.served)) - queue.arrived_minute((begins + between) / 2)
    price = economics.usd_per_million_tokens * (1 - economics.batch_discount)
    return {
        "deadline_s": queue.deadline_minutes * 60.0,
        "arrived_requests": int(queue.arrivals.sum()),
        "served_requests": int(queue.served.sum()),
        "waiting_requests": int(queue.waiting[-1]),
        "late_requests": int(queue.late.sum()),
        "arrived_tokens": arrived,
        "served_tokens": served,
        "waiting_tokens": arrived - served - late,
        "late_tokens": late,
        "wait_s": _quantiles(minutes * 60.0, queue.served),
        "chip_hours": float(role_server_ms(run)[-1, Role.BATCH]) * run.chips_per_server / HOUR_MS,
        "revenue_usd": served / 1e6 * price if price else None,
    }


def _quantiles(waits_s: Any, served: Any) -> dict[str, float | None]:
    """Median, 99th percentile and largest of waits, each weighted by the requests served."""
    order = np.argsort(waits_s)
    counts = np.cumsum(served[order])
    if not counts[-1]:
        return {"p50": None, "p99": None, "max": None}
    rows = [int(np.searchsorted(counts, share * counts[-1])) for share in (0.5, 0.99, 1.0)]
    values = [float(waits_s[order][row]) for row in rows]
    return dict(zip(("p50", "p99", "max"), values, strict=True))
