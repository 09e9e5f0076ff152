"""Collectives of Trainium: measured times, choices of the runtime, handshakes, shares of DMA."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, compose, duration_ps, prove, whole
from cluster_sim.collectives.algorithms.cycles import all_rings
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, choose_algorithm
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.messages import side_by_side
from cluster_sim.hardware.communication_costs import DMA_SHARES, communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.trace.trace import run
from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Axis, Torus
from topologies.shapes.measures import scale_up_bytes_per_s
from workloads.front import collective_time

KIB, MIB, GIB = 2**10, 2**20, 2**30
EIGHT_RANKS = (0, 1, 4, 5)
"""Chips of eight ranks, joined in a ring of four."""
TRN1, TRN2 = "trn1.32xlarge", "trn2.48xlarge"


@pytest.mark.parametrize(("machine", "chips", "cores", "op", "size", "measured_us", "within"), [
    (TRN1, range(1), 2, "all-reduce", KIB, 2.1, 0.02),
    (TRN1, range(8), 2, "all-reduce", KIB, 7.1, 0.03),
    (TRN1, range(16), 2, "all-reduce", KIB, 9.1, 0.01),
    (TRN2, range(16), 4, "all-reduce", KIB, 17.5, 0.03),
    (TRN2, range(1), 4, "all-reduce", 4 * KIB, 10.3, 0.35),  # a profiler saw 6.7 to 13.9
    (TRN1, EIGHT_RANKS, 2, "all-reduce", 2 * MIB, 86.8, 0.1),
    (TRN1, range(8), 2, "all-reduce", 8 * MIB, 252.8, 0.1),
    (TRN1, range(16), 2, "all-reduce", 16 * MIB, 391.6, 0.1),
    (TRN2, range(16), 4, "all-reduce", 2 * MIB, 80.7, 0.1),
    (TRN2, range(16), 4, "all-gather", 2 * MIB, 34.6, 0.1),
    (TRN2, range(16), 4, "reduce-scatter", 2 * MIB, 45.0, 0.1),
    # Ranks of one chip, bound by its DMA engines; of two chips; of a server, bound by memory.
    (TRN1, range(1), 2, "all-reduce", GIB, 18930, 0.01),
    (TRN2, range(1), 4, "all-gather", GIB, 6437, 0.06),
    (TRN2, range(1), 4, "all-reduce", GIB, 15038, 0.06),
    (TRN2, range(1), 4, "reduce-scatter", GIB, 7918, 0.06),
    (TRN2, range(1), 4, "all-to-all", GIB, 14858, 0.06),
    (TRN2, range(2), 4, "all-gather", 4 * GIB, 43446, 0.06),
    (TRN2, range(16), 4, "all-gather", 2 * GIB, 5860, 0.2),
    (TRN2, range(16), 4, "reduce-scatter", 2 * GIB, 7740, 0.2),
    (TRN2, range(16), 4, "all-reduce", 2 * GIB, 13280, 0.2),
])  # fmt: skip
def test_times_are_those_measured(machine, chips, cores, op, size, measured_us, within):
    group = Group(cluster(machine), chips, cores)
    us = duration_ps(CollectiveCall(op, group, size)) / 1e6
    assert us == pytest.approx(measured_us, rel=within)


FOUR = "trn2-ultraserver:4"


@pytest.mark.parametrize(("machine", "chips", "cores", "size", "expected"), [
    (TRN2, range(16), 1, 1000, "single-step-mesh"),
    (TRN2, range(16), 1, 500_000, "mesh"),
    (TRN2, range(16), 1, 2 * 10**6, "rdh"),
    (TRN2, range(16), 1, 60 * 10**6, "multi-ring"),
    (TRN2, range(16), 4, 256 * KIB, "mesh"),
    (TRN2, range(16), 8, 256 * KIB, "rdh"),  # more ranks than meshes are documented for
    (TRN2, range(16), 4, 56 * 10**6 - 1, "rdh"),
    (TRN2, range(16), 4, 56 * 10**6, "kangaring"),
    # Where eight, 16 and 32 ranks of Trn1 were seen to change; others keep the usual limits.
    (TRN1, EIGHT_RANKS, 2, 2**13, "single-step-mesh"),
    (TRN1, EIGHT_RANKS, 2, 2**14, "mesh"),
    (TRN1, EIGHT_RANKS, 2, MIB, "mesh"),
    (TRN1, EIGHT_RANKS, 2, MIB + 1, "multi-ring"),
    (TRN1, range(8), 2, 2 * MIB, "mesh"),
    (TRN1, range(8), 2, 2 * MIB + 1, "multi-ring"),
    (TRN1, range(16), 2, 4 * MIB, "mesh"),
    (TRN1, range(16), 2, 4 * MIB + 1, "multi-ring"),
    (TRN1, range(16), 1, 2 * MIB, "rdh"),
    ("trn1.32xlarge:64", range(0, 1024, 16), 1, 2 * MIB, "rdh"),
    # Between domains.
    (FOUR, range(0, 128, 64), 1, 2**16, "single-step-mesh"),
    (FOUR, range(0, 256, 64), 1, 2**16, "mesh"),
    (FOUR, range(0, 256, 64), 1, GIB, "hierarchical"),
    (FOUR, range(0, 192, 64), 1, GIB, "ring"),
    (FOUR, np.add.outer(64 * np.arange(4), range(8)).ravel(), 1, GIB, "hierarchical"),
    # Ranks that are no power of two send short buffers straight.
    ("trn3-gen2", range(144), 1, KIB, "mesh"),
    ("trn2-ultraserver", range(64), 4, KIB, "rdh"),
    # Cycles through thousands of chips are left.
    ("torus:8x8x16", range(1024), 1, GIB, "multi-ring"),
    ("torus:16x16x16", range(4096), 1, GIB, "torus"),
    # TPUs go axis by axis: one pod of 256 took four times as long as two by stages.
    ("tpu-v6e-pod", range(256), 1, 2**16, "torus"),
])  # fmt: skip
def test_auto_chooses_as_the_runtime_does(machine, chips, cores, size, expected):
    links = {"bandwidth": "100GB/s", "latency": "1us"} if "torus" in machine else {}
    call = CollectiveCall("all-reduce", Group(cluster(machine, **links), chips, cores), size)
    assert choose_algorithm(call, "auto").name == expected


@pytest.mark.parametrize("machine", [TRN2, "trn2-ultraserver", "trn3-gen2"])
def test_a_broadcast_goes_by_message_tree_or_ring_as_its_length_asks(machine):
    group = whole(cluster(machine))
    calls = [CollectiveCall("broadcast", group, size) for size in (2**10, 2**16, 2**20, 2**24)]
    times = [duration_ps(call) for call in calls]
    assert times == sorted(times)
    assert choose_algorithm(calls[0], "auto").name == "mesh"
    assert choose_algorithm(calls[-1], "auto").name == "multi-ring"
    for call, time_ps in zip(calls, times, strict=True):
        assert time_ps <= 1.01 * max(duration_ps(call, name) for name in ("ring", "mesh"))


SHARES = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "broadcast": 1.0}
"""Bytes that leave a rank, over those of the buffer and (ranks - 1) / ranks."""


@pytest.mark.parametrize(
    ("machine", "chips", "per_chip"),
    [(TRN1, 16, 2), ("inf2.48xlarge", 12, 1), (TRN2, 4, 4), ("trn3-gen1", 16, 4)],
)
@pytest.mark.parametrize("kind", SHARES)
def test_no_collective_beats_its_links_or_its_step(machine, chips, per_chip, kind):
    group = Group(cluster(machine), np.arange(chips), per_chip)
    step_s = shipped_catalogue().value(group.cluster.chip, "collective_step")
    links = scale_up_bytes_per_s(group.cluster.shape)
    for size in (KIB, 64 * MIB):
        # Ranks of one chip share its links; what leaves the chip crosses them once.
        left = SHARES[kind] * size * (chips - 1) / chips
        assert collective_time(kind, group, size_bytes=size).time_s >= max(step_s, left / links)


def messages_of(call, algorithm, slices=2):
    costs = replace(communication_costs(call.group.cluster), slices=slices)
    return ALGORITHMS[algorithm].messages(call, costs)


@pytest.mark.parametrize("algorithm", ["ring", "rdh"])
@pytest.mark.parametrize(("slices", "longer_ps"), [(1, 2_800_000), (2, 0)])
def test_a_round_takes_a_handshake_unless_another_slice_is_on_a_wire(algorithm, slices, longer_ps):
    # Two chips: a round of the reduce-scatter, then one of the all-gather, which waits.
    server = cluster(TRN1)
    call = CollectiveCall("all-reduce", Group(server, [0, 1]), 2 * MIB)
    messages = messages_of(call, algorithm, slices)
    with_it, without = (
        run(lower(table, call.group.chip_of_rank, fabric(server), {})).total_ps
        for table in (messages, replace(messages, handshakes=False))
    )
    assert with_it - without == longer_ps


@pytest.mark.parametrize(("machine", "cores", "algorithm", "size", "expected"), [
    (TRN2, 4, "kangaring", MIB + 1, True),
    (TRN2, 4, "rdh", MIB + 1, True),
    (TRN2, 4, "rdh", MIB, False),
    ("trn2.48xlarge:2", 4, "hierarchical", 64 * MIB, False),
    (TRN1, 2, "multi-ring", 4 * MIB, False),
    (TRN1, 2, "multi-ring", 4 * MIB + 1, True),
    ("dgx-h100", 1, "ring", 64 * MIB, False),
])  # fmt: skip
def test_only_rings_and_halving_in_trainium_servers_wait(machine, cores, algorithm, size, expected):
    call = CollectiveCall("all-reduce", whole(cluster(machine), cores), size)
    assert messages_of(call, algorithm).handshakes is expected


def test_groups_side_by_side_wait_as_each_of_them_does():
    server = cluster(TRN2)
    calls = [CollectiveCall("all-reduce", Group(server, chips), 2 * MIB) for chips in ([0, 1], [2])]
    assert side_by_side([messages_of(call, "ring") for call in calls]).handshakes


def dma_shares(chips, algorithm):
    """Shares of the DMA engines that the bytes of an all-gather take."""
    call = CollectiveCall("all-gather", Group(cluster(TRN2), range(chips), 4), 2**26)
    schedule = compose(call, algorithm).schedule
    kind = schedule.resources.kinds.index("dma")
    on_dma = schedule.resources.kind[schedule.flows.resource] == kind
    return set(schedule.flows.weight[on_dma].tolist())


def test_cycles_copy_side_by_side_up_to_the_rate_of_all_engines():
    costs = communication_costs(cluster(TRN2))
    for cycles, shares in ((1, 60), (2, 30), (4, 15), (5, 12), (7, 10), (10, 10)):
        assert costs.dma_shares(cycles) == shares
        # 60 / 460 GB/s of one cycle; 2,944 GB/s of all engines are 9.4 shares.
        assert costs.dma_bytes_per_s * DMA_SHARES / shares <= costs.engines_bytes_per_s
    for chips, algorithm, shares in (
        (16, "kangaring", 15),
        (16, "rdh", 60),
        (16, "bidirectional-ring", 30),
        (8, "kangaring", 30),
        (1, "bidirectional-ring", 60),  # as fast in one chip, whatever the number of cycles
        (1, "ring", 60),
    ):
        assert dma_shares(chips, algorithm) == {shares}, (chips, algorithm)


def test_the_runtime_runs_one_cycle_where_a_chip_has_three_cables():
    server = cluster(TRN2)
    assert len(all_rings(Group(server, range(8)))) == 2
    assert len(all_rings(Group(server, range(16)))) == 4
    plain = whole(cluster("torus:2x4", bandwidth="1GB/s", latency="1us"))
    assert len(all_rings(plain)) > 2


@pytest.mark.parametrize(("kind", "ranks_per_chip", "size", "quantity", "factors"), [
    # Halving and doubling: slices that ran ahead kept the parts of others from idle links.
    ("all-reduce", 1, 32 * MIB, "link_bandwidth", ("0.8", "1", "1.25")),
    # Rings: with cycles by the nearest multiple of the slowest rate, ten came after fourteen.
    ("all-reduce", 1, 384 * MIB, "z_link_bandwidth", ("0.64", "0.8", "1")),
    # A broadcast: more chains cut it into messages shorter than their issue.
    ("broadcast", 2, 5 * MIB, "link_bandwidth", ("1", "1.25", "1.5625")),
])  # fmt: skip
def test_faster_links_of_one_kind_slow_no_collective(kind, ranks_per_chip, size, quantity, factors):
    catalogues = [choose((f"trn2.{quantity}=x{factor}",)) for factor in factors]
    servers = [cluster("trn2-ultraserver", catalogue=each) for each in catalogues]
    groups = [Group(server, range(64), ranks_per_chip) for server in servers]
    times_ps = [duration_ps(CollectiveCall(kind, group, size)) for group in groups]
    assert all(after <= 1.002 * before for before, after in pairwise(times_ps))


@pytest.mark.parametrize("kind", ["all-gather", "broadcast"])
def test_each_cycle_has_queues_of_its_own_on_the_dma_engines(kind):
    server = Group(cluster(TRN2), range(16), 4)
    call = CollectiveCall(kind, server, 64 * MIB)
    costs = communication_costs(server.cluster)
    assert ALGORITHMS["multi-ring"].messages(call, costs).cycles == 4


@pytest.mark.parametrize(
    "name", ["trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver", "trn3-gen1", "trn3-gen2"]
)
def test_short_exchanges_go_in_whole_messages_and_more_bytes_take_no_less_time(name):
    group = whole(cluster(name))
    sizes = [group.ranks * each for each in (100, 4_000, 10_000, 20_000, 30_000, 60_000)]
    calls = [CollectiveCall("all-to-all", group, size) for size in sizes]
    algorithms = [choose_algorithm(call).name for call in calls]
    assert (algorithms[0], algorithms[-1]) == ("direct", "dimension-ordered")
    times = list(map(duration_ps, calls))
    assert times == sorted(times)
    parts_ps = duration_ps(calls[0], "dimension-ordered")
    assert times[0] < parts_ps


def test_ranks_in_any_order_take_the_time_of_their_places():
    """Each server has an order of its own; all of them have the same chips."""
    servers, rng = cluster("trn2.48xlarge:3"), np.random.default_rng(0)
    chips = (16 * np.arange(3)[:, None] + np.arange(8)).ravel()
    for cores in (1, 4):
        for kind in ("all-reduce", "all-gather", "reduce-scatter"):
            mixed = CollectiveCall(kind, Group(servers, rng.permutation(chips), cores), 300_000)
            ordered = replace(mixed, group=Group(servers, chips, cores))
            assert choose_algorithm(mixed).name == "hierarchical"
            assert duration_ps(mixed) == pytest.approx(duration_ps(ordered), rel=0.01)
            if cores == 1:
                assert prove(compose(mixed)) == "proven"


@pytest.mark.parametrize("name", ["trn4-ultraserver:2", "trn3-gen1:3", "trn2-ultraserver:3"])
def test_a_broadcast_becomes_a_sum_where_that_is_faster_than_a_tree(name):
    """Chips of a domain that are no power of two take a sum round a ring, in many steps."""
    for size in (2**18, 2**20, 2**22, 2**24):
        call = CollectiveCall("broadcast", whole(cluster(name)), size)
        chosen, *each_way = (duration_ps(call, each) for each in ("auto", "rdh", "hierarchical"))
        assert chosen <= 1.15 * min(each_way)


def test_a_broadcast_over_servers_takes_no_longer_than_a_sum():
    servers = cluster("trn2.48xlarge:4")
    for chips, size, expected in ((8, 2**10, "mesh"), (8, 2**24, "hierarchical"),
                                  (1, 2**26, "multi-ring")):  # fmt: skip
        group = Group(servers, [16 * server + chip for server in range(4) for chip in range(chips)])
        call = CollectiveCall("broadcast", group, size)
        assert choose_algorithm(call).name == expected
        assert duration_ps(call) <= duration_ps(replace(call, kind="all-reduce"))
    summed = CollectiveCall("broadcast", Group(servers, range(64)), 2**24)
    assert prove(compose(summed)) == "proven"
    assert duration_ps(summed) == duration_ps(replace(summed, kind="all-reduce"))


@pytest.mark.parametrize("middle", [1, 2, 4, 64])
@pytest.mark.parametrize("outer", [(1, 1), (1, 2), (2, 1)])
def test_a_message_takes_the_time_of_its_slowest_link_and_the_latencies(outer, middle):
    """Until 0.3 a fast link between slow ones held up the first byte until the last was there."""
    rates = [10**9 * each for each in (outer[0], middle, outer[1])]
    axes = tuple(Axis(name, 3, rate, 10**6) for name, rate in zip("ZYX", rates, strict=True))
    machine = Cluster("cube", Torus(axes), "trn2", catalogue=shipped_catalogue())
    call = CollectiveCall("permute", Group(machine, [0, 13]), 10**6)  # along all axes, and back
    wire_ps = 10**6 * 10**12 // min(rates)
    assert duration_ps(call, ideal=True) == wire_ps + 3 * 10**6
