"""Sizes of models and plans, counted by hand and as published, and of prediction heads."""

import resource
import time
from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.refusals import refused
from tests.support.small_decoders import small
from tests.support.toy_training import LATENT, SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models.huggingface import named
from workloads.models.model import layer_flops, layer_parameters, training_flops
from workloads.training import detail
from workloads.training.detail import estimated_size
from workloads.training.iteration import iteration
from workloads.training.layers.steps import RankShapes
from workloads.training.plan import stages
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import complete

SHARES = [
    (TOY, {"tp": 4, "pp": 2}),
    (TOY, {"tp": 2, "pp": 4, "vpp": 2}),
    (TOY, {"tp": 2, "pp": 3}),
    (SPARSE, {"tp": 2, "pp": 2, "dp": 4, "ep": 8, "etp": 1}),
    (SPARSE, {"tp": 4, "dp": 2, "ep": 2}),
    (LATENT, {"tp": 4, "pp": 2, "dp": 4, "ep": 4}),
]


@pytest.mark.parametrize(("model", "changes"), SHARES)
def test_shares_of_all_ranks_are_the_model(model, changes):
    """Each tensor-parallel rank holds the undivided parameters; experts are on one."""
    how, alone = plan(**changes), stages.stage_share(model, plan(), 0)
    shares = [stages.stage_share(model, how, stage) for stage in range(how.pp)]
    assert sum(share.experts for share in shares) * how.ep * how.expert_tp == alone.experts
    whole = model.norm_parameters
    for moe, layers in ((False, model.layers - model.moe_layers), (True, model.moe_layers)):
        one, two = (stages.layer_share(model, plan(tp=tp), moe=moe).dense for tp in (1, 2))
        whole += layers * (2 * two - one)  # twice what two ranks have too many
    dense = sum(share.dense for share in shares) * how.tp
    assert dense == alone.dense + (how.tp - 1) * whole
    assert alone.total == model.parameters


def test_layers_are_spread_evenly_and_the_ends_have_fewer():
    assert stages.layer_counts(126, 64) == (1, *[2] * 62, 1)
    assert (stages.layer_counts(32, 8), sum(stages.layer_counts(61, 16))) == ((4,) * 8, 61)
    how = ParallelPlan(pp=2, vpp=2, seq=1024)
    held = [stages.chunk_layers(TOY, how, stage) for stage in (0, 1)]
    assert [layers.tolist() for layers in held[1]] == [[2, 3], [6, 7]]
    assert np.sort(np.concatenate([*held[0], *held[1]])).tolist() == [*range(8)]
    stated = replace(how, stage_layers=(1, 3, 3, 1))
    assert [layers.tolist() for layers in stages.chunk_layers(TOY, stated, 0)] == [[0], [4, 5, 6]]
    assert stages.stage_layers(TOY, stated) == 4
    assert [stage for stage in range(4) if stages.edge_share(TOY, plan(pp=4), stage)] == [0, 3]


HUGE = [
    ("gpt2", "trn2.48xlarge", {"tp": 4, "global_batch": 100_000_000}, {}),
    ("gpt2", "trn2.48xlarge", {"tp": 4, "global_batch": 1600}, {"iterations": 1000}),
    ("llama-3.1-405b", "rainier", {"tp": 32, "pp": 2}, {"level": "chunk"}),
    ("llama-3.1-405b", "rainier", {"tp": 32, "pp": 2}, {"folded": False, "level": "collective"}),
]


@pytest.mark.parametrize(("model", "machine", "stated", "how"), HUGE)
def test_work_too_large_is_refused_before_it_is_built(model, machine, stated, how):
    shape, where = named(model), cluster(machine)
    whole = complete(stated, shape, where)
    begun = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"follows about .* ops of this step, and .*\. Use "):
        iteration(shape, where, whole, **how)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_the_estimate_of_ops_is_near_what_is_built(zero, schedule):
    for model in (TOY, SPARSE):
        how = plan(tp=2, pp=2, dp=4, zero=zero, schedule=schedule, overlap="dp", global_batch=64)
        step = iteration(model, sixteen(), how)
        built = sum(len(stream.ops) for stream in step.program.streams)
        where = step.cluster  # with the numbers of the framework
        shapes = RankShapes(model, how, where.chip, where.catalogue)
        guess = estimated_size(shapes, 1, every_rank=False)
        assert 0.95 * built <= guess.stage_ops <= 1.25 * built
        assert step.ops <= guess.ops


