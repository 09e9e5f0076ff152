"""Programs that share costs and groups equal those that share none; passes are built once."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
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
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.layers import layer
from workloads.training.layers.steps import RankShapes
from workloads.training.plan import placement
from workloads.training.plan.placement import place
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.program import stage
from workloads.training.program.groups import GroupCosts, SharedParts
from workloads.training.program.program import Program, program

OTHER_AXES = ("tp", "cp", "pp", "dp")
PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp"},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "order": OTHER_AXES},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "global_batch": 24},
    {"tp": 2, "pp": 2, "dp": 2, "overlap": "dp", "global_batch": 2},
    {"tp": 2, "pp": 2, "dp": 2, "schedule": "zero-bubble", "overlap": "all"},
    {"pp": 4, "vpp": 2, "schedule": "interleaved", "dp": 2, "zero": 2},
    {"tp": 2, "cp": 2, "dp": 4, "zero": 3},
    {"tp": 4, "pp": 2, "dp": 4, "ranks_per_chip": 2},
    {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 1, "recompute": "full"},
)


def built(how: ParallelPlan, shared: SharedParts | None = None) -> Program:
    where = sixteen()
    model = SPARSE if how.ep > 1 else TOY
    shapes = RankShapes(model, how, where.chip, shipped_catalogue())
    return program(shapes, place(how, where), shared=shared)


def test_programs_that_share_parts_are_the_same() -> None:
    shared = SharedParts()
    for changes in (*PLANS, *PLANS):
        alone, sharing = built(plan(**changes)), built(plan(**changes), shared)
        assert alone.steps == sharing.steps
        for pair in zip(alone.streams, sharing.streams, strict=True):
            for column in ("step", "back", "layer", "microbatch"):
                np.testing.assert_equal(*(getattr(stream.ops, column) for stream in pair))
            for column in ("src", "dst", "contends"):
                np.testing.assert_equal(*(getattr(stream, column) for stream in pair))
        for one, other in zip(alone.exchanges, sharing.exchanges, strict=True):
            for field in fields(one):
                np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


def test_a_framework_with_another_collective_library_keeps_its_costs(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("title: ours\nruntimes: [nccl]\nnumbers: {nccl-tuner.trees: none}\n")
    machine, shared = cluster("dgx-h100:16"), SharedParts()
    how = plan(dp=128, zero=0, global_batch=128, overlap="none")
    plans = [how, replace(how, framework=str(file))]
    alone = [iteration(TOY, machine, each).time_s for each in plans]
    sharing = [iteration(TOY, machine, each, shared=shared).time_s for each in plans]
    assert sharing == alone
    assert alone[0] < alone[1]


@pytest.mark.parametrize(("degrees", "count"), [({"pp": 2}, 6), ({"pp": 4}, 9), ({"pp": 8}, 9)])
def test_passes_are_laid_out_once_for_stages_that_differ_in_the_numbers_of_layers(
    degrees: dict[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out = []
    lay_out = stage.StagePasses._ops

    def counted(self: Any, *parts: Any, **steps: Any) -> Any:
        laid_out.append(steps)
        return lay_out(self, *parts, **steps)

    monkeypatch.setattr(stage.StagePasses, "_ops", counted)
    built(plan(tp=2, overlap="dp", **degrees))
    # Forward and backward passes of the first stage, the last and those between, and the last
    # backward passes, whose gradients leave.
    assert len(laid_out) == count


@pytest.mark.parametrize("model", [TOY, SPARSE], ids=["dense", "sparse"])
def test_steps_of_a_layer_depend_on_the_fields_that_they_are_remembered_by(model: Model) -> None:
    """Any field but those of the key changes nothing, so that one layer stands for all."""
    changes: dict[str, dict[str, Any]] = {
        "pp": {"pp": 2, "global_batch": 64},
        "dp": {"dp": 16, "global_batch": 64},
        "vpp": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
        "global_batch": {"global_batch": 32},
        "zero": {"zero": 2},
        "reshard": {"reshard": False},
        "schedule": {"schedule": "zero-bubble"},
        "order": {"order": OTHER_AXES},
        "stage_layers": {"pp": 2, "stage_layers": (3, 5)},
        "bucket_bytes": {"bucket_bytes": 10**6},
        "recompute_every": {"recompute_every": 2},
        "runtime": {"runtime": "eager"},
        "framework": {"framework": "axlearn"},
        "optimizer": {"optimizer": "muon"},
    }
    assert set(PLAN_FIELDS) == {*layer.LAYER_FIELDS, *changes}
    apart = {"ep": 4, "etp": 1} if model.experts else {}
    for usual in ({"tp": 2}, {"tp": 2, "recompute": "full"}, {"tp": 2, "overlap": "all"}):
        base = {"dp": 8, "global_batch": 16, **apart, **usual}
        steps = remembered_by_nothing(model, plan(**base))
        for change in changes.values():
            assert remembered_by_nothing(model, plan(**{**base, **change})) == steps


def remembered_by_nothing(model: Model, how: ParallelPlan) -> list[Any]:
    """Steps of layers forward and backward, made anew."""
    layer._forward.cache_clear()
    layer._backward.cache_clear()
    shapes = RankShapes(model, how, "trn2", shipped_catalogue())
    moe = model.experts is not None
    return [layer.forward(shapes, moe=moe), layer.backward(shapes, moe=moe)]


def test_ranks_of_one_chip_write_what_they_exchange_and_read_it() -> None:
    """A GPU, for which no copy within a chip is stated."""
    where = cluster("dgx-h100")
    rate = shipped_catalogue().value("h100", "hbm_bandwidth")
    for size_bytes in (2**20, 2**30):
        taken_ps = exchange_ps(where, np.array([3, 3]), "all-reduce", size_bytes)
        assert taken_ps == pytest.approx(2 * size_bytes / rate * 1e12, abs=1)


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
