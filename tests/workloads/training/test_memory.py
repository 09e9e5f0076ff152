"""The memory of a rank agrees with published formulas, and over a step with its peak."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.random_schedules import spans
from tests.support.refusals import refusal_by
from tests.support.toy_training import SPARSE, TOY, in_flight, plan
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.front import train
from workloads.models.huggingface import named
from workloads.training.explain import memory_in_use
from workloads.training.memory.memory import (
    Memory,
    Stack,
    check_memory,
    layer_activations,
    memory,
    worst,
)
from workloads.training.plan.stages import edge_share, layer_share, layers_by_cost, stage_share

GPT = replace(named("gpt3-175b"), dropout=True)


@pytest.mark.parametrize(("changes", "per_hidden", "per_score"), [
    # Formula (1), less what only its unfused softmax input adds nothing to.
    ({"recompute": "none"}, 34, 5),
    # Tensor parallelism alone leaves ten; sequence parallelism divides all of it.
    ({"tp": 8, "recompute": "none", "sequence_parallel": False}, 10 + 24 / 8, 5 / 8),
    ({"tp": 8, "recompute": "none"}, 34 / 8, 5 / 8),
    ({"cp": 4, "recompute": "none", "attention": "fused"}, 34 / 4, 0),
    ({"tp": 8, "recompute": "full", "sequence_parallel": False}, 2, 0),
    ({"tp": 8, "recompute": "selective"}, 34 / 8, 0),
])  # fmt: skip
def test_activations_of_a_gpt_layer_are_those_of_its_paper(changes, per_hidden, per_score):
    """Formulas of arXiv 2205.05198; without scores a sum of each of their rows is kept instead."""
    how = plan(**{"seq": 2048, "microbatch": 1, "attention": "unfused", **changes})
    without_scores = how.attention == "fused" or how.recompute == "selective"
    rows = 4 * 2048 * GPT.heads / (how.cp * how.tp) if without_scores else 0
    expected = 2048 * GPT.hidden * per_hidden + 2048**2 * GPT.heads * per_score + rows
    assert layer_activations(GPT, how) == expected


def test_replicated_key_value_heads_are_counted():
    how = plan(tp=16)
    replicated = TOY.layers * 12 * 2 * TOY.head_dim * TOY.hidden
    norms = 15 * (2 * TOY.layers + 1) * TOY.hidden
    assert 16 * stage_share(TOY, how, 0).total == TOY.parameters + norms + replicated


def test_bytes_a_parameter():
    alone = held_by(plan(zero=0))
    narrow = need(plan(zero=0), gradient_bytes="bf16", optimizer_bytes="bf16")
    for held, gradient, state in ((alone, 4, 12), (narrow, 2, 4)):
        parts = (held.weights, held.gradients, held.optimizer)
        assert parts == tuple(size * TOY.parameters for size in (2, gradient, state))
    assert alone.total == sum(alone.parts().values())
    assert 2 * held_by(plan(ranks_per_chip=2), chip="trn1").capacity == 32 * 2**30


@pytest.mark.parametrize(
    ("zero", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))]
)
def test_zero_shards_over_data_and_context(zero, shares):
    """Parameters of the layer at work and of the next are whole in buffers, and those of ends."""
    how = plan(dp=4, cp=2, zero=zero)
    held = held_by(how)
    kept = (held.weights / 2, held.gradients / 4, held.optimizer / 12)
    assert kept == tuple(-(-TOY.parameters // share) for share in shares)
    layer, edges = layer_share(TOY, how).total, edge_share(TOY, how, 0)
    more = held.buffers - held_by(replace(how, zero=1)).buffers
    assert more == (2 * (2 * layer + edges) if zero == 3 else 0)


def test_stages_of_a_pipeline_hold_shards_unless_they_keep_what_is_gathered():
    one, two, three = (held_by(plan(pp=2, dp=4, zero=zero)) for zero in (1, 2, 3))
    assert held_by(plan(pp=2, dp=4, zero=3, reshard=False)) == one
    assert two.gradients == three.gradients == one.gradients // 4
    assert (two.weights, three.weights) == (one.weights, one.weights // 4)


def test_experts_are_sharded_over_those_that_hold_the_same():
    how = plan(tp=2, dp=8, ep=4, etp=1)
    assert (how.replicas, how.expert_replicas) == (8, 4)
    share = stage_share(SPARSE, how, 0)
    assert held_by(how, SPARSE).optimizer == 12 * (-(-share.dense // 8) + -(-share.experts // 4))


def test_activations_of_experts_follow_the_visits():
    """Sorted copies before and after the experts, and three widths of each that a token visits."""
    how = plan(seq=1024, recompute="none")
    dense, sparse = (layer_activations(SPARSE, how, moe=moe) for moe in (False, True))
    copies = 2 * (2 * 2 * SPARSE.hidden + 3 * 2 * 1024)
    shared, router = 2 * 3 * 2048, 2 * 4 * 16
    assert sparse - dense == 1024 * (copies + shared + router - 2 * 3 * SPARSE.ffn)


@pytest.mark.parametrize(("changes", "first", "last"), [
    ({"schedule": "1f1b"}, 4, 1),
    ({"schedule": "gpipe"}, 8, 8),
    ({"vpp": 2}, 2 * 3 + 4 + 1, 4 + 1),  # interleaving holds its warm-up and one more
    ({"schedule": "zero-bubble"}, 4, 4),  # ZB-H1 no more than 1F1B on its first stage
])  # fmt: skip
def test_chunks_in_flight(changes, first, last):
    assert [in_flight(plan(pp=4, **changes), stage) for stage in (0, 3)] == [first, last]


def held_by(how, model=TOY, stage=0, chip="trn2"):
    """Memory of a rank of a stage."""
    return memory(model, how, stage, shipped_catalogue(), chip)


def need(how, model=TOY, chip="h100", **variants):
    """Need of a plan by a stack with these variants."""
    chosen = {f"training.{name}": variant for name, variant in variants.items()}
    return worst(model, how, shipped_catalogue().with_variants(chosen), chip)


def test_a_refusal_says_what_is_lacking_and_names_changes_that_fit():
    """More chunks a stage hold fewer microbatches in flight; each remedy is tried here as well."""
    model = named("llama-3.1-70b")
    how = plan(tp=4, pp=8, vpp=2, seq=8192, global_batch=128, recompute="none")
    refused = need(how, model)
    text = refusal_by(check_memory, refused, model, how, shipped_catalogue(), "h100")
    lacking = [(size - refused.capacity) / 1e9 for size in (refused.total, refused.least)]
    assert "{:.1f} GB are missing, or {:.1f} GB in the".format(*lacking) in text
    advice = text.split("Use ")[1].split(", or --allow-oversized")[0].split(" or ")
    assert advice == ["--recompute full"]
    assert need(replace(how, recompute="full"), model).total <= refused.capacity
    more = need(replace(how, vpp=10), model)
    assert more.tight
    assert more.activations < refused.activations


@pytest.mark.parametrize(
    ("dp", "advice"),
    [
        (8, "Use --zero 3 or --recompute full"),
        (4, "Use --zero 3 --recompute full, or"),
        (2, "With --zero 3 --recompute full it fits only in a stack that keeps little: use more"),
        (1, "No change of one field makes it fit: use more chips"),
    ],
)
def test_a_refusal_proposes_what_is_likely_to_fit_or_says_that_nothing_does(dp, advice):
    model, how = named("deepseek-v3"), plan(tp=64, dp=dp, seq=4096, global_batch=64)
    refused = need(how, model, "trn2")
    assert advice in refusal_by(check_memory, refused, model, how, shipped_catalogue(), "trn2")
    least = need(replace(how, zero=3 * (dp > 1), recompute="full"), model, "trn2")
    assert (least.fits, least.tight) == (dp > 1, dp == 2)


def test_a_refusal_proposes_the_idle_ranks_of_a_chip():
    model, how = named("llama-3.2-1b"), plan(dp=1, seq=4096, ranks_per_chip=4, recompute="none")
    text = refusal_by(
        check_memory, need(how, model, "trn2"), model, how, shipped_catalogue(), "trn2"
    )
    assert "Use --tp 2 --dp 1 or --pp 2 --dp 1, or" in text
    assert need(replace(how, tp=2), model, "trn2").fits


@pytest.mark.parametrize(
    ("capacity", "fits", "tight"), [(89, False, False), (90, True, True), (100, True, False)]
)
def test_between_the_least_and_the_likely_need_a_plan_is_tight(capacity, fits, tight):
    one = Memory(20, 20, 20, 20, 10, 5, 5, capacity, below=10, above=30)
    assert (one.least, one.total, one.most) == (90, 100, 130)
    assert (one.fits, one.tight) == (fits, tight)
    assert sum(one.parts().values()) == one.total


def test_differences_of_stacks_add_as_squares():
    """With all but two quantities narrowed, the range is the root of two squares."""
    how, names = plan(zero=0, recompute="none", seq=1024), ("gradient_bytes", "runtime_bytes")
    base = shipped_catalogue()
    rows = [base.entry("training", name) for name in Stack._fields if name not in names]
    exact = base.with_rows(row._replace(low=row.value, high=row.value) for row in rows)
    held = worst(TOY, how, exact, "h100")
    assert held.below == int(math.hypot(2 * TOY.parameters, 1e9))
    assert held.above == int(1e9)


def test_inputs_of_products_in_fp8_wait_as_they_were_cast():
    """Four inputs of a layer's products lose a byte; that of the output projection is a copy."""
    how = plan(seq=1024, recompute="none")
    wide, cast = (
        layer_activations(TOY, replace(how, precision="fp8"), stack=Stack(fp8_input_bytes=size))
        for size in (2, 1)
    )
    assert layer_activations(TOY, how) == wide
    assert wide - cast == 1024 * (2 * TOY.hidden + TOY.ffn - TOY.value_width)


