"""Clocks of links in place of messages: the run's picoseconds, and cases that they do not cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, whole
from cluster_sim.collectives.algorithms.registry import ALGORITHMS
from cluster_sim.collectives.algorithms.ring import last_end_ps
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import RING_KINDS
from cluster_sim.collectives.duration import duration
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError

RINGS = ("ring", "bidirectional-ring", "multi-ring")
PLAIN = ("ring:2", "ring:5", "torus:3x5", "torus:4x4x4", "torus:2x4")


def plain(name: str, bandwidth: str = "100GB/s") -> Cluster:
    return cluster(name, bandwidth=bandwidth, latency="1us")


@pytest.mark.parametrize("name", PLAIN)
def test_clocks_of_links_are_the_run_of_every_message(name: str) -> None:
    answered = 0
    for algorithm in RINGS:
        for kind in RING_KINDS:
            for size_bytes in (10**6 + 3, 2**20, 3, 0):
                call = CollectiveCall(kind, whole(plain(name)), size_bytes)
                clocked = ALGORITHMS[algorithm].stands_for(
                    call, communication_costs(call.group.cluster)
                )
                if clocked is not None:
                    answered += 1
                    schedule = compose(call, algorithm).schedule
                    assert clocked == run(schedule).total_ps
    assert answered >= 24  # a single ring and its reverse share no link on any of these


@examples(25)
@given(
    size_bytes=st.one_of(st.integers(0, 200), st.integers(1, 10**7)),
    slices=st.integers(1, 4),
    latency=st.sampled_from(["1ns", "1us", "20us"]),
    kind=st.sampled_from(RING_KINDS),
    algorithm=st.sampled_from(RINGS),
)
def test_slices_follow_one_another_on_their_links(
    size_bytes: int, slices: int, latency: str, kind: str, algorithm: str
) -> None:
    machine = cluster("torus:4x4", bandwidth="100GB/s", latency=latency)
    call = CollectiveCall(kind, whole(machine), size_bytes)
    costs = replace(communication_costs(machine), slices=slices)
    clocked = ALGORITHMS[algorithm].stands_for(call, costs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "cluster_sim.collectives.builder.communication_costs", lambda *_, **__: costs
        )
        whole_ps = run(compose(call, algorithm).schedule).total_ps
    assert clocked == whole_ps


def test_a_pod_of_a_torus_is_timed_without_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = cluster("tpu-v6e-pod")
    group = Group(pod, np.arange(pod.chips_per_domain))
    call = CollectiveCall("all-gather", group, 5 * 10**7 + 7)
    built: list[CollectiveCall] = []

    def counted(call: CollectiveCall, *how: object, **more: object) -> object:
        built.append(call)
        return compose(call, *how, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(duration, "compose", counted)
    time_ps = duration.duration_ps(call, "multi-ring")
    assert built == []
    assert time_ps == run(compose(call, "multi-ring").schedule).total_ps


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("trn2.48xlarge", "CC-Cores issue each message"),
        ("mesh:8", "no torus"),
        ("ring:1", "nothing is sent"),
    ],
)
def test_what_shares_more_than_links_is_run(name: str, why: str) -> None:
    machine = cluster(name) if "." in name else plain(name)
    call = CollectiveCall("all-reduce", whole(machine), 2**20)
    assert ALGORITHMS["ring"].stands_for(call, communication_costs(machine)) is None, why


def test_a_run_that_would_pass_the_horizon_is_left_to_the_engine() -> None:
    call = CollectiveCall("all-reduce", whole(plain("ring:64", "1B/s")), 64 * 2 * 10**6)
    assert ALGORITHMS["ring"].stands_for(call, communication_costs(call.group.cluster)) is None
    with pytest.raises(InputError, match="horizon"):
        duration.duration_ps(call, "ring")


@examples(30)
@given(
    st.integers(1, 4).flatmap(
        lambda blocks: st.lists(
            st.lists(st.sampled_from([0, 0, 1, 5, 30]), min_size=blocks, max_size=blocks),
            min_size=1,
            max_size=3,
        )
    ),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_a_link_carries_one_block_after_the_other(
    wire_ps: list[list[int]], latency_ps: int, rounds: int
) -> None:
    """Block b crosses link b + round; an empty one waits for no link."""
    blocks = len(wire_ps[0])
    free, arrived = [0] * blocks, [[0] * blocks for _ in wire_ps]
    for number in range(rounds):
        for at, wires in zip(arrived, wire_ps, strict=True):
            for block, wire in enumerate(wires):
                link = (block + number) % blocks
                if wire:
                    at[block] = free[link] = max(at[block], free[link]) + wire
                at[block] += latency_ps
    assert last_end_ps(np.array([wire_ps]), latency_ps, rounds) == max(map(max, arrived))
