"""What a collective occupies besides links: memory, DMA engines and CC-Cores."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives import (
    OPS,
    Group,
    algorithms,
    build,
    compose,
    duration_ps,
    hbm_bytes,
    hbm_bytes_per_s,
    prove,
    whole,
)
from cluster_sim.schedule import FLOW, NO_RESOURCE, Edges, Flows
from cluster_sim.trace import run
from topologies.catalogue import catalogue
from topologies.machines import cluster

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
    return cluster("trn2.48xlarge", catalogue=catalogue().with_overlay(path))


def accesses(made):
    """Bytes read and written in each memory."""
    flows, resources = made.flows, made.resources
    flow = np.repeat(np.arange(len(flows)), np.diff(flows.ptr))
    moved = made.size_bytes[flows.op][flow] * flows.weight
    memory = resources.kind[flows.resource] == resources.kinds.index("hbm")
    return np.bincount(flows.resource[memory], moved[memory], len(resources))[
        resources.kind == resources.kinds.index("hbm")
    ]


@pytest.mark.parametrize(
    ("op", "algorithm", "each", "gb_per_s", "reached"),
    [
        ("all-gather", "multi-ring", 8, 362, 0.95),
        ("reduce-scatter", "multi-ring", 12, 242, 0.95),
        ("all-gather", "kangaring", 6, 483, 0.83),
        ("reduce-scatter", "kangaring", 8, 362, 0.95),
    ],
)
def test_memory_bounds_a_full_node_of_four_ranks_a_chip(
    node, op, algorithm, each, gb_per_s, reached
):
    size = 4 * GIB
    made = compose(op, whole(node, 4), size, algorithm)
    assert prove(made) == "proven"
    through = size * 15 / 16
    np.testing.assert_allclose(accesses(made.schedule), each * through, rtol=0.06)
    rate = through / run(made.schedule).total_s / 1e9
    assert reached * gb_per_s <= rate <= 1.01 * gb_per_s


def test_one_rank_a_chip_leaves_memory_out_and_so_does_ideal_wire():
    machine = cluster("trn2.48xlarge")
    assert not len(build("all-reduce", whole(machine), GIB, "ring").flows)
    assert not len(compose("all-reduce", whole(machine, 4), GIB, "ring", ideal=True).schedule.flows)


def test_ranks_of_one_chip_are_bound_by_its_dma_engines():
    pair = Group(cluster("trn1.32xlarge"), [0], 2)
    assert duration_ps("all-reduce", pair, GIB) / 1e12 == pytest.approx(18.93e-3, rel=0.01)


def test_memory_bound_compute_and_a_collective_slow_each_other(node):
    made = build("all-gather", whole(node, 4), GIB, "multi-ring")
    alone = run(made).total_ps
    work = 2 * 10**9
    (hbm,) = np.flatnonzero(
        (made.resources.kind == made.resources.kinds.index("hbm")) & (made.resources.owner == 0)
    )
    both = run(with_flow(made, work, 2_900_000_000_000, int(hbm)))
    compute_alone = work * 10**12 // 2_900_000_000_000
    assert both.times.end_ps[-1] > 1.3 * compute_alone
    assert both.times.end_ps[:-1].max() > 1.04 * alone


def with_flow(made, work, cap, resource):
    """The schedule and one flow more, the last op."""
    ops = len(made)

    def longer(column, value):
        return np.append(column, np.asarray(value, column.dtype))

    flows, edges = made.flows, made.edges
    return replace(
        made,
        kind=longer(made.kind, FLOW),
        resource=longer(made.resource, NO_RESOURCE),
        duration_ps=longer(made.duration_ps, 0),
        size_bytes=longer(made.size_bytes, work),
        priority=longer(made.priority, 0),
        edges=Edges(longer(edges.ptr, edges.ptr[-1]), edges.dst, edges.lag_ps, edges.from_start),
        flows=Flows(
            longer(flows.op, ops),
            longer(flows.cap_bytes_per_s, cap),
            longer(flows.ptr, flows.ptr[-1] + 1),
            longer(flows.resource, resource),
            longer(flows.weight, 1),
        ),
        labels={},
    )


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
    assert duration_ps("all-reduce", group, 1024) / 1e6 == pytest.approx(floor_us, rel=within)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("machine", "cores"), [("trn1.32xlarge", 2), ("trn2.48xlarge", 4), ("trn2.48xlarge:2", 4)]
)
def test_bytes_of_memory_in_closed_form_are_those_of_the_schedule(machine, cores, op):
    group, size = whole(cluster(machine), cores), 64 * 2**20
    for name in algorithms(op, group):
        made = build(op, group, size, name)
        assert hbm_bytes(op, group, size, name) == accesses(made).sum()


def test_mean_rate_at_a_memory_is_bytes_over_chips_and_time():
    group, size = whole(cluster("trn2.48xlarge"), 4), GIB
    seconds = duration_ps("all-gather", group, size) / 1e12
    rate = hbm_bytes("all-gather", group, size) / 16 / seconds
    assert hbm_bytes_per_s("all-gather", group, size) == pytest.approx(rate)
    assert 1.2e12 < rate < 0.78 * 2.9e12


def test_no_bytes_of_memory_are_claimed_where_none_are_known():
    for machine in ("dgx-h100", "dgx-h100:2"):
        assert hbm_bytes("all-reduce", whole(cluster(machine)), GIB) == 0
    plain = whole(cluster("ring:8", bandwidth="1GB/s", latency="1us"))
    assert hbm_bytes_per_s("all-reduce", plain, GIB) == 0
