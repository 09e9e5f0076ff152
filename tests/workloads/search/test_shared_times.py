"""Estimates of many plans share times: each must be that of the plan alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.search.estimate import _Shared, estimate, replicas
from workloads.search.pipeline_model import walk_s
from workloads.training.layers.replicas import (
    bucket_parameters,
    buckets,
    edges_of,
    gather_parameters,
    reduce_gradients,
)
from workloads.training.layers.steps import RankShapes
from workloads.training.memory.memory import Stack, chunk_activations, layer_activations
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.stages import (
    chunk_layers,
    end_stages,
    is_kept,
    kind_shares,
    kinds_of_chunks,
    layer_kinds,
    stage_kinds,
    total,
    unlike_stages,
)

CHANGES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 4, "dp": 1},
    "pp": {"pp": 4, "dp": 1},
    "dp": {"dp": 4, "global_batch": 16},
    "cp": {"cp": 2, "dp": 1},
    "ep": {"ep": 4, "etp": 1},
    "etp": {"etp": 1, "ep": 2},
    "vpp": {"vpp": 2, "schedule": "interleaved"},
    "microbatch": {"microbatch": 2},
    "global_batch": {"global_batch": 2},
    "seq": {"seq": 2048},
    "zero": {"zero": 3},
    "reshard": {"reshard": False},
    "sequence_parallel": {"sequence_parallel": False},
    "schedule": {"schedule": "zero-bubble"},
    "recompute": {"recompute": "full"},
    "recompute_every": {"recompute_every": 2},
    "precision": {"precision": "fp8"},
    "fp8_recipe": {"precision": "fp8", "fp8_recipe": "rowwise"},
    "overlap": {"overlap": "all"},
    "attention": {"attention": "unfused"},
    "ranks_per_chip": {"ranks_per_chip": 2},
    "order": {"order": ("dp", "pp", "cp", "tp")},
    "cp_exchange": {"cp": 2, "dp": 1, "cp_exchange": "all-gather"},
    "routing_skew": {"routing_skew": 1.5},
    "capacity_factor": {"capacity_factor": 1.25},
    "routed_nodes": {},  # needs experts on several servers
    "fp8_exchange": {"fp8_exchange": True},
    "stage_layers": {"stage_layers": (3, 5)},
    "bucket_bytes": {"bucket_bytes": 10**6},
    "lora_rank": {"lora_rank": 8},
    "lora_on": {"lora_rank": 8, "lora_on": "attention"},
    "train_only": {"train_only": "mlp"},
    "runtime": {"runtime": "eager"},
    "framework": {"framework": "axlearn"},
    "optimizer": {"optimizer": "muon"},
    "sample_tokens": {"sample_tokens": 256},
}
"""Changes of each field of a plan, with others that they need."""


@pytest.mark.parametrize(
    ("model", "usual"),
    [(TOY, {}), (SPARSE, {"zero": 3, "overlap": "dp", "recompute": "full"})],
    ids=["dense", "sparse"],
)
def test_an_estimate_does_not_depend_on_the_plans_beside_it(
    model: Model, usual: dict[str, Any]
) -> None:
    """A field that is left out of a key gives a plan the times of one that was there before."""
    assert set(CHANGES) == set(PLAN_FIELDS), "change every field"
    experts = {"ep": 2, "etp": 1} if model.experts else {}
    base = plan(**{"tp": 2, "pp": 2, "dp": 2, "global_batch": 8, **experts, **usual})
    dense_only = ("ep", "etp", "routing_skew", "capacity_factor", "fp8_exchange")
    changes = [
        change
        for name, change in CHANGES.items()
        if model.experts or name not in dense_only
        if not (model.experts and {"cp", "tp", "pp"} & set(change))
    ]
    plans = [base, *(replace(base, **change) for change in changes)]
    machine = sixteen()
    alone = [estimate(model, machine, [one])[0] for one in plans]
    assert estimate(model, machine, plans[::-1]).tolist()[::-1] == alone


@pytest.mark.parametrize("overlap", ["none", "dp", "all"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_chunks_without_layers_are_walked_within_the_arrays(zero: int, overlap: str) -> None:
    """The ends of a model may have chunks without a layer, which once read and wrote beyond."""
    how = plan(
        pp=5, vpp=2, dp=2, zero=zero, overlap=overlap, schedule="interleaved", global_batch=20
    )
    line = _Shared(TOY, sixteen()).line(how)
    assert line.first[[0, 1, -2, -1]].tolist() == [0, 0, 8, 8]
    guarded = {}
    for name in ("gather_s", "reduce_s"):
        column = np.full(len(getattr(line.replicas, name)) + 64, 1e30)
        column[32:-32] = getattr(line.replicas, name)
        guarded[name] = column[32:-32]
    apart = line._replace(replicas=line.replicas._replace(**guarded))
    assert walk_s(apart) == walk_s(line) < 1


PLANS = (
    ParallelPlan(pp=4, dp=8, global_batch=32, zero=2),
    ParallelPlan(pp=4, vpp=3, schedule="interleaved", dp=8, global_batch=32, zero=1),
    ParallelPlan(pp=4, vpp=2, schedule="dualpipe", dp=8, global_batch=64, zero=1),
    ParallelPlan(pp=3, stage_layers=(2, 30, 29), dp=2, global_batch=6, bucket_bytes=10**9),
    ParallelPlan(pp=2, dp=4, global_batch=8, recompute="full", recompute_every=3, zero=3),
)
MODEL = named("deepseek-v3")  # three dense layers, then 58 with experts


def talk(step):
    return 1e-6 + step.size_bytes * 1e-12


@pytest.mark.parametrize("plan", PLANS)
def test_kinds_of_chunks_are_counted_layer_by_layer(plan):
    kinds, chunks = len(MODEL.kinds), kinds_of_chunks(MODEL, plan)
    seen = {}
    for stage in range(plan.pp):
        held = chunk_layers(MODEL, plan, stage)
        for chunk, layers in enumerate(held):
            numbers = layer_kinds(MODEL, layers) + kinds * is_kept(plan, layers)
            counts = np.bincount(numbers, minlength=2 * kinds).tolist()
            assert list(chunks[plan.pipeline.number(plan.pp, stage, chunk)]) == counts
        each = [tuple(np.bincount(layer_kinds(MODEL, one), minlength=kinds)) for one in held]
        assert stage_kinds(MODEL, plan, stage) == tuple(np.sum(each, axis=0))
        ends = tuple(stage == end for end in end_stages(plan))
        kept = tuple(is_kept(plan, layers).sum() for layers in held)
        # Under a schedule that turns no stage stands for another.
        seen.setdefault((ends, tuple(each), kept, stage if plan.pipeline.turns else 0), stage)
    assert unlike_stages(MODEL, plan) == tuple(seen.values())


@pytest.mark.parametrize("plan", PLANS)
def test_activations_of_a_chunk_are_those_of_its_layers(plan):
    for stage in range(plan.pp):
        for chunk, layers in enumerate(chunk_layers(MODEL, plan, stage)):
            kinds = [MODEL.kinds[kind] for kind in layer_kinds(MODEL, layers)]
            hows = [_kept(plan) if kept else plan for kept in is_kept(plan, layers)]
            each = [
                layer_activations(MODEL.of_kind(kind), how, moe=kind.experts)
                for kind, how in zip(kinds, hows, strict=True)
            ]
            last = plan.pipeline.number(plan.pp, stage, chunk) == plan.pp * plan.vpp - 1
            norm = 4 * plan.microbatch * plan.seq * MODEL.hidden // plan.sp * last
            assert chunk_activations(MODEL, plan, stage, chunk, Stack()) == sum(each) + norm


def _kept(plan):
    return ParallelPlan(pp=plan.pp, dp=plan.dp, global_batch=plan.global_batch)


@pytest.mark.parametrize("plan", PLANS)
def test_buckets_shared_by_alike_chunks_are_those_of_each_chunk(plan):
    shapes = RankShapes(MODEL, plan, "h100", shipped_catalogue())
    shared = replicas(MODEL, plan, "h100", shipped_catalogue(), talk)
    gather, reduce = np.zeros(MODEL.layers), np.zeros(MODEL.layers)
    least = 1 if plan.sharding >= 2 else bucket_parameters(shapes)
    shares = kind_shares(MODEL, plan)
    for stage in range(plan.pp):
        for chunk, layers in enumerate(chunk_layers(MODEL, plan, stage)):
            layer_shares = [shares[kind] for kind in layer_kinds(MODEL, layers)]
            for run in buckets([one.total for one in layer_shares], least):
                gathered = gather_parameters(
                    shapes, "bucket", total(layer_shares[run.start : run.stop])
                )
                gather[layers[run.start]] = sum(map(talk, gathered))
            rest, back = [], layer_shares[::-1]
            for run in buckets([one.total for one in back], least):
                bucket = total(back[run.start : run.stop])
                if bucket.total < least:
                    rest = [bucket]
                else:
                    reduced = reduce_gradients(shapes, "bucket", bucket)
                    reduce[layers[-run.stop]] = sum(map(talk, reduced))
            number = plan.pipeline.number(plan.pp, stage, chunk)
            if number in (0, plan.pp * plan.vpp - 1):
                rest.append(edges_of(shapes, stage))
            left = reduce_gradients(shapes, "bucket", total(rest))
            assert shared.reduce_rest_s[number] == sum(map(talk, left))
    assert shared.gather_s.tolist() == gather.tolist()
    assert shared.reduce_s.tolist() == reduce.tolist()
