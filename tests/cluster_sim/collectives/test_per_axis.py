"""Collectives axis by axis: rings after each other or at once, by formula, with barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, compose, prove, whole
from cluster_sim.collectives.algorithms.torus import (
    PER_AXIS,
    TORUS,
    line_by_line_ps,
    ring_by_ring_ps,
)
from cluster_sim.collectives.results import measure
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.names import cluster

KINDS = ("all-reduce", "all-gather", "reduce-scatter")


def call_on(shape: str, kind: str, size_bytes: int) -> CollectiveCall:
    return CollectiveCall(kind, whole(cluster(shape, bandwidth="1GB/s", latency="3ns")), size_bytes)


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from(["torus:4x3", "torus:3x4x5", "torus:5x3x3"]),
    size_bytes=st.one_of(st.just(60 * 60 * 1000), st.integers(0, 200), st.integers(1, 10**9)),
)
def test_rings_by_themselves_take_as_long_as_all_in_one_schedule(
    kind: str, shape: str, size_bytes: int
) -> None:
    """Also where blocks differ by a byte."""
    call = call_on(shape, kind, size_bytes)
    whole_ps = run(compose(call, "per-axis").schedule).total_ps
    assert ring_by_ring_ps(call, communication_costs(call.group.cluster)) == whole_ps


@pytest.mark.parametrize("shape", ["torus:4x6", "torus:5x3x4", "torus:8x3"])
@pytest.mark.parametrize("block_bytes", [1, 60, 1000])
def test_one_line_of_an_exchange_stands_for_all(shape: str, block_bytes: int) -> None:
    ranks = call_on(shape, "all-to-all", 1).ranks
    call = call_on(shape, "all-to-all", block_bytes * ranks)
    costs, schedule = communication_costs(call.group.cluster), compose(call, "per-axis").schedule
    assert ring_by_ring_ps(call, costs) == run(schedule).total_ps
    assert PER_AXIS.streamed_ops(call, costs) == len(schedule)
    uneven = call_on(shape, "all-to-all", block_bytes * ranks + 1)
    assert ring_by_ring_ps(uneven, costs) is None


@pytest.mark.parametrize("shape", ["torus:4x6", "torus:5x3x4", "torus:8x3", "torus:3x4x3x5"])
@pytest.mark.parametrize("latency", ["0ns", "3ns", "1us"])
@pytest.mark.parametrize("block_bytes", [1, 7, 60, 1000])
def test_lines_of_an_exchange_in_all_orders_take_as_long_as_all_messages(
    shape: str, latency: str, block_bytes: int
) -> None:
    """Also where orders have different bytes, and where messages of two orders meet on a link."""
    group = whole(cluster(shape, bandwidth="1GB/s", latency=latency))
    call = CollectiveCall("all-to-all", group, block_bytes * group.ranks)
    costs, schedule = communication_costs(group.cluster), compose(call, "torus").schedule
    assert line_by_line_ps(call, costs) == run(schedule).total_ps
    assert TORUS.streamed_ops(call, costs) == len(schedule)


def test_lines_are_not_run_by_themselves_where_they_differ() -> None:
    even = call_on("torus:4x6", "all-to-all", 24)
    costs = communication_costs(even.group.cluster)
    turned = Group(even.group.cluster, np.arange(24)[::-1])
    others = (
        replace(even, size_bytes=25),
        replace(even, kind="all-gather"),
        replace(even, group=turned),
    )
    assert line_by_line_ps(even, costs) is not None
    assert [line_by_line_ps(call, costs) for call in others] == [None] * 3
    assert [TORUS.streamed_ops(call, costs) for call in others] == [0] * 3


def test_an_exchange_of_65536_chips_runs_few_lines() -> None:
    """Rings of 64, 64 and 16 chips take a rank 1,024, 1,024 and 64 hops, in each of 3 orders."""
    group = whole(cluster("torus:64x64x16", bandwidth="100GB/s", latency="1us"))
    row, few = measure(CollectiveCall("all-to-all", group, 2**32), "torus", watched=False)
    assert row["ops"] == 65536 * (3 * (1024 + 1024 + 64 + 2) + 1)
    assert len(few) < 100_000
    assert row["lower_bound_s"] < row["time_s"] < 2 * row["lower_bound_s"]


def test_stages_follow_one_another() -> None:
    # Three chips, then four: 2 + 3 steps down and as many up, each of a block and a latency.
    call = call_on("torus:4x3", "all-reduce", 12_000)
    steps = 2 * (2 * (4_000_000 + 3_000) + 3 * (1_000_000 + 3_000))
    assert ring_by_ring_ps(call, communication_costs(call.group.cluster)) == steps


def test_only_plain_rings_are_run_by_themselves() -> None:
    for name in ("trn2-ultraserver", "trn2.48xlarge"):
        group = whole(cluster(name))
        call = CollectiveCall("all-reduce", group, 2**20)
        assert ring_by_ring_ps(call, communication_costs(group.cluster)) is None


@pytest.mark.slow
def test_a_million_ops_are_counted_as_they_are_run() -> None:
    call = call_on("torus:20x20x20", "all-reduce", 2**30)
    row, _ = measure(call, "per-axis")
    assert row["ops"] == len(compose(call, PER_AXIS).schedule)
    assert row["steps"] == 6 * 19


@pytest.mark.parametrize("size_bytes", [12**3 * 4096, 12**3 * 4096 + 1])
def test_messages_that_nobody_watches_are_dropped_and_change_nothing(size_bytes: int) -> None:
    call = call_on("torus:12x12x12", "all-reduce", size_bytes)
    seen, trace = measure(call, "per-axis")
    unseen, few = measure(call, "per-axis", watched=False)
    clocks = ("build_s", "simulate_s")
    assert [seen.pop(name) + unseen.pop(name) > 0 for name in clocks]
    assert unseen == seen
    assert len(few) < len(trace) == seen["ops"]


LATENCY_PS, PS_PER_BYTE = 10**6, 10
GROUP = whole(cluster("torus:4x4", bandwidth="100GB/s", latency="1us"))
WITH_BARRIERS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_ring_per_axis_takes_the_sum_of_its_rings(engine):
    size = 2**20
    rings = sum(3 * (LATENCY_PS + size // parts * PS_PER_BYTE) for parts in (4, 16))
    call = CollectiveCall("all-reduce", GROUP, size)
    assert run(compose(call, "per-axis").schedule, engine=engine).total_ps == 2 * rings


@pytest.mark.parametrize("kind", WITH_BARRIERS)
@pytest.mark.parametrize("text", ["torus:4x4", "torus:3x2x2"])
def test_every_operation_is_proven(kind, text):
    group = whole(cluster(text, bandwidth="100GB/s", latency="1us"))
    assert prove(compose(CollectiveCall(kind, group, 10**5 + 7), "per-axis")) == "proven"


@pytest.mark.parametrize("kind", WITH_BARRIERS)
def test_nobody_begins_an_axis_before_all_have_ended_the_one_before(kind):
    group = whole(cluster("trn2.48xlarge"))
    built = compose(CollectiveCall(kind, group, 10**6 + 1), "per-axis")
    trace = run(built.schedule)
    rounds = 1 if kind == "all-to-all" else 3
    stage = np.asarray(built.schedule.labels["step"]) // rounds
    what = np.array(list(built.schedule.labels["what"]))
    moves = np.isin(what, ("issue", "pass", "copy", "reduce"))
    for number in range(1, int(stage.max()) + 1):
        before, after = (moves & (stage == one) for one in (number - 1, number))
        assert trace.times.start_ps[after].min() >= trace.times.end_ps[before].max()
