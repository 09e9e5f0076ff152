"""Memory in collectives: bytes moved through it, and buffers that it must hold."""

from __future__ import annotations

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
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, fitting_algorithms, suitable
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.results import compose_v, lower_bound_v
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.trace.trace import run
from tests.support.collective_cases import algorithm_names
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError

GIB = 2**30
FREE = """part,quantity,variant,value,unit,grade,source,note,low,high
trn2,collective_efficiency,,1,ratio,assumed,A,test,,
trn2,hbm_in_collectives,,1,ratio,assumed,A,test,,
trn2,collective_copy,,2,TB/s,assumed,A,test,,
"""


@pytest.fixture
def node(tmp_path):
    """A Trn2 server whose links and memory give all that they nominally can."""
    path = tmp_path / "free.csv"
    path.write_text(FREE, encoding="utf-8")
    return cluster("trn2.48xlarge", catalogue=shipped_catalogue().with_overlay(path))


def accesses(schedule):
    """Bytes read and written in each memory."""
    flows, resources = schedule.flows, schedule.resources
    flow = np.repeat(np.arange(len(flows)), np.diff(flows.ptr))
    moved = schedule.size_bytes[flows.op][flow] * flows.weight.astype(np.int64)
    memory = resources.kind[flows.resource] == resources.kinds.index("hbm")
    total = np.bincount(flows.resource[memory], moved[memory], len(resources)).astype(np.int64)
    return total[resources.kind == resources.kinds.index("hbm")]


@pytest.mark.parametrize(
    ("op", "algorithm", "each", "gb_per_s", "reached"),
    [
        ("all-gather", "multi-ring", 8, 362, 0.99),
        ("reduce-scatter", "multi-ring", 12, 242, 0.99),
        ("all-gather", "kangaring", 6, 483, 0.83),
        ("reduce-scatter", "kangaring", 8, 362, 0.99),
    ],
)
def test_memory_bounds_a_full_node_of_four_ranks_a_chip(
    node, op, algorithm, each, gb_per_s, reached
):
    size = 4 * GIB
    collective = compose(Call(op, whole(node, 4), size), algorithm)
    assert prove(collective) == "proven"
    through = size * 15 / 16
    moved = accesses(collective.schedule)
    np.testing.assert_allclose(moved, each * through, rtol=0.06)
    assert 2900 / each == pytest.approx(gb_per_s, abs=0.7)
    # 63 of 64 shards cross a memory, 15 of 16 the links into its chip.
    cap = 2.9e12 * through / moved.max()
    assert reached * cap <= through / run(collective.schedule).total_s <= cap


@pytest.mark.parametrize(("op", "each"), [("all-gather", 8), ("reduce-scatter", 12)])
def test_collectives_in_scratchpads_escape_memory(node, op, each):
    size = 56 * 2**20
    cap = 2.9e12 / each * (15 / 16) / (63 / 64)
    call = Call(op, whole(node, 4), size)

    def rate(*, sbuf):
        costs = communication_costs(node, sbuf=sbuf)
        # Without the handshakes of a ring, which at this size take longer than memory does.
        messages = replace(ALGORITHMS["multi-ring"].messages(call, costs), handshakes=False)
        schedule = lower(messages, call.group.chip_of_rank, fabric(node, costs=costs), {})
        return size * 15 / 16 / run(schedule).total_s

    inside, outside = rate(sbuf=True), rate(sbuf=False)
    assert outside < 0.85 * inside
    assert outside < cap < 1.05 * inside


@pytest.mark.parametrize(
    ("machine", "op", "algorithm"),
    [
        ("trn2.48xlarge", "all-reduce", "multi-ring"),
        ("trn2.48xlarge", "all-to-all", "direct"),
        ("trn2-ultraserver", "reduce-scatter", "torus"),
        ("trn3-gen1", "all-gather", "mesh"),
        ("trn2.48xlarge:2", "all-reduce", "hierarchical"),
    ],
)
def test_a_memory_that_cannot_bind_changes_no_time(machine, op, algorithm):
    group = whole(cluster(machine))
    alone = compose(Call(op, group, 64 * 2**20), algorithm).schedule
    beside_others = compose(Call(op, group, 64 * 2**20), algorithm, contended=True).schedule
    assert not len(alone.flows)
    assert len(beside_others.flows)
    assert accesses(beside_others).sum() == hbm_bytes(Call(op, group, 64 * 2**20), algorithm)
    np.testing.assert_array_equal(run(alone).times.end_ps, run(beside_others).times.end_ps)