def test_what_is_computed_again_is_not_kept():
    how = plan(seq=1024, recompute="none")
    usual = layer_activations(TOY, how)
    for gated in (1, 2, 4):  # an eager framework keeps the activated gate as well
        kept = layer_activations(TOY, how, stack=Stack(gated_kept=gated))
        assert kept - usual == (gated - 3) * 2 * 1024 * TOY.ffn
    assert usual - layer_activations(TOY, how, stack=Stack(norms_kept=0)) == 4 * 1024 * TOY.hidden
    latent = named("deepseek-v3")
    heads = 2 * latent.query_width + latent.value_width
    kept = [layer_activations(latent, how, stack=Stack(latent_kept=one)) for one in (1, 0)]
    assert kept[0] - kept[1] == 2 * 1024 * heads


def test_a_frozen_product_without_an_adapter_keeps_no_input():
    how = plan(seq=1024, recompute="none", lora_rank=16)
    everywhere, attention = (
        layer_activations(TOY, replace(how, lora_on=part)) for part in ("all", "attention")
    )
    assert everywhere - attention == 2 * 1024 * (TOY.hidden + TOY.ffn)


def test_stages_of_equal_cost_leave_the_output_layer_to_the_last():
    """Eight layers and an output layer worth two give shares of 2.5 layers, rounded up in turn."""
    layer = 4 * TOY.query_width * TOY.hidden + 3 * TOY.ffn * TOY.hidden
    model = replace(TOY, vocab=2 * layer // TOY.hidden)
    assert layers_by_cost(model, 4) == (3, 3, 2, 0)
    how = plan(pp=4, recompute="none")
    stated = need(replace(how, stage_layers=(3, 3, 2, 0)), model)
    by_cost = need(how, model, stages_by_cost="nanotron")
    assert by_cost == replace(stated, below=by_cost.below)


def test_a_summed_gradient_of_a_layer_is_whole_where_ranks_keep_parts():
    """The loss needs more with a long vocabulary; without one the layer does."""
    small = replace(TOY, vocab=64)
    kept, parts = (held_by(plan(dp=4, zero=zero), small).buffers for zero in (1, 2))
    widest = 2 * 2 * small.ffn * small.hidden
    assert parts - kept == 4 * layer_share(small, plan(dp=4, zero=2)).total - widest


@pytest.mark.parametrize(("quantity", "variant", "more"), [
    ("loss_bytes", "fused", -2), ("loss_bytes", "copied", 2), ("loss_bytes", "pytorch", 4),
    ("loss_gathered", "whole", 8),  # those of the whole vocabulary on both ranks
])  # fmt: skip
def test_logits_depend_on_how_the_loss_is_computed(quantity, variant, more):
    how = plan(seq=4096, microbatch=4, tp=2, recompute="none")
    usual, other = need(how), need(how, **{quantity: variant})
    assert other.buffers - usual.buffers == more * 4 * 4096 * (TOY.vocab // 2)


def test_fragments_follow_what_comes_and_goes_and_the_runtime_stands_beside():
    held = held_by(plan(), chip="h100")
    share = shipped_catalogue().value("training", "fragmentation")
    assert held.fragments == int(share * (held.activations + held.buffers))
    assert held.total - held.reserved == held.runtime == 2_000_000_000
    assert held.reserved - held.allocated == held.fragments


@given(data=st.data())
@examples(150)
def test_no_stage_needs_more_memory_than_the_worst(data):
    """Only unlike stages are computed, also with kept layers and schedules that turn."""
    chunks = {"1f1b": 1, "gpipe": 1, "zero-bubble": 1, "interleaved": 3, "dualpipe": 2,
              "combined-1f1b": 2}  # fmt: skip
    schedule, pp = data.draw(st.sampled_from([*chunks])), data.draw(st.integers(2, 8))
    layers = data.draw(st.integers(max(3, pp * chunks[schedule] - 2), 30))
    model = replace(data.draw(st.sampled_from([TOY, SPARSE])), layers=layers)
    kept = data.draw(st.sampled_from(["none", "full"])), data.draw(st.integers(1, 4))
    batch = pp * data.draw(st.integers(2, 8))
    how = plan(pp=pp, vpp=chunks[schedule], schedule=schedule, global_batch=batch,
               recompute=kept[0], recompute_every=kept[1])  # fmt: skip
    each = [held_by(how, model, stage).total for stage in range(pp)]
    assert need(how, model, "trn2").total == max(each)


@pytest.mark.parametrize("how", [
    {"tp": 2, "pp": 2},
    {"pp": 4, "schedule": "gpipe"},
    {"pp": 4, "schedule": "interleaved", "vpp": 3},
    {"pp": 4, "schedule": "zero-bubble"},
    {"pp": 2, "recompute": "full"},
    {"tp": 2, "pp": 2, "schedule": "dualpipe", "vpp": 2},
], ids=lambda how: how.get("schedule", how.get("recompute", "1f1b")))  # fmt: skip
def test_the_peak_is_what_the_stage_is_said_to_hold(how):
    step = train("gpt2", "trn2.48xlarge", global_batch=64, **how)
    assert memory_in_use(step, spans([0], ["tp"], [0], [5])) == []  # a trace of a collective
    chip, counted = step.cluster.chip, memory_in_use(step, step.trace)
    stages = dict(zip(step.program.rank.tolist(), step.program.stage.tolist(), strict=True))
    assert len(counted) == how["pp"]
    for one in counted:
        rank = int(one.name.rsplit(" ", 1)[1])
        needed = held_by(step.plan, step.model, stages[rank], chip)
        always = needed.weights + needed.gradients + needed.optimizer
        assert one.value.max() == always + needed.activations
        assert one.value[:-1].min() == always
        assert one.at_ps[-1] == step.trace.total_ps
        assert np.all(np.diff(one.at_ps) > 0)
