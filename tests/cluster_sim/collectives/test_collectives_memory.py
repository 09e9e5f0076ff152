"""Memory in collectives: bytes moved through it, and buffers that it must hold."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives import (
    KINDS,
    Group,
    compose,
    duration_ps,
    hbm_bytes,
    hbm_bytes_per_s,
    lower_bound,
    measure,
    prove,
    whole,
)
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.algorithms import algorithm as footprint
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, fitting_algorithms
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.results import compose_v, lower_bound_v
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.trace.trace import run
from tests.support.collective_cases import algorithm_names
from tests.support.refusals import refused
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster

GIB = 2**30
FREE = """part,quantity,variant,value,unit,grade,source,note,low,high
trn2,collective_efficiency,,1,ratio,assumed,A,test,,
trn2,hbm_in_collectives,,1,ratio,assumed,A,test,,
trn2,collective_copy,,2,TB/s,assumed,A,test,,
"""


@pytest.fixture
def node(tmp_path):
    """A Trn2 server whose links and memory give all that they nominally can."""
    (path := tmp_path / "free.csv").write_text(FREE, encoding="utf-8")
    return cluster("trn2.48xlarge", catalogue=shipped_catalogue().with_overlay(path))


def accesses(schedule):
    """Bytes read and written in each memory."""
    flows, resources = schedule.flows, schedule.resources
    flow = np.repeat(np.arange(len(flows)), np.diff(flows.ptr))
    moved = schedule.size_bytes[flows.op][flow] * flows.weight.astype(np.int64)
    memory = resources.kind[flows.resource] == resources.kinds.index("hbm")
    total = np.bincount(flows.resource[memory], moved[memory], len(resources)).astype(np.int64)
    return total[resources.kind == resources.kinds.index("hbm")]


@pytest.mark.parametrize(("op", "algorithm", "each", "reached"), [
    ("all-gather", "multi-ring", 8, 0.99),
    ("reduce-scatter", "multi-ring", 12, 0.99),
    ("all-gather", "kangaring", 6, 0.83),
    ("reduce-scatter", "kangaring", 8, 0.99),
])  # fmt: skip
def test_memory_bounds_a_full_node_of_four_ranks_a_chip(node, op, algorithm, each, reached):
    collective = compose(Call(op, whole(node, 4), 4 * GIB), algorithm)
    assert prove(collective) == "proven"
    through = 4 * GIB * 15 / 16
    moved = accesses(collective.schedule)
    np.testing.assert_allclose(moved, each * through, rtol=0.06)
    # 63 of 64 shards cross a memory, 15 of 16 the links into its chip.
    cap = 2.9e12 * through / moved.max()
    assert reached * cap <= through / run(collective.schedule).total_s <= cap


@pytest.mark.parametrize(("op", "each"), [("all-gather", 8), ("reduce-scatter", 12)])
def test_collectives_in_scratchpads_escape_memory(node, op, each):
    call = Call(op, whole(node, 4), 56 * 2**20)
    cap = 2.9e12 / each * (15 / 16) / (63 / 64)

    def rate(*, sbuf):
        costs = communication_costs(node, sbuf=sbuf)
        # Without the handshakes of a ring, which at this size take longer than memory does.
        messages = replace(ALGORITHMS["multi-ring"].messages(call, costs), handshakes=False)
        schedule = lower(messages, call.group.chip_of_rank, fabric(node, costs=costs), {})
        return call.size_bytes * 15 / 16 / run(schedule).total_s

    inside, outside = rate(sbuf=True), rate(sbuf=False)
    assert outside < 0.85 * inside
    assert outside < cap < 1.05 * inside


@pytest.mark.parametrize(("machine", "op", "algorithm"), [
    ("trn2.48xlarge", "all-reduce", "multi-ring"),
    ("trn2.48xlarge", "all-to-all", "direct"),
    ("trn3-gen1", "all-gather", "mesh"),
    ("trn2.48xlarge:2", "all-reduce", "hierarchical"),
])  # fmt: skip
def test_a_memory_that_cannot_bind_changes_no_time(machine, op, algorithm):
    call = Call(op, whole(cluster(machine)), 64 * 2**20)
    alone = compose(call, algorithm).schedule
    beside_others = compose(call, algorithm, contended=True).schedule
    assert not len(alone.flows)
    assert not len(compose(call, algorithm, ideal=True, contended=True).schedule.flows)
    assert accesses(beside_others).sum() == hbm_bytes(call, algorithm)
    np.testing.assert_array_equal(run(alone).times.end_ps, run(beside_others).times.end_ps)


def test_links_fill_a_slow_memory_of_every_chip_alike(tmp_path):
    path = tmp_path / "slow.csv"
    path.write_text(FREE.replace("hbm_in_collectives,,1", "hbm_in_collectives,,0.2"))
    slow = cluster("trn2.48xlarge", catalogue=shipped_catalogue().with_overlay(path))
    schedule = compose(Call("all-gather", whole(slow), 2**26), "multi-ring").schedule
    assert set(accesses(schedule).tolist()) == {2 * 15 * 2**22}


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize(("machine", "cores"), [("trn1.32xlarge", 2), ("trn2.48xlarge:2", 1)])
def test_bytes_of_memory_in_closed_form_are_those_of_the_schedule(machine, cores, op):
    call = Call(op, whole(cluster(machine), cores), 64 * 2**20)
    for name in algorithm_names(op, call.group):
        schedule = compose(call, name, contended=True).schedule
        assert hbm_bytes(call, name) == accesses(schedule).sum()


def test_mean_rate_at_a_memory_is_bytes_over_chips_and_time():
    call = Call("all-gather", whole(cluster("trn2.48xlarge"), 4), GIB)
    rate = hbm_bytes(call) / 16 / (duration_ps(call) / 1e12)
    assert hbm_bytes_per_s(call) == pytest.approx(rate)
    assert 0.8e12 < rate < 0.78 * 2.9e12
    for machine in ("dgx-h100", "dgx-h100:2"):  # of whose memory nothing is known
        assert hbm_bytes(Call("all-reduce", whole(cluster(machine)), GIB)) == 0
    plain = whole(cluster("ring:8", bandwidth="1GB/s", latency="1us"))
    assert hbm_bytes_per_s(Call("all-reduce", plain, GIB)) == 0


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce"])
def test_the_bound_of_a_full_node_is_its_memory_and_of_one_rank_a_chip_its_links(op):
    node = cluster("trn2.48xlarge")
    full = Call(op, whole(node, 4), GIB)
    assert lower_bound(full).what == "hbm"
    assert lower_bound(Call(op, whole(node), GIB)).what == "injection"
    for left_out in ({"ideal": True}, {"sbuf": True}):
        assert lower_bound(full, **left_out).what == "injection"
    pairs = hbm_bytes(full, "kangaring")
    assert lower_bound(full).time_ps == pairs * 10**12 // (16 * 2_900_000_000_000)


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize("size", [1000, 2**26])
@pytest.mark.parametrize(("machine", "cores"), [("trn2.48xlarge", 4), ("trn1.32xlarge", 2)])
def test_no_algorithm_beats_the_bound_of_memory(machine, cores, op, size):
    call = Call(op, Group(cluster(machine), [0, 1, 4, 5], cores), size)
    bound = lower_bound(call).time_ps
    assert all(duration_ps(call, name) >= bound for name in algorithm_names(op, call.group))


def test_an_all_to_all_v_is_bound_by_memory_and_links_of_the_fullest_chip():
    chip = Group(cluster("trn2.48xlarge"), [0], 4)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = GIB
    bound = lower_bound_v(chip, sent)
    assert (bound.what, bound.time_ps) == ("hbm", 2 * GIB * 10**12 // 2_900_000_000_000)
    assert run(compose_v(chip, sent).schedule).total_ps > bound.time_ps
    assert lower_bound_v(chip, sent, ideal=True).time_ps == 0
    # A tebibyte through both of the links that leave a chip of a ring.
    ring = Group(cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 2], sent[1, 2] = 2**40, 2**30
    bound = lower_bound_v(ring, sent)
    assert (bound.what, bound.time_ps) == ("into the fullest chip", 5 * (2**40 + 2**30) + 10**6)


def test_best_tries_what_fits(monkeypatch):
    call = Call("all-gather", whole(cluster("trn2-ultraserver")), 2**20)
    monkeypatch.setattr(footprint, "machine_bytes", lambda: 26 * 10**5)
    fit = fitting_algorithms([call])
    assert {one.name for one in fit} == {"ring", "mesh", "rdh", "torus", "per-axis"}
    row, _ = measure(call, "best")
    assert row["ops"] * footprint.BYTES_AN_OP < 52 * 10**5
    refused("all-gather by multi-ring on 64 ranks", compose, call, "multi-ring")


def test_a_group_too_large_to_hold_is_measured_by_a_few_that_stand_for_all():
    everything = whole(cluster("rainier"))
    row, trace = measure(Call("all-reduce", everything, 2**30))
    assert trace.total_ps == duration_ps(Call("all-reduce", everything, 2**30))
    assert row["algorithm"] == "hierarchical"
    assert row["steps"] == 2 * (9 + 1 + 1 + 2 + 2 + 3 + 5)  # 4x4x4, then 2·2·3·3·7·31 domains
    assert row["semantics"] == "not-checked"
    exchange = Call("all-to-all", everything, 2**30)
    message = "all-to-all by direct on 499,968 ranks is about "
    refused(message, measure, exchange)
    refused(message + r"7\.\de\+11 ops and needs .* TB; this", compose, exchange, "direct")
