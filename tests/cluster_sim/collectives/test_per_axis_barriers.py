"""Collectives axis by axis with barriers: closed forms, proofs, and no rank ahead of the others."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, compose, prove, whole
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster

LATENCY_PS, PS_PER_BYTE = 10**6, 10
GROUP = whole(cluster("torus:4x4", bandwidth="100GB/s", latency="1us"))
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_ring_per_axis_takes_the_sum_of_its_rings(engine):
    size = 2**20
    rings = sum(3 * (LATENCY_PS + size // parts * PS_PER_BYTE) for parts in (4, 16))
    call = CollectiveCall("all-reduce", GROUP, size)
    assert run(compose(call, "per-axis").schedule, engine=engine).total_ps == 2 * rings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["torus:4x4", "torus:3x2x2"])
def test_every_operation_is_proven(kind, text):
    group = whole(cluster(text, bandwidth="100GB/s", latency="1us"))
    assert prove(compose(CollectiveCall(kind, group, 10**5 + 7), "per-axis")) == "proven"


@pytest.mark.parametrize("kind", KINDS)
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
