"""Collectives on a product of a ring, direct links and switches, as in ASTRA-sim's networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cluster_sim.collectives import (
    KINDS,
    CollectiveCall,
    Group,
    compose,
    lower_bound,
    prove,
    suitable,
)
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Tier, Tiered

GB = 10**9
MIXED = Cluster(
    "mixed",
    Tiered(
        (
            Tier("pod", 3, 25 * GB, 1_000_000, switches=1),
            Tier("board", 2, 50 * GB, 700_000),
            Tier("ring", 4, 200 * GB, 500_000, ring=True),
        )
    ),
    plain=True,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chips", [range(24), (0, 1, 2, 3), (0, 1, 4, 5), (0, 2, 8, 10)],
    ids=["all", "ring", "part of rings", "gaps"],
)  # fmt: skip
def test_every_algorithm_is_proven_and_equal_on_both_engines(
    kind: str, chips: Sequence[int]
) -> None:
    call = CollectiveCall(kind, Group(MIXED, np.array(chips)), 24 * 2**20)
    bound = lower_bound(call).time_ps
    algorithms = suitable(call)
    assert algorithms
    for algorithm in algorithms:
        built = compose(call, algorithm)
        assert prove(built) == "proven", algorithm.name
        fast, reference = (
            run(built.schedule, engine=engine).total_ps for engine in ("fast", "reference")
        )
        assert fast == reference >= bound, algorithm.name


def test_a_ring_of_a_tier_takes_the_time_of_a_ring_alone() -> None:
    """Four chips of one ring use the links of a torus of four, and no others."""
    alone = cluster("ring:4", bandwidth="100GB/s", latency="500ns")
    for kind in ("all-reduce", "all-gather", "reduce-scatter"):
        times = [
            run(
                compose(CollectiveCall(kind, Group(machine, np.arange(4)), 2**22)).schedule
            ).total_ps
            for machine in (MIXED, alone)
        ]
        assert times[0] == times[1], kind
