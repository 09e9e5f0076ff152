"""The end of a step: the update of a rank's parameters, and the exchanges around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, exchange_ps, plan, toy_program
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.times import step_overhead_s
from workloads.training.iteration import iteration
from workloads.training.layers.replicas import (
    ReplicaExchange,
    gather_parameters,
    reduce_gradients,
    update,
)
from workloads.training.layers.steps import RankShapes
from workloads.training.plan.stages import Share


def test_a_sharded_update_on_trn1_takes_its_graphs_besides() -> None:
    sharded = RankShapes(TOY, plan(dp=256, zero=1), "trn1", shipped_catalogue())
    replicated = replace(sharded, plan=plan(dp=256, zero=0))
    overhead_s = step_overhead_s("trn1", 256)
    assert overhead_s == pytest.approx(3 * 0.66)
    assert {step_overhead_s(chip, 4096) for chip in ("trn2", "trn3-gen2", "h100")} == {0}
    owned = ReplicaExchange(sharded, 0, sharded.plan).owned
    kernel_s = update(sharded, owned).seconds - overhead_s
    assert 0 < kernel_s < update(replicated, owned).seconds < overhead_s


def test_in_fp16_the_update_moves_more_bytes() -> None:
    """Casts, unscaling and clipping of Megatron-LM: in 2021, and with a search in 2020."""
    read = {}
    for variant in ("", "fp16", "fp16-2020"):
        parts = shipped_catalogue().with_variants({"training.update_copies_bytes": variant})
        shapes = RankShapes(TOY, plan(dp=1), "a100-80gb", parts)
        owned = ReplicaExchange(shapes, 0, shapes.plan).owned
        read[variant] = update(shapes, owned).size_bytes / owned.total
    assert read == {"": 30, "fp16": 56, "fp16-2020": 66}


def test_a_state_in_two_bytes_moves_less() -> None:
    """Without a master copy a parameter is read and written, and two bytes each of its state."""
    narrow = {"training.optimizer_bytes": "bf16", "training.gradient_bytes": "bf16"}
    read = []
    for more in ({}, {"training.update_copies_bytes": "clipped"}):
        parts = shipped_catalogue().with_variants({**narrow, **more})
        shapes = RankShapes(TOY, plan(dp=1), "h100", parts)
        owned = ReplicaExchange(shapes, 0, shapes.plan).owned
        read.append(update(shapes, owned).size_bytes / owned.total)
    assert read == [14, 18]


def test_the_overhead_does_not_grow_with_the_batch() -> None:
    """Published steps of Llama2-7B: 256 sequences take 5.1 s, four times as many 10.1 to 12.6 s."""
    machine = cluster("trn1.32xlarge:4")
    how = plan(dp=16, tp=8, zero=1, ranks_per_chip=2)
    small, large = (
        iteration(TOY, machine, replace(how, global_batch=batch)) for batch in (64, 256)
    )
    assert large.breakdown_s["optimizer"] == pytest.approx(small.breakdown_s["optimizer"])
    overhead_s = step_overhead_s("trn1", 128)
    assert small.breakdown_s["optimizer"] == pytest.approx(overhead_s, rel=0.05)


def test_kernels_wait_only_for_shards_that_others_hold() -> None:
    """A replica alone waits for nothing; of r replicas each holds 1 / r of the shards itself."""
    waited = {}
    for dp in (1, 2, 4):
        how = plan(dp=dp, tp=8, pp=2, zero=3, ranks_per_chip=4)
        shapes = RankShapes(TOY, how, "trn2", shipped_catalogue())
        exchange = ReplicaExchange(shapes, 0, how)
        steps = exchange.waits(np.arange(4), gathers=True, reduces=True)
        waited[dp] = sum(step.seconds for step in steps)
    assert waited[1] == 0
    assert waited[4] / waited[2] == pytest.approx(0.75 / 0.5)
    sparse = RankShapes(SPARSE, plan(dp=8, tp=2, ep=4, etp=1, zero=3), "trn2", shipped_catalogue())
    others = ReplicaExchange(sparse, 0, sparse.plan)._from_others(Share(800, 400))
    assert others == 800 * 7 / 8 + 400 * 3 / 4  # four ranks hold the same experts


def test_deepspeed_gathers_the_weights_of_a_layer_one_by_one() -> None:
    """Large weights are reduced so too; embeddings and layers that a bucket holds come at once."""
    chosen = shipped_catalogue().with_variants({"training.gathered_weights": "four"})
    for zero, catalogue, count in ((3, chosen, 4), (3, shipped_catalogue(), 1), (1, chosen, 1)):
        shapes = RankShapes(TOY, plan(dp=8, zero=zero), "a100-80gb", catalogue)
        small, large = Share(4000, 0), Share(8 * 10**8, 0)
        gathers = gather_parameters(shapes, "bucket", small)
        assert [step.size_bytes for step in gathers] == count * [2 * 4000 // count]
        assert len(gather_parameters(shapes, "rest", small)) == 1
        reduced = [len(reduce_gradients(shapes, "bucket", share)) for share in (small, large)]
        assert reduced == [1, count]


@pytest.mark.parametrize(
    ("changes", "each"),
    [({}, 2), ({"precision": "fp8"}, 1), ({"precision": "fp8", "fp8_recipe": "rowwise"}, 2)],
)
def test_torchtitan_gathers_layers_in_fp8_where_one_scale_holds(
    changes: dict[str, str], each: int
) -> None:
    how = plan(dp=8, zero=3, **changes)
    cast = shipped_catalogue().with_variants({"training.sharded_cast": "fsdp2"})
    for parts, gathered in ((cast, each), (shipped_catalogue(), 2)):
        shapes = RankShapes(TOY, how, "h100", parts)
        (layer,) = gather_parameters(shapes, "bucket", Share(800, 0))
        (rest,) = gather_parameters(shapes, "rest", Share(800, 0))
        assert (layer.size_bytes, rest.size_bytes) == (gathered * 800, 2 * 800)


@pytest.mark.parametrize(
    ("changes", "ranks", "what"),
    [
        ({"tp": 2, "pp": 2, "dp": 4, "zero": 0}, 4, "pp"),
        ({"tp": 2, "dp": 8, "zero": 0}, 2, "tp"),
        ({"tp": 2, "cp": 2, "pp": 2, "dp": 2}, 16, "dp"),
        ({"tp": 2, "pp": 2, "dp": 4, "ep": 4, "zero": 0}, 16, "dp"),
    ],
)
def test_the_norm_is_summed_over_all_different_gradients(changes, ranks, what) -> None:
    """Without sharding replicas hold the same ones; experts lie across replicas."""
    machine, how = cluster("trn2.48xlarge"), plan(**changes)
    program = toy_program(how, machine, SPARSE if how.ep > 1 else TOY)
    (exchange,) = (one for one in program.exchanges if one.axis == "norm")
    assert exchange.members.shape == (16 // ranks, ranks)
    assert sorted(exchange.members.ravel().tolist()) == list(range(16))
    for role in program.roles(exchange):
        assert (program.stage[exchange.members[:, role.places]] == role.stage).all()
        (step,) = (program.steps[program.streams[role.stage].ops.step[op]] for op in role.ops)
        assert (step.name, step.what, step.size_bytes) == ("norm.sum", what, 4)
    lasts = exchange_ps(machine, program.chip[exchange.members[0]], "all-reduce", 4)
    assert exchange.duration_ps[exchange.kind[0]].tolist() == [lasts]


def test_nobody_updates_before_the_norm_is_known() -> None:
    step = iteration(TOY, cluster("trn2.48xlarge"), plan(tp=2, pp=2, dp=4), folded=False)
    frame = step.trace.frame()
    norm_end_ps = frame[frame["name"] == "norm.sum"].end_ps
    updates = frame[frame["name"] == "optimizer.step"].start_ps
    assert len(norm_end_ps) == len(updates) == 16
    assert norm_end_ps.nunique() == 1
    assert (updates == norm_end_ps.iloc[0]).all()
