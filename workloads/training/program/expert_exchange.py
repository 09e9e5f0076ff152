"""All-to-alls between experts that send a token once to each server, which distributes it there.

A token whose experts lie on few servers crosses the network once for each of them and reaches the
ranks of its experts there by the server's own links, while further tokens arrive (DeepSeek-V3,
arXiv 2412.19437, section 3.2.2). Results come back the same way, summed on each server.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.expert_library import visited
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan


def routed_ps(
    group: Group,
    nodes: int,
    per_token: int,
    size_bytes: int,
    *,
    at: int = 0,
    timed: Callable[[CollectiveCall], int] = duration_ps,
) -> int:
    """Time of an all-to-all that sends each token once to each server [ps].

    It is the longer one of two all-to-alls that run at once: of tokens over the network, between
    ranks at the same place on their servers, and of copies over the links within a server.

    ``size_bytes``: size of the copies of a rank's tokens, one for each of their experts [B].
    ``at``: place in the group of the chip whose peers and neighbours are timed; by default all are
    alike. ``timed``: returns the time of a call [ps].
    """
    cluster, chips = group.cluster, np.asarray(group.chips)
    server, place = np.divmod(chips, cluster.chips_per_domain)
    peers, near = chips[place == place[at]], chips[server == server[at]]
    crossing = round(visited(nodes, per_token) * size_bytes / per_token)
    calls = ((peers, crossing), (near, size_bytes))
    return max(
        timed(CollectiveCall("all-to-all", Group(cluster, ranks, group.ranks_per_chip), size))
        for ranks, size in calls
        if len(ranks) > 1
    )


def routing_mistake(plan: ParallelPlan, cluster: Cluster, chips: IntArray | None = None) -> str:
    """Return the reason why experts cannot be reached by one copy a server; empty if they can."""
    if not plan.routed_nodes:
        return ""
    placed = place(plan, cluster, chips)
    limit = f"routed nodes {plan.routed_nodes} limits the servers of a token's experts"
    for ranks in placed.groups("ep"):
        server, spot = np.divmod(placed.chip[ranks], cluster.chips_per_domain)
        servers, spots = len(np.unique(server)), len(np.unique(spot))
        if servers == 1:
            return f"{limit}, but ep {plan.ep} lies within one. Use --routed-nodes 0."
        if plan.routed_nodes > servers:
            return f"{limit}, but ep {plan.ep} lies on {servers}. Use at most {servers}."
        if spots * servers * plan.ranks_per_chip != len(ranks):
            return (
                f"{limit}, which must have the same chips of each, but ep {plan.ep} does not fill "
                f"{servers} servers alike. Use another --ep or --routed-nodes 0."
            )
    return ""
