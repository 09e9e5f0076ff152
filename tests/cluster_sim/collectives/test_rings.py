"""Rings by some rounds at a time, or by clocks of links: times and ops of the whole schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, builder, whole
from cluster_sim.collectives.algorithms import ring
from cluster_sim.collectives.algorithms.cycles import all_rings, one_ring
from cluster_sim.collectives.algorithms.registry import ALGORITHMS
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import RING_KINDS
from cluster_sim.collectives.duration import duration
from cluster_sim.collectives.few_ranks import schedule_of_few
from cluster_sim.collectives.results import measure
from cluster_sim.engine.repeats import simulate_rounds
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.schedule.repeats import rounds_written_out
from cluster_sim.trace.trace import run
from tests.support.collective_cases import named
from tests.support.examples import examples
from tests.support.written_rules import check_rounds
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.front import collective_time

RINGS = {"ring": one_ring, "multi-ring": all_rings}
MACHINES = (
    ("trn2.48xlarge", 16, 1),
    ("trn2.48xlarge", 4, 4),  # memory limits the messages, which are flows
    ("trn1.32xlarge", 4, 2),
    ("mesh:5", 5, 1),
    ("switch:4", 4, 1),  # each message crosses two links
    ("torus:3x4", 12, 1),
)
"""Name, chips and ranks per chip."""


@pytest.mark.parametrize("kind", RING_KINDS)
@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize(("machine", "chips", "cores"), MACHINES)
def test_rounds_of_a_ring_have_the_time_of_all_messages(machine, chips, cores, name, kind):
    group = Group(named(machine), range(chips), cores)
    costs = communication_costs(group.cluster)
    for size_bytes in (0, 1, group.ranks << 20, 10**7 + 3):  # even and uneven parts
        call = CollectiveCall(kind, group, size_bytes)
        rounds = ring.in_rounds(call, costs, RINGS[name](group))
        assert rounds is not None
        check_rounds(rounds)
        schedule = compose(call, name).schedule
        assert rounds.all_ops == len(schedule) == ALGORITHMS[name].streamed_ops(call, costs)
        for window in (2, None):
            assert simulate_rounds(rounds, window=window) == run(schedule).total_ps


@examples(60)
@given(
    machine=st.sampled_from(MACHINES), name=st.sampled_from(sorted(RINGS)),
    kind=st.sampled_from(RING_KINDS),
    size_bytes=st.one_of(st.integers(0, 300), st.integers(1, 10**9)), slices=st.integers(1, 4),
)  # fmt: skip
def test_rounds_written_out_are_the_ops_that_an_algorithm_builds(
    machine, name, kind, size_bytes, slices
):
    """Op by op, also where blocks differ by a byte or some are empty."""
    group = Group(named(machine[0]), range(machine[1]), machine[2])
    call = CollectiveCall(kind, group, size_bytes)
    costs = replace(communication_costs(group.cluster), slices=slices)
    rounds = ring.in_rounds(call, costs, RINGS[name](group))
    assert rounds is not None
    messages = ALGORITHMS[name].messages(call, costs)
    built = schedule_of_few(messages, group.cluster, group.chip_of_rank, costs)
    ops, edges = rounds_written_out(rounds), built.edges
    for column in ("kind", "resource", "duration_ps", "size_bytes", "priority"):
        assert np.array_equal(getattr(ops, column), getattr(built, column)), column
    for column in ("ptr", "dst", "lag_ps"):
        assert np.array_equal(getattr(ops.edges, column), getattr(edges, column)), column
    assert np.array_equal(ops.edges.start_mask(), edges.start_mask())
    for column in ("op", "cap_bytes_per_s", "ptr", "resource", "weight"):
        assert np.array_equal(getattr(ops.flows, column), getattr(built.flows, column)), column
    assert simulate_rounds(rounds) == run(built).total_ps


@pytest.mark.parametrize(("machine", "kind", "size_bytes"), [
    ("trn2.48xlarge", "broadcast", 1 << 20),
    ("trn2.48xlarge:2", "all-reduce", 1 << 20),  # two domains
    ("ring:2", "all-reduce", 2 << 20),
])  # fmt: skip
def test_rounds_that_are_not_alike_are_not_repeated(machine, kind, size_bytes):
    call = CollectiveCall(kind, whole(named(machine)), size_bytes)
    costs = communication_costs(call.group.cluster)
    assert ring.in_rounds(call, costs, one_ring(call.group)) is None
    assert ALGORITHMS["ring"].streamed_ops(call, costs) == 0


def test_a_ring_of_many_messages_stands_for_its_schedule(monkeypatch):
    """Each chip issues messages, so that clocks of links are not enough."""
    group = Group(named("trn2.48xlarge"), np.arange(16), 4)
    call = CollectiveCall("all-reduce", group, 1 << 24)
    costs, algorithm = communication_costs(group.cluster), ALGORITHMS["multi-ring"]
    assert algorithm.stands_for(call, costs) is None
    monkeypatch.setattr(ring, "ROUNDS_FROM", 1000)
    assert algorithm.stands_for(call, costs) == run(compose(call, algorithm).schedule).total_ps


@pytest.mark.parametrize("shape", ["ring:300", "mesh:300"])
def test_whoever_looks_at_no_message_gets_the_same_row_without_a_schedule(shape):
    chips = whole(cluster(shape, bandwidth="100GB/s", latency="1us"))
    call = CollectiveCall("all-reduce", chips, 10**6 + 7)
    watched, trace = measure(call, "ring")
    row, short = measure(call, "ring", watched=False)
    assert (len(trace) > 2 * 299 * 300, len(short)) == (True, 302)
    clocks = dict.fromkeys(("build_s", "simulate_s"))
    assert row | clocks == watched | clocks


@pytest.mark.parametrize("kind", RING_KINDS)
@pytest.mark.parametrize("size_bytes", [2**22, 2**28])
def test_a_ring_of_two_periods_has_the_time_of_the_whole_ring(kind, size_bytes):
    """Two ranks of each server lie in alternate halves of it, so that no server stands for all."""
    servers = cluster("trn2.48xlarge:192")
    costs = communication_costs(servers)
    # A ring that ends within a period has one more hop over the highest switch in a row of hops.
    for ranks, most_ps in ((64, 0), (96, 0), (84, servers.scale_out.climb_ps[-1])):
        chips = (24 * np.arange(ranks)[:, None] + [0, 3]).ravel()
        call = CollectiveCall(kind, Group(servers, chips), size_bytes)
        few = ring._with_all_hops(call.group)
        assert len(few) == 32
        rings = (few, call.group.chip_of_rank)
        few_ps, whole_ps = (ring._few_rounds_ps(call, costs, servers, x, call.ranks) for x in rings)
        assert abs(few_ps - whole_ps) <= most_ps
    chips = np.array([*range(0, 1024, 16), 1025])  # which do not repeat
    group = Group(cluster("trn2.48xlarge:128"), chips)
    assert ring._with_all_hops(group).tolist() == chips.tolist()


def test_rings_that_would_run_for_hours_are_refused_before_they_are_built():
    machine = cluster("clos:65536:64", bandwidth="100GB/s", latency="1us")
    with pytest.raises(InputError, match=r"65,536 ranks is 1\.7e\+10 messages.*Use fewer ranks or"):
        collective_time("all-reduce", machine, size_bytes="1GiB")


CLOCKED = ("ring", "bidirectional-ring", "multi-ring")
PLAIN = ("ring:2", "ring:5", "torus:3x5", "torus:4x4x4", "torus:2x4")


def plain(name, bandwidth="100GB/s"):
    return cluster(name, bandwidth=bandwidth, latency="1us")


@pytest.mark.parametrize("name", PLAIN)
def test_clocks_of_links_are_the_run_of_every_message(name):
    answered, machine = 0, plain(name)
    for algorithm in CLOCKED:
        for kind in RING_KINDS:
            for size_bytes in (10**6 + 3, 2**20, 3, 0):
                call = CollectiveCall(kind, whole(machine), size_bytes)
                clocked = ALGORITHMS[algorithm].stands_for(call, communication_costs(machine))
                if clocked is not None:
                    answered += 1
                    assert clocked == run(compose(call, algorithm).schedule).total_ps
    assert answered >= 24  # a single ring and its reverse share no link on any of these


@examples(25)
@given(
    size_bytes=st.one_of(st.integers(0, 200), st.integers(1, 10**7)), slices=st.integers(1, 4),
    latency=st.sampled_from(["1ns", "1us", "20us"]), kind=st.sampled_from(RING_KINDS),
    algorithm=st.sampled_from(CLOCKED),
)  # fmt: skip
def test_slices_follow_one_another_on_their_links(size_bytes, slices, latency, kind, algorithm):
    machine = cluster("torus:4x4", bandwidth="100GB/s", latency=latency)
    call = CollectiveCall(kind, whole(machine), size_bytes)
    costs = replace(communication_costs(machine), slices=slices)
    clocked = ALGORITHMS[algorithm].stands_for(call, costs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(builder, "communication_costs", lambda *_, **__: costs)
        assert clocked == run(compose(call, algorithm).schedule).total_ps


def test_a_pod_of_a_torus_is_timed_without_a_schedule(monkeypatch):
    pod = cluster("tpu-v6e-pod")
    group = Group(pod, np.arange(pod.chips_per_domain))
    call = CollectiveCall("all-gather", group, 5 * 10**7 + 7)
    built = []

    def counted(call, *how, **more):
        built.append(call)
        return compose(call, *how, **more)

    monkeypatch.setattr(duration, "compose", counted)
    time_ps = duration.duration_ps(call, "multi-ring")
    assert built == []
    assert time_ps == run(compose(call, "multi-ring").schedule).total_ps


@pytest.mark.parametrize(("name", "why"), [
    ("trn2.48xlarge", "CC-Cores issue each message"),
    ("mesh:8", "no torus"),
    ("ring:1", "nothing is sent"),
])  # fmt: skip
def test_what_shares_more_than_links_is_run(name, why):
    machine = cluster(name) if "." in name else plain(name)
    call = CollectiveCall("all-reduce", whole(machine), 2**20)
    assert ALGORITHMS["ring"].stands_for(call, communication_costs(machine)) is None, why


def test_a_run_that_would_pass_the_horizon_is_left_to_the_engine():
    call = CollectiveCall("all-reduce", whole(plain("ring:64", "1B/s")), 64 * 2 * 10**6)
    assert ALGORITHMS["ring"].stands_for(call, communication_costs(call.group.cluster)) is None
    with pytest.raises(InputError, match="horizon"):
        duration.duration_ps(call, "ring")
