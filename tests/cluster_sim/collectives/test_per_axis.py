"""Rings along one axis after the other equal one schedule of all rings, and the formula."""

from __future__ import annotations

import pytest

from cluster_sim.collectives import CollectiveCall, build, whole
from cluster_sim.collectives.algorithms.per_axis import PER_AXIS, ring_by_ring_ps
from cluster_sim.collectives.results import measure
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster

KINDS = ("all-reduce", "all-gather", "reduce-scatter")


def call_on(shape: str, kind: str, size_bytes: int) -> CollectiveCall:
    return CollectiveCall(kind, whole(cluster(shape, bandwidth="1GB/s", latency="3ns")), size_bytes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["torus:4x3", "torus:3x4x5"])
def test_rings_by_themselves_take_as_long_as_all_in_one_schedule(kind: str, shape: str) -> None:
    call = call_on(shape, kind, 60 * 60 * 1000)
    whole_ps = run(build(call, "per-axis")).total_ps
    assert ring_by_ring_ps(call, communication_costs(call.group.cluster)) == whole_ps


def test_stages_follow_one_another() -> None:
    # Three chips, then four: 2 + 3 steps down and as many up, each of a block and a latency.
    call = call_on("torus:4x3", "all-reduce", 12_000)
    steps = 2 * (2 * (4_000_000 + 3_000) + 3 * (1_000_000 + 3_000))
    assert ring_by_ring_ps(call, communication_costs(call.group.cluster)) == steps


def test_blocks_that_differ_by_a_byte_get_the_larger_size() -> None:
    call = call_on("torus:4x3", "all-reduce", 12_001)
    more = ring_by_ring_ps(call, communication_costs(call.group.cluster)) or 0
    assert run(build(call, "per-axis")).total_ps <= more <= 1.001 * 22_030_000


def test_only_plain_rings_are_run_by_themselves() -> None:
    for name in ("trn2-ultraserver", "trn2.48xlarge"):
        group = whole(cluster(name))
        call = CollectiveCall("all-reduce", group, 2**20)
        assert ring_by_ring_ps(call, communication_costs(group.cluster)) is None


@pytest.mark.slow
def test_a_million_ops_are_counted_as_they_are_run() -> None:
    call = call_on("torus:20x20x20", "all-reduce", 2**30)
    row, _ = measure(call, "per-axis")
    assert row["ops"] == len(build(call, PER_AXIS))
    assert row["steps"] == 6 * 19


def test_messages_that_nobody_watches_are_dropped_and_change_nothing() -> None:
    call = call_on("torus:12x12x12", "all-reduce", 12**3 * 4096)
    seen, trace = measure(call, "per-axis")
    unseen, few = measure(call, "per-axis", watched=False)
    clocks = ("build_s", "simulate_s")
    assert [seen.pop(name) + unseen.pop(name) > 0 for name in clocks]
    assert unseen == seen
    assert len(few) < len(trace) == seen["ops"]
    uneven = call_on("torus:12x12x12", "all-reduce", 12**3 * 4096 + 1)
    assert len(measure(uneven, "per-axis", watched=False)[1]) == len(trace)
