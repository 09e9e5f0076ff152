"""Costs of groups and their geometries are equal however many programs share them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Torus
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.placement import geometries, place
from workloads.training.program.program import program
from workloads.training.program.shared_parts import SharedParts

PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 4, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "cp": 2, "dp": 4, "zero": 3},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1},
    {"tp": 4, "pp": 2, "dp": 4, "ranks_per_chip": 2},
)


def test_programs_that_share_costs_are_the_same() -> None:
    where = sixteen()
    shared = SharedParts(where)
    for asked in (*PLANS, *PLANS):
        model, how = SPARSE if "ep" in asked else TOY, plan(**asked)
        shapes = RankShapes(model, how, where.chip, shipped_catalogue())
        placed = place(how, where)
        for one, other in zip(
            program(shapes, placed, shared=shared).exchanges,
            program(shapes, placed).exchanges,
            strict=True,
        ):
            for field in fields(one):
                np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


def moved_to_the_origin(where: Cluster, group: list[int]) -> tuple[tuple[int, ...], ...]:
    """Domain and place of each chip, counted from those of the first along axes that wrap."""
    each, shape = where.chips_per_domain, where.shape
    places = []
    for chip in group:
        further, place = chip // each - group[0] // each, (chip % each,)
        if isinstance(shape, Torus):
            at, begin = (np.unravel_index(one % each, shape.sizes) for one in (chip, group[0]))
            place = tuple(
                int(one - first) % axis.size if axis.wrap else int(one)
                for one, first, axis in zip(at, begin, shape.axes, strict=True)
            )
        places.append((further, *place))
    return tuple(places)


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp"])
@pytest.mark.parametrize("machine", ["trn2-ultraserver:2", "dgx-h100:16"])
def test_groups_of_one_geometry_are_translations(machine: str, axis: str, shuffled: bool) -> None:
    where = cluster(machine)
    how = plan(tp=4, cp=2, pp=4, dp=4, order=("tp", "pp", "cp", "dp"))
    chips = np.random.default_rng(1).permutation(128) if shuffled else None
    placed = place(how, where, chips)
    groups = placed.chip[placed.groups(axis)]
    first, geometry = geometries(where, groups)
    images = [moved_to_the_origin(where, group) for group in groups.tolist()]
    assert first[geometry].tolist() == [images.index(image) for image in images]
