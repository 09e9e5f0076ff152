"""Groups of one geometry share a time: each must take as long as the group that stands for it."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.algorithms.registry import choose_algorithm
from cluster_sim.collectives.duration.duration import _timed, canonical
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.collectives.duration.nccl.times import nccl_ps
from topologies.clusters.names import cluster

SIZE_BYTES = 3 * 2**20
KINDS = ("permute", "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast")


def time_alone(kind, machine, chips):
    """Time of a collective on these very chips, whatever group stands for them [ps]."""
    call = CollectiveCall(kind, Group(machine, chips), SIZE_BYTES)
    if covers(machine):
        return nccl_ps(call)
    algorithm = choose_algorithm(call, "auto")
    return _timed.__wrapped__(kind, machine, chips.tobytes(), 1, SIZE_BYTES, algorithm, False)[0]


@pytest.mark.parametrize("name", ["gb300-nvl72", "dgx-h100:2"])
@pytest.mark.parametrize("ascends", [True, False])
def test_a_group_on_a_switch_takes_as_long_as_the_one_that_stands_for_it(name, ascends):
    machine, draw = cluster(name), np.random.default_rng(7)
    for kind in KINDS:
        for ranks in (2, 4, 7):
            chips = draw.choice(machine.chips_per_domain, ranks, replace=False)
            chips = np.sort(chips) if ascends else chips
            image = canonical(Group(machine, chips))
            alone, stood_for = (time_alone(kind, machine, members) for members in (chips, image))
            assert alone == stood_for, (kind, chips)


@pytest.mark.parametrize("sizes", ["4x4x4", "5x4", "6x3x2"])
def test_a_group_on_a_torus_takes_as_long_as_the_one_that_stands_for_it(sizes):
    """Routes between opposite chips of a ring go up or down by the sum of the coordinates."""
    torus, draw = (
        cluster(f"torus:{sizes}", bandwidth="100GB/s", latency="1us"),
        np.random.default_rng(7),
    )
    moved = 0
    for kind in KINDS:
        for ranks in (2, 3, 5, 8):
            chips = np.sort(draw.choice(torus.chips_per_domain, ranks, replace=False))
            image = canonical(Group(torus, chips))
            moved += int((image != chips).any())
            assert time_alone(kind, torus, chips) == time_alone(kind, torus, image), (kind, chips)
    assert moved, "no group is shifted"


def test_irregular_groups_of_an_ultraserver_take_their_own_time():
    machine = cluster("trn2-ultraserver")
    chips = np.array([21, 38, 42, 47, 57, 59, 63])
    image = canonical(Group(machine, chips))
    assert image[0] != 0, "routes of ties would turn round"
    assert time_alone("all-gather", machine, chips) == time_alone("all-gather", machine, image)


def test_groups_on_one_switch_stand_on_its_first_chips_in_their_order():
    machine = cluster("gb300-nvl72:2")
    assert canonical(Group(machine, [72 + 5, 72 + 9, 72 + 30])).tolist() == [0, 1, 2]
    assert canonical(Group(machine, [40, 3, 17])).tolist() == [2, 0, 1]


def test_groups_on_two_switches_keep_their_places_as_adapters_differ():
    machine = cluster("gb300-nvl72:2")
    assert canonical(Group(machine, [5, 72 + 9])).tolist() == [5, 72 + 9]