def test_on_ideal_wire_nothing_crosses_memory():
    group = whole(cluster("trn2.48xlarge"), 4)
    assert not len(
        compose(Call("all-reduce", group, GIB), "ring", ideal=True, contended=True).schedule.flows
    )


def test_ranks_of_one_chip_are_bound_by_its_dma_engines():
    pair = Group(cluster("trn1.32xlarge"), [0], 2)
    assert duration_ps(Call("all-reduce", pair, GIB)) / 1e12 == pytest.approx(18.93e-3, rel=0.01)


@pytest.mark.parametrize(
    ("machine", "chips", "cores", "floor_us", "within"),
    [
        ("trn1.32xlarge", 1, 2, 2.1, 0.02),
        ("trn1.32xlarge", 4, 2, 6.3, 0.06),
        ("trn1.32xlarge", 8, 2, 7.1, 0.03),
        ("trn1.32xlarge", 16, 2, 9.1, 0.01),
        ("trn2.48xlarge", 16, 4, 17.5, 0.03),
    ],
)
def test_the_smallest_all_reduce_takes_what_it_was_measured_to(
    machine, chips, cores, floor_us, within
):
    group = Group(cluster(machine), np.arange(chips), cores)
    assert duration_ps(Call("all-reduce", group, 1024)) / 1e6 == pytest.approx(floor_us, rel=within)


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize(
    ("machine", "cores"), [("trn1.32xlarge", 2), ("trn2.48xlarge", 4), ("trn2.48xlarge:2", 4)]
)
def test_bytes_of_memory_in_closed_form_are_those_of_the_schedule(machine, cores, op):
    group, size = whole(cluster(machine), cores), 64 * 2**20
    for name in algorithm_names(op, group):
        schedule = compose(Call(op, group, size), name, contended=True).schedule
        assert hbm_bytes(Call(op, group, size), name) == accesses(schedule).sum()


def test_mean_rate_at_a_memory_is_bytes_over_chips_and_time():
    group, size = whole(cluster("trn2.48xlarge"), 4), GIB
    seconds = duration_ps(Call("all-gather", group, size)) / 1e12
    rate = hbm_bytes(Call("all-gather", group, size)) / 16 / seconds
    assert hbm_bytes_per_s(Call("all-gather", group, size)) == pytest.approx(rate)
    assert 0.8e12 < rate < 0.78 * 2.9e12


def test_no_bytes_of_memory_are_claimed_where_none_are_known():
    for machine in ("dgx-h100", "dgx-h100:2"):
        assert hbm_bytes(Call("all-reduce", whole(cluster(machine)), GIB)) == 0
    plain = whole(cluster("ring:8", bandwidth="1GB/s", latency="1us"))
    assert hbm_bytes_per_s(Call("all-reduce", plain, GIB)) == 0


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce"])
def test_the_bound_of_a_full_node_is_its_memory_and_of_one_rank_a_chip_its_links(op):
    node = cluster("trn2.48xlarge")
    full, single = whole(node, 4), whole(node)
    assert lower_bound(Call(op, full, GIB)).what == "hbm"
    assert lower_bound(Call(op, single, GIB)).what == "injection"
    for left_out in ({"ideal": True}, {"sbuf": True}):
        assert lower_bound(Call(op, full, GIB), **left_out).what == "injection"
    pairs = hbm_bytes(Call(op, full, GIB), "kangaring")
    assert lower_bound(Call(op, full, GIB)).time_ps == pairs * 10**12 // (16 * 2_900_000_000_000)


@pytest.mark.parametrize("op", KINDS)
@pytest.mark.parametrize("size", [1, 1000, 2**20 + 7, 2**26])
@pytest.mark.parametrize(("machine", "cores"), [("trn2.48xlarge", 4), ("trn1.32xlarge", 2)])
def test_no_algorithm_beats_the_bound_of_memory(machine, cores, op, size):
    group = Group(cluster(machine), [0, 1, 4, 5], cores)
    bound = lower_bound(Call(op, group, size)).time_ps
    assert all(
        duration_ps(Call(op, group, size), name) >= bound for name in algorithm_names(op, group)
    )


