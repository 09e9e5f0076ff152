"""Collectives axis by axis: rings after each other or at once, by formula, with barriers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, compose, measure, whole
from cluster_sim.collectives.algorithms.torus import (
    PER_AXIS,
    TORUS,
    line_by_line_ps,
    ring_by_ring_ps,
)
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.names import cluster

KINDS = ("all-reduce", "all-gather", "reduce-scatter")


def call_on(shape: str, kind: str, size_bytes: int, latency: str = "3ns") -> CollectiveCall:
    machine = cluster(shape, bandwidth="1GB/s", latency=latency)
    return CollectiveCall(kind, whole(machine), size_bytes)


def costs_of(call: CollectiveCall):
    return communication_costs(call.group.cluster)


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from(["torus:4x3", "torus:3x4x5", "torus:5x3x3"]),
    size_bytes=st.one_of(st.just(60 * 60 * 1000), st.integers(0, 200), st.integers(1, 10**9)),
)
def test_rings_by_themselves_take_as_long_as_all_in_one_schedule(kind, shape, size_bytes):
    """Also where blocks differ by a byte."""
    call = call_on(shape, kind, size_bytes)
    whole_ps = run(compose(call, "per-axis").schedule).total_ps
    assert ring_by_ring_ps(call, costs_of(call)) == whole_ps


def test_stages_follow_one_another():
    # Three chips, then four: 2 + 3 steps down and as many up, each of a block and a latency.
    call = call_on("torus:4x3", "all-reduce", 12_000)
    steps = 2 * (2 * (4_000_000 + 3_000) + 3 * (1_000_000 + 3_000))
    assert ring_by_ring_ps(call, costs_of(call)) == steps


@pytest.mark.parametrize("shape", ["torus:4x6", "torus:5x3x4"])
@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_one_line_of_an_exchange_stands_for_all(shape, block_bytes):
    ranks = call_on(shape, "all-to-all", 1).ranks
    call = call_on(shape, "all-to-all", block_bytes * ranks)
    costs, schedule = costs_of(call), compose(call, "per-axis").schedule
    assert ring_by_ring_ps(call, costs) == run(schedule).total_ps
    assert PER_AXIS.streamed_ops(call, costs) == len(schedule)
    assert ring_by_ring_ps(replace(call, size_bytes=block_bytes * ranks + 1), costs) is None


@pytest.mark.parametrize("shape", ["torus:4x6", "torus:5x3x4", "torus:3x4x3x5"])
@pytest.mark.parametrize(
    ("latency", "block_bytes"), [("0ns", 7), ("3ns", 1), ("3ns", 60), ("1us", 1000)]
)
def test_lines_of_an_exchange_in_all_orders_take_as_long_as_messages(shape, latency, block_bytes):
    """Also where orders have different bytes, and where messages of two orders meet on a link."""
    ranks = call_on(shape, "all-to-all", 1).ranks
    call = call_on(shape, "all-to-all", block_bytes * ranks, latency)
    costs, schedule = costs_of(call), compose(call, "torus").schedule
    assert line_by_line_ps(call, costs) == run(schedule).total_ps
    assert TORUS.streamed_ops(call, costs) == len(schedule)


def test_lines_are_not_run_by_themselves_where_they_differ():
    even = call_on("torus:4x6", "all-to-all", 24)
    costs = costs_of(even)
    turned = Group(even.group.cluster, np.arange(24)[::-1])
    changes = ({"size_bytes": 25}, {"kind": "all-gather"}, {"group": turned})
    others = [replace(even, **change) for change in changes]
    assert line_by_line_ps(even, costs) is not None
    assert [line_by_line_ps(call, costs) for call in others] == [None] * 3
    assert [TORUS.streamed_ops(call, costs) for call in others] == [0] * 3
    for name in ("trn2-ultraserver", "trn2.48xlarge"):  # rings that are not plain
        call = CollectiveCall("all-reduce", whole(cluster(name)), 2**20)
        assert ring_by_ring_ps(call, costs_of(call)) is None


def test_an_exchange_of_8192_chips_runs_few_lines():
    """Rings of 32, 32 and 8 chips take a rank 256, 256 and 16 hops, in each of 3 orders."""
    group = whole(cluster("torus:32x32x8", bandwidth="100GB/s", latency="1us"))
    row, few = measure(CollectiveCall("all-to-all", group, 2**29), "torus", watched=False)
    assert row["ops"] == 8192 * (3 * (256 + 256 + 16 + 2) + 1)
    assert len(few) < 20_000
    assert row["lower_bound_s"] < row["time_s"] < 2 * row["lower_bound_s"]


@pytest.mark.parametrize("size_bytes", [12**3 * 4096, 12**3 * 4096 + 1])
def test_messages_that_nobody_watches_are_dropped_and_change_nothing(size_bytes):
    call = call_on("torus:12x12x12", "all-reduce", size_bytes)
    seen, trace = measure(call, "per-axis")
    unseen, few = measure(call, "per-axis", watched=False)
    clocks = dict.fromkeys(("build_s", "simulate_s"))
    assert unseen.keys() == seen.keys() > clocks.keys()
    assert unseen | clocks == seen | clocks
    assert len(few) < len(trace) == seen["ops"]


@pytest.mark.parametrize("kind", [*KINDS, "all-to-all"])
def test_nobody_begins_an_axis_before_all_have_ended_the_one_before(kind):
    built = compose(CollectiveCall(kind, whole(cluster("trn2.48xlarge")), 10**6 + 1), "per-axis")
    trace = run(built.schedule)
    rounds = 1 if kind == "all-to-all" else 3
    stage = np.asarray(built.schedule.labels["step"]) // rounds
    what = np.array(list(built.schedule.labels["what"]))
    moves = np.isin(what, ("issue", "pass", "copy", "reduce"))
    for number in range(1, int(stage.max()) + 1):
        before, after = (moves & (stage == one) for one in (number - 1, number))
        assert trace.times.start_ps[after].min() >= trace.times.end_ps[before].max()
