"""Parts that plans and stages share equal those computed for each plan alone."""

import numpy as np
import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from workloads.models.huggingface import named
from workloads.search.estimate import replicas
from workloads.training.layers.replicas import (
    bucket_parameters,
    buckets,
    edges_of,
    gather_parameters,
    reduce_gradients,
)
from workloads.training.layers.steps import RankShapes
from workloads.training.memory.memory import Stack, chunk_activations, layer_activations
from workloads.training.plan.plan import ParallelPlan
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
