"""Costs of groups and their geometries are equal however many programs share them."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives.duration import duration
from tests.support.toy_training import SPARSE, TOY, exchange_ps, plan, sixteen
from topologies.arrays import IntArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Axis, Torus
from topologies.shapes.scale_out import ScaleOut
from workloads.training.layers.steps import RankShapes
from workloads.training.plan import placement
from workloads.training.plan.placement import place
from workloads.training.program.groups import GroupCosts, SharedParts
from workloads.training.program.program import program

PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 4, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "cp": 2, "dp": 4, "zero": 3},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1},
    {"tp": 4, "pp": 2, "dp": 4, "ranks_per_chip": 2},
)


def test_ranks_of_one_chip_write_what_they_exchange_and_read_it() -> None:
    """A GPU, for which no copy within a chip is stated."""
    where = cluster("dgx-h100")
    rate = shipped_catalogue().value("h100", "hbm_bandwidth")
    for size_bytes in (2**20, 2**30):
        taken_ps = exchange_ps(where, np.array([3, 3]), "all-reduce", size_bytes)
        assert taken_ps == pytest.approx(2 * size_bytes / rate * 1e12, abs=1)


def test_programs_that_share_costs_are_the_same() -> None:
    where = sixteen()
    shared = SharedParts()
    for stated in (*PLANS, *PLANS):
        model, how = SPARSE if "ep" in stated else TOY, plan(**stated)
        shapes = RankShapes(model, how, where.chip, shipped_catalogue())
        placed = place(how, where)
        for one, other in zip(
            program(shapes, placed, shared=shared).exchanges,
            program(shapes, placed).exchanges,
            strict=True,
        ):
            for field in fields(one):
                np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("dp", "pp", "tp", "cp")])
def test_groups_cost_as_much_as_if_each_were_timed_alone(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of four chips, of which three are under a switch: groups differ by their switches."""
    shape = Torus((Axis("Y", 2, 64 * 10**9, 300_000), Axis("X", 2, 128 * 10**9, 300_000)))
    fabric = ScaleOut("efa", 25 * 10**9, 15 * 10**6, 4, 10**11, Fraction(3), (0, 10**6, 10**7))
    where = Cluster("small racks", shape, "trn2", 8, fabric, 4, catalogue=shipped_catalogue())
    how = plan(tp=4, pp=4, dp=2, order=order)
    shapes, placed = RankShapes(TOY, how, "trn2", shipped_catalogue()), place(how, where)
    shared = program(shapes, placed).exchanges

    def each_alone(cluster: Cluster, chips: IntArray) -> tuple[IntArray, IntArray]:
        every = np.arange(len(chips))
        return every, every

    monkeypatch.setattr(placement, "geometries", each_alone)
    monkeypatch.setattr(GroupCosts, "place_key", lambda self, chips: chips.tobytes())
    monkeypatch.setattr(duration, "places", lambda cluster, chips: chips)
    kinds = []
    for one, alone in zip(shared, program(shapes, placed).exchanges, strict=True):
        np.testing.assert_equal(one.duration_ps[one.kind], alone.duration_ps[alone.kind])
        np.testing.assert_equal(one.draws.size_bytes[one.kind], alone.draws.size_bytes[alone.kind])
        kinds.append((len(one.duration_ps), len(alone.duration_ps)))
    assert any(1 < few < many for few, many in kinds), kinds
