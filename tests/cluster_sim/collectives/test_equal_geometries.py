"""Groups of one geometry share a time: each must take as long as if it were timed alone."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, suitable
from cluster_sim.collectives.duration.duration import Geometry, _ranked, _timed, geometries
from cluster_sim.collectives.duration.nccl import covers, nccl_ps
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.routing import clos
from topologies.shapes.basic import Axis, FullMesh, Switch, Tier, Tiered, Torus
from topologies.shapes.scale_out import ScaleOut
from workloads.front import collective_time

SIZE_BYTES = 3 * 2**20
KINDS = ("permute", "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast")
RATE = 64 * 10**9


def torus(*sides, open_axis=-1):
    """A torus of links of two rates; one axis may have no link from its last chip to its first."""
    return Torus(
        tuple(
            Axis("XYZ"[axis], side, RATE << (axis % 2), 300_001, axis != open_axis)
            for axis, side in enumerate(sides)
        )
    )


def tiers(*sides, ring=False):
    """Tiers of direct links and of planes of two switches; the last may be a ring."""
    rows = [(f"tier {k}", side, RATE << (k % 2), 300_001) for k, side in enumerate(sides)]
    last = len(sides) - 1
    kinds = [(2 * (k == 1 and not ring), ring and k == last) for k in range(len(sides))]
    return Tiered(tuple(Tier(*row, *kind) for row, kind in zip(rows, kinds, strict=True)))


def racks(shape, domains, over=1, radix=4):
    """Domains under switches of few ports, so that a few of them reach the third layer."""
    rate, climb_ps = 25 * 10**9, (0, 10**6, 3 * 10**6)
    fabric = ScaleOut("fabric", rate, 10**7, radix, rate, Fraction(over), climb_ps)
    return Cluster("racks", shape, "", domains, fabric, shape.chips, plain=True)


def alone_ps(kind, group):
    """Time of a collective on these very chips by every algorithm that suits them [ps]."""
    call = CollectiveCall(kind, group, SIZE_BYTES)
    nccl = [nccl_ps(call)] if covers(group.cluster) else []
    each = (
        _timed.__wrapped__(kind, Geometry(group), SIZE_BYTES, algorithm, False)[0]
        for algorithm in suitable(call)
    )
    return [*nccl, *each]


def some_groups(machine, draw):
    """Random groups with others of the same offsets, and shifted within and between domains."""
    each = machine.chips_per_domain
    for ascends in (True, True, False):
        ranks = int(draw.integers(2, min(6, machine.chips) + 1))
        chips = draw.choice(machine.chips, ranks, replace=False)
        stride = int(draw.integers(1, machine.chips // ranks + 1))
        strided = np.arange(ranks) * stride
        for first in (np.sort(chips) if ascends else chips, strided):
            at = np.stack(np.unravel_index(first % each, machine.shape.sizes))
            for _ in range(12):
                shift = draw.integers(0, machine.shape.sizes)[:, None]
                local = np.ravel_multi_index(tuple(at + shift), machine.shape.sizes, mode="wrap")
                domain = (first // each + draw.integers(machine.domains)) % machine.domains
                moved = domain * each + local
                yield np.sort(moved) if ascends else moved
                moved = (first + draw.integers(machine.chips)) % machine.chips
                yield np.sort(moved) if ascends else moved


MACHINES = {
    "even torus": lambda: racks(torus(4, 4, 2), 1),
    "uneven torus": lambda: racks(torus(5, 4), 1),
    "grid": lambda: racks(torus(6, 3, open_axis=0), 1),
    "racks": lambda: racks(torus(2, 2), 13),
    "thin racks": lambda: racks(torus(3), 11, over=3),
    "switches": lambda: racks(Switch(5, RATE, 10**6), 7, radix=6),
    "meshes": lambda: racks(FullMesh(4, RATE, 10**6), 9),
    "tiers": lambda: racks(tiers(3, 2, 4), 3),
    "tier of a ring": lambda: racks(tiers(3, 5, ring=True), 2),
    "Trn3": lambda: cluster("trn3-gen2:2"),
    "straddled": lambda: replace(racks(torus(3, 2), 7, radix=8), chips_per_server=2),
    "thin straddled": lambda: replace(
        racks(Switch(6, RATE, 10**6), 7, over=3, radix=8), chips_per_server=1
    ),
    "servers": lambda: cluster("trn2.48xlarge:40"),
    "split domains": lambda: replace(racks(torus(4, 2), 5), chips_per_server=2),
    "switched domains": lambda: cluster("gb300-nvl72:2"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_groups_of_one_geometry_take_equally_long(name):
    machine, draw = MACHINES[name](), np.random.default_rng(11)
    alike = defaultdict(dict)
    for chips in some_groups(machine, draw):
        group = Group(machine, chips)
        alike[Geometry(group)][chips.tobytes()] = group
    several = [list(groups.values()) for groups in alike.values() if len(groups) > 1]
    assert several
    for first, *others in several[:3]:
        kind = str(draw.choice(KINDS))
        assert alone_ps(kind, first) == alone_ps(kind, others[0]), (kind, first, others[0])


@pytest.mark.parametrize("name", MACHINES)
def test_tables_of_groups_have_the_geometries_of_their_groups(name):
    machine, draw = MACHINES[name](), np.random.default_rng(5)
    chips = machine.chips
    begins = np.arange(chips - chips // 2)[:, None]
    shuffled = np.stack([draw.choice(chips, 3, replace=False) for _ in range(40)])
    for groups in (begins + np.array([0, chips // 3]), begins + np.array([1, 0]), shuffled):
        first, geometry = geometries(machine, groups)
        single = [Geometry(Group(machine, group)) for group in groups]
        assert first[geometry].tolist() == [single.index(one) for one in single]


def test_numbers_are_those_of_the_sorted_values_of_each_row():
    rng = np.random.default_rng(0)
    rows_of_nine = rng.integers(0, 9, (5, 40))
    for rows in (np.sort(rows_of_nine), rows_of_nine, np.array([[7]])):
        expected = [np.unique(row, return_inverse=True)[1].tolist() for row in rows]
        assert _ranked(rows).tolist() == expected


def test_groups_under_one_switch_are_nearer_than_those_under_two():
    servers, thin = cluster("trn2.48xlarge:64"), racks(torus(2, 2), 12, over=3)
    of_servers, of_thin = (clos(machine)[1][0].chips for machine in (servers, thin))
    near, far, within, across = (
        collective_time(kind, Group(machine, chips), size_bytes=2**24).time_ps
        for kind, machine, chips in (
            ("all-gather", servers, [of_servers - 32, of_servers - 16]),
            ("all-gather", servers, [of_servers - 16, of_servers]),
            ("all-to-all", thin, np.arange(of_thin)),
            ("all-to-all", thin, of_thin // 2 + np.arange(of_thin)),
        )
    )
    assert far - near == 10**6  # the climb to the leaf
    assert across > within  # thin uplinks are shared


def test_groups_in_other_orders_have_other_geometries():
    """Rings are fitted to the fabric where chips ascend, and follow the order elsewhere."""
    ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    turned = [4, 5, 6, 7, 0, 1, 2, 3]
    assert Geometry(Group(ring, turned)) != Geometry(Group(ring, range(8)))
    assert Geometry(Group(ring, turned)) == Geometry(Group(ring, [6, 7, 0, 1, 2, 3, 4, 5]))


def test_groups_on_one_switch_are_alike_in_their_order():
    machine = cluster("gb300-nvl72:2")

    def geometry(*chips):
        return Geometry(Group(machine, chips))

    assert geometry(72 + 5, 72 + 9, 72 + 30) == geometry(0, 1, 2)
    assert geometry(40, 3, 17) == geometry(2, 0, 1) != geometry(0, 1, 2)
    # Between two switches chips keep their places, unless each is alone on its switch.
    assert geometry(5, 6, 72 + 9) != geometry(5, 6, 72 + 8)
    assert geometry(5, 72 + 9) == geometry(5, 72 + 8) == geometry(0, 72)


@pytest.mark.parametrize(
    "name", [name for name, machine in MACHINES.items() if machine().domains > 1]
)
def test_chips_alone_in_their_domains_take_equally_long_wherever_they_are(name):
    """Pipelines send between chips at any places of two domains, all in the same time."""
    machine, draw = MACHINES[name](), np.random.default_rng(2)
    each, domains = machine.chips_per_domain, machine.domains
    alike = defaultdict(list)
    for ranks in range(2, min(domains, 4) + 1):
        for _ in range(9):
            domain = draw.choice(domains, ranks, replace=False)
            group = Group(machine, domain * each + draw.integers(each, size=ranks))
            alike[Geometry(group)].append(group)
    assert max(map(len, alike.values())) > 1
    for first, *others in alike.values():
        kind = str(draw.choice(KINDS))
        for other in others[-1:]:
            assert alone_ps(kind, first) == alone_ps(kind, other), (kind, first, other)


def test_sends_between_stages_of_trn3_are_timed_once_for_each_kind_of_way():
    """Each tier is crossed up, down or not at all, and two domains share a switch or do not."""
    machine = cluster("trn3-gen2:4")
    inside = np.array([(a, b) for a in range(144) for b in range(144) if a < b])
    across = inside * [1, 1] + [0, 144]
    assert len(geometries(machine, inside)[0]) == (3**3 - 1) // 2
    assert len(geometries(machine, across)[0]) <= 2
