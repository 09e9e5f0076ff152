"""DualPipe: the way there and back, paired passes, and suitable exchanges of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.expert_library import visited
from tests.support.toy_training import SPARSE, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.search.candidates import candidates
from workloads.search.estimate import estimate
from workloads.training.iteration import iteration
from workloads.training.memory.memory import memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.registry import pipeline_schedule
from workloads.training.plan.stages import chunk_layers, end_stages
from workloads.training.program.groups import routed_ps

HOW: dict[str, Any] = {"schedule": "dualpipe", "vpp": 2, "pp": 4}
WIDE = {"ep": 16, "dp": 16, "seq": 1024, "zero": 1, "global_batch": 16}


def routed(**changes: Any) -> ParallelPlan:
    # DeepEP routes and sends fewer bytes by itself.
    return ParallelPlan(**{"framework": "megatron-core:alltoall", **WIDE, **changes})


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_most_passes_are_pairs_and_few_microbatches_have_none(pp: int) -> None:
    """The steady state of a stage holds two pairs a microbatch; see the steps of the source."""
    how = pipeline_schedule("dualpipe")
    for stage in range(pp):
        order = passes(how, pp, stage, 5 * pp, 2)
        pair = (order.phase[:-1] == 0) & (order.phase[1:] == 1)
        pair &= order.chunk[:-1] != order.chunk[1:]
        steady = 3 * pp + stage + 1
        assert pair.sum() == 2 * steady + (pp - 1 - stage)
        few = passes(how, pp, stage, 2 * pp - 1, 2)
        assert few.phase.tolist()[: 4 * pp - 2] == [0] * (4 * pp - 2)


def test_the_model_goes_there_and_back() -> None:
    how = plan(**HOW)
    held = [[chunk.tolist() for chunk in chunk_layers(SPARSE, how, stage)] for stage in range(4)]
    assert held == [[[0], [7]], [[1], [6]], [[2], [5]], [[3], [4]]]
    assert end_stages(how) == (0, 0)
    first, last = (memory(SPARSE, how, s, sixteen().catalogue, "trn2") for s in (0, 3))
    ends = 2 * SPARSE.vocab * SPARSE.hidden * 2  # embedding and output layer in two bytes
    dense = memory(SPARSE, replace(how, pp=1, vpp=1), 0, sixteen().catalogue, "trn2")
    assert first.weights > last.weights - ends > 0
    assert dense.weights < 4 * first.weights


def test_every_kernel_of_a_pair_is_done_once_and_waits_for_its_own_pass() -> None:
    """The same kernels as of the plain order; gradients of weights after those of inputs."""
    how = plan(**HOW, dp=4, ep=4, global_batch=40)
    beside = toy_program(how, sixteen(), SPARSE)
    for stage, stream in enumerate(beside.streams):
        ops = stream.ops
        assert (ops.back >= 0).all()
        assert (ops.back <= np.arange(len(ops))).all()
        names = np.array([beside.steps[number].name for number in ops.step.tolist()])
        for layer in np.concatenate(chunk_layers(SPARSE, how, stage)).tolist():
            for microbatch in range(10):
                of_pass = (ops.layer == layer) & (ops.microbatch == microbatch)
                done = names[of_pass].tolist()
                assert done.count("attention.core") == done.count("attention.core.data") == 1
                assert done.index("attention.qkv") < done.index("attention.out.data")
                assert done.index("attention.qkv.data") < done.index("attention.qkv.weight")


def test_exchanges_hide_behind_the_other_pass() -> None:
    """Most of the exposed exchange is hidden with one expert-parallel group of four servers."""
    machine = cluster("dgx-h100:4")
    model = replace(SPARSE, layers=8)
    shown = {}
    for name, chunks in (("interleaved", 2), ("dualpipe", 2)):
        how = ParallelPlan(
            pp=2, dp=16, ep=16, vpp=chunks, schedule=name, global_batch=16 * 16, seq=4096
        )
        shown[name] = iteration(model, machine, how).breakdown_s
    assert shown["dualpipe"]["exposed_ep"] < 0.7 * shown["interleaved"]["exposed_ep"]
    # Exchanges keep 20 of 132 multiprocessors of the products.
    assert shown["dualpipe"]["compute"] > shown["interleaved"]["compute"]


def test_the_search_knows_what_paired_passes_hide() -> None:
    machine, model = cluster("dgx-h100:4"), replace(SPARSE, layers=16)
    how: dict[str, Any] = {"schedule": "dualpipe", "vpp": 2, "pp": 2, "dp": 16, "ep": 16}
    plan = ParallelPlan(**how, microbatch=8, global_batch=16 * 128, seq=4096)
    seconds = estimate(model, machine, [plan])[0]
    assert seconds == pytest.approx(iteration(model, machine, plan).iteration_s, rel=0.12)


def test_a_token_is_sent_to_each_server_once() -> None:
    machine = cluster("dgx-h100:2")
    group = Group(machine, np.arange(16), 1)
    size = 2**28
    across = Group(machine, np.array([0, 8]), 1)
    within = Group(machine, np.arange(8), 1)
    crossing = round(visited(2, 8) * size / 8)
    expected = max(
        duration_ps(CollectiveCall("all-to-all", across, crossing)),
        duration_ps(CollectiveCall("all-to-all", within, size)),
    )
    assert routed_ps(group, 2, 8, size) == expected
    assert expected < duration_ps(CollectiveCall("all-to-all", group, size))


def test_routing_and_fp8_shorten_exchanges_and_memory() -> None:
    machine = cluster("dgx-h100:2")
    steps = {
        name: iteration(SPARSE, machine, routed(**how))
        for name, how in {
            "plain": {},
            "routed": {"routed_nodes": 1},
            "fp8": {"fp8_exchange": True},
        }.items()
    }
    ep = {name: step.breakdown_s["exposed_ep"] for name, step in steps.items()}
    assert ep["routed"] < 0.8 * ep["plain"]
    assert 0.7 * ep["plain"] < ep["fp8"] < 0.9 * ep["plain"]  # one way of two is halved
    assert steps["fp8"].memory.activations < steps["plain"].memory.activations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routed_nodes": 3}, "ep 16 lies on 2. Use at most 2"),
        ({"routed_nodes": 1, "ep": 8}, "ep 8 lies within one. Use --routed-nodes 0"),
        ({"routed_nodes": 1, "level": "chunk"}, "--level chunk writes out a copy for each expert"),
        ({"routed_nodes": 1, "level": "flow"}, "--level flow writes out a copy for each expert"),
    ],
)
def test_options_that_a_plan_cannot_have_are_refused(changes: dict[str, Any], message: str) -> None:
    level = changes.pop("level", "collective")
    with pytest.raises(InputError, match=message):
        iteration(SPARSE, cluster("dgx-h100:2"), routed(**changes), level=level)


def test_the_search_leaves_out_plans_without_such_servers() -> None:
    machine = cluster("dgx-h100:2")
    possible = candidates(SPARSE, machine, 64, stated={"routed_nodes": 2, "seq": 1024})
    assert {one.routed_nodes for one in possible.plans} == {2}
    assert min(one.ep for one in possible.plans) > 1
    with pytest.raises(InputError, match="ep 8 lies within one"):
        candidates(SPARSE, machine, 64, stated={"routed_nodes": 2, "ep": 8, "tp": 1, "pp": 1})