def test_an_all_to_all_v_is_bound_by_the_memory_of_the_fullest_chip():
    chip = Group(cluster("trn2.48xlarge"), [0], 4)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = GIB
    bound = lower_bound_v(chip, sent)
    assert (bound.what, bound.time_ps) == ("hbm", 2 * GIB * 10**12 // 2_900_000_000_000)
    assert run(compose_v(chip, sent).schedule).total_ps > bound.time_ps
    assert lower_bound_v(chip, sent, ideal=True).time_ps == 0


def test_an_all_to_all_v_is_bound_by_the_links_of_the_fullest_chip():
    """A tebibyte through both of the links that leave a chip of a ring."""
    ring = Group(cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 2], sent[1, 2] = 2**40, 2**30
    bound = lower_bound_v(ring, sent)
    assert bound.what == "into the fullest chip"
    assert bound.time_ps == 5 * (2**40 + 2**30) + 10**6


@pytest.mark.parametrize(
    ("machine", "cores"),
    [("trn2.48xlarge", 1), ("trn1.32xlarge", 2), ("trn2-ultraserver", 1), ("trn2.48xlarge:4", 1)],
)
@pytest.mark.parametrize("op", KINDS)
def test_ops_are_foreseen_within_a_factor_of_two_or_not_far_above(machine, cores, op):
    group, size = whole(cluster(machine), cores), 2**26
    costs = communication_costs(group.cluster)
    call = Call(op, group, size)
    for algorithm in suitable(call):
        foreseen = footprint.ops_foreseen([call], algorithm, costs)
        assert 0.45 < foreseen / len(compose(call, algorithm).schedule) < 2.5, algorithm.name


def test_what_does_not_fit_in_this_machine_is_refused_before_it_is_built():
    everything = whole(cluster("rainier"))
    message = r"all-to-all by direct on 499,968 ranks is about 7\.\de\+11 ops and needs .* TB; this"
    with pytest.raises(InputError, match=message):
        compose(Call("all-to-all", everything, 2**30), "direct")


def test_best_tries_what_fits(monkeypatch):
    group = whole(cluster("trn2-ultraserver"))
    monkeypatch.setattr(footprint, "machine_bytes", lambda: 2 * 10**6)
    fit = fitting_algorithms([Call("all-gather", group, 2**20)])
    assert {one.name for one in fit} == {"ring", "mesh", "rdh", "torus", "per-axis"}
    row, _ = measure(Call("all-gather", group, 2**20), "best")
    assert row["ops"] * footprint.BYTES_AN_OP < 4 * 10**6
    with pytest.raises(InputError, match="all-gather by multi-ring on 64 ranks"):
        compose(Call("all-gather", group, 2**20), "multi-ring")


def test_a_group_too_large_to_hold_is_measured_by_a_few_that_stand_for_all():
    everything = whole(cluster("rainier"))
    row, trace = measure(Call("all-reduce", everything, 2**30))
    assert trace.total_ps == duration_ps(Call("all-reduce", everything, 2**30))
    assert row["algorithm"] == "hierarchical"
    assert row["steps"] == 2 * (9 + 1 + 1 + 2 + 2 + 6 + 30)  # 4x4x4, then 2·2·3·3·7·31 domains
    assert row["semantics"] == "not-checked"
    with pytest.raises(InputError, match="all-to-all by direct on 499,968 ranks"):
        measure(Call("all-to-all", everything, 2**30))


def test_groups_at_once_on_nvidia_take_as_long_as_one():
    server = cluster("p5.48xlarge")
    halves = [Group(server, np.arange(4)), Group(server, np.arange(4, 8))]
    calls = [Call("all-reduce", half, 2**24) for half in halves]
    both, one = measure(calls)[0], measure(calls[0])[0]
    assert both["algorithm"] == one["algorithm"] == "nccl"
    assert (both["time_s"], both["ranks"]) == (one["time_s"], 4)
    assert both["ops"] == 2 * one["ops"] - 2


def test_an_unknown_algorithm_is_told_from_one_that_makes_no_sense_here():
    node = whole(cluster("trn2.48xlarge"))
    with pytest.raises(InputError, match=r"unknown algorithm 'rng'\. Did you mean ring\?"):
        compose(Call("all-reduce", node, 2**20), "rng")
    with pytest.raises(InputError, match="direct does not make sense for all-reduce"):
        compose(Call("all-reduce", node, 2**20), "direct")