@pytest.mark.parametrize(("batch", "how", "remedy"), [
    (8000, {"level": "collective"}, "level rank-vector"),
    (2000, {"engine": "reference"}, "engine fast"),
])  # fmt: skip
def test_the_refusal_names_the_level_that_would_do(batch, how, remedy, monkeypatch):
    monkeypatch.setattr(detail, "machine_bytes", lambda: 10**9)
    with pytest.raises(InputError, match=f"Use --{remedy}"):
        iteration(TOY, sixteen(), plan(tp=4, dp=4, global_batch=batch), folded=False, **how)


V3 = named("deepseek-v3")
MACHINE = "dgx-h100"


def test_the_head_of_deepseek_v3_has_the_published_size():
    """Its card has 14 B weights of the head, with the embedding and output layer it shares."""
    more = V3.with_prediction_heads(1)
    added = more.parameters - V3.parameters
    shared = 2 * V3.vocab * V3.hidden
    assert added == 2 * V3.hidden**2 + 3 * V3.hidden + layer_parameters(
        V3.of_kind(V3.each_layer[-1]), moe=True
    )
    assert added + shared == pytest.approx(14e9, rel=0.05)
    assert not more.left_out
    assert V3.with_prediction_heads(0) is V3


def test_a_head_computes_a_layer_a_projection_and_the_logits_again():
    more = V3.with_prediction_heads(2)
    one = layer_flops(V3.of_kind(V3.each_layer[-1]), 4096, moe=True)
    one += 2 * V3.vocab * V3.hidden + 4 * V3.hidden**2
    added = training_flops(more, 4096, 1) - training_flops(V3, 4096, 1)
    assert added == pytest.approx(3 * 2 * one)


def step_s(model, **fields):
    """Time of a step on one server."""
    return cs.train(model, MACHINE, global_batch=8, seq=1024, **fields).iteration_s


@pytest.mark.parametrize(
    ("chunks", "layers"), [(1, [10]), (4, [2, 2, 3, 3]), (8, [1] * 6 + [2] * 2)]
)
def test_heads_lie_in_the_last_chunk(chunks, layers):
    counts = stages.even_layers(small(num_hidden_layers=8).with_prediction_heads(2), chunks)
    assert sorted(counts) == layers
    assert counts[-1] >= 2


def test_the_last_stage_has_an_embedding_of_its_own():
    plain, plan = small(num_hidden_layers=8), ParallelPlan(pp=4)
    model = plain.with_prediction_heads(1)
    added = stages.edge_share(model, plan, 3) - stages.edge_share(plain, plan, 3)
    assert added == model.prediction_parameters + plain.embedding_parameters
    assert stages.edge_share(model, plan, 0) == stages.edge_share(plain, plan, 0)
    assert stages.chunk_layers(model, plan, 3)[0][-1] == 8


@pytest.mark.parametrize(("fields", "message"), [
    ({"lora_rank": 8}, "2 prediction heads with lora_rank 8, which leaves them frozen"),
    ({"train_only": "mlp"}, "with train_only mlp"),
    ({"pp": 2, "stage_layers": (5, 1)}, "1 layers in the last chunk, which holds the 2"),
])  # fmt: skip
def test_plans_that_do_not_train_heads_are_refused_and_heads_are_added_once(fields, message):
    model = small().with_prediction_heads(2)
    refused(message, step_s, model, **fields)
    refused("1 prediction heads beside the 2", model.with_prediction_heads, 1)
