"""Layers of experts, and layers whose attention selects its keys."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives.duration.expert_library import library_s
from tests.support.counted_layers import counted, product_flops
from tests.support.toy_training import LATENT, NARROW, SELECTING, SPARSE, TOY, plan, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.attention import index_score_s
from workloads.models.model import (
    attention_flops,
    forward_flops,
    index_flops,
    index_size,
    layer_flops,
    training_flops,
)
from workloads.training.frameworks.framework import framework
from workloads.training.iteration import iteration
from workloads.training.layers.feed_forward import load
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import NOTHING, PREVIOUS, RankShapes
from workloads.training.memory.memory import layer_activations
from workloads.training.plan.stages import layer_share
from workloads.training.program.groups import GroupCosts, group_of, group_ps


def by_name(steps):
    return {step.name: step for step in steps}


def steps_of(model, chip, changes):
    """Steps of a layer of a plan with these changes, forward and backward."""
    shapes = RankShapes(model, plan(**changes), chip, shipped_catalogue())
    return forward(shapes, moe=True), backward(shapes, moe=True)


def test_experts_exchange_every_copy_twice_each_way():
    shapes = counted(SPARSE, dp=8, ep=8)
    copies = 2 * 1024 * 2 * SPARSE.hidden
    talks = [s for s in (*forward(shapes, moe=True), *backward(shapes, moe=True)) if s.axis == "ep"]
    assert [(s.collective, s.size_bytes) for s in talks] == [("all-to-all", copies)] * 4
    skewed = counted(SPARSE, dp=8, ep=8, routing_skew=1.25)
    there = [s for s in forward(skewed, moe=True) if s.axis == "ep"]
    assert there[0].size_bytes == 1.25 * copies
    products = [product_flops(forward(one, moe=True)) for one in (shapes, skewed)]
    routed = 2 * 3 * SPARSE.hidden * 1024 * 1024 * 2
    assert products[1] - products[0] == pytest.approx(0.25 * routed)


@pytest.mark.parametrize("ep", [1, 8])
def test_a_capacity_is_computed_whole_whatever_the_skew(ep):
    even = counted(SPARSE, dp=8, ep=ep)
    room = counted(SPARSE, dp=8, ep=ep, capacity_factor=1.25, routing_skew=2.0)
    products = [product_flops(forward(one, moe=True)) for one in (even, room)]
    routed = 2 * 3 * SPARSE.hidden * 1024 * 1024 * 2
    assert products[1] - products[0] == pytest.approx(0.25 * routed)
    sent = [[s.size_bytes for s in forward(one, moe=True) if s.axis] for one in (even, room)]
    assert sent[1] == [1.25 * size for size in sent[0]]


@pytest.mark.parametrize(("changes", "blocks"), [
    ({"dp": 8, "ep": 8}, True),  # copies of eight ranks, for two experts
    ({"dp": 16, "ep": 16}, False),  # one expert: all copies are its own
    ({"dp": 8}, False),  # no other rank: the first sorting puts them in order
])  # fmt: skip
def test_what_arrives_rank_by_rank_is_sorted_by_expert(changes, blocks):
    shapes = counted(SPARSE, **changes)
    steps = [*forward(shapes, moe=True), *backward(shapes, moe=True)]
    moved = 2 * 2 * 1024 * 2 * SPARSE.hidden  # two bytes, read and written, two copies a token
    names = ("experts.sort", "experts.unsort", "experts.unsort.data", "experts.sort.data")
    sorts = {step.name: step.size_bytes for step in steps if "sort" in step.name}
    assert sorts == (dict.fromkeys(names, moved) if blocks else {})
    on_trainium = RankShapes(SPARSE, shapes.plan, "trn2", shipped_catalogue())
    assert not [step for step in forward(on_trainium, moe=True) if "sort" in step.name]


@pytest.mark.parametrize(
    ("machine", "merged"), [("dgx-h100", True), ("dgx-b200", True), ("dgx-a100", False)]
)
def test_deepep_sends_a_token_once_to_a_rank_where_rates_of_its_kernels_are_known(machine, merged):
    catalogue = shipped_catalogue().with_variants({"training.token_exchange": "deepep"})
    fabric, how = cluster(machine, catalogue=catalogue), plan(dp=8, ep=8, seq=4096)
    named = by_name(forward(RankShapes(SPARSE, how, fabric.chip, catalogue), moe=True))
    assert (named["experts.permute"].seconds == named["experts.sum"].seconds == 0) == merged
    assert named["experts.sort"].seconds > 0
    dispatch = named["experts.dispatch"]
    (taken_ps,) = GroupCosts(fabric).times_ps(np.arange(8), [dispatch], how, 2)
    group = group_of(fabric, np.arange(8))
    if merged:
        expected_s = library_s(catalogue, "deepep", "dispatch", group, dispatch.size_bytes / 2, 2)
        assert taken_ps == pytest.approx(1e12 * expected_s, abs=1)
    else:
        assert taken_ps == group_ps(group, "all-to-all", dispatch.size_bytes)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("taken_over", ["", "hybridep", "fused"])
def test_libraries_take_over_kernels_around_experts(taken_over, precision):
    catalogue = shipped_catalogue().with_variants({"kernels.b200.expert_passes_gb200": taken_over})
    how = plan(dp=8, ep=4, precision=precision)
    named = by_name(forward(RankShapes(SPARSE, how, "gb200", catalogue), moe=True))
    # HybridEP reads tokens where they are; what arrives is still sorted by expert.
    moved = bool(named["experts.permute"].seconds and named["experts.sum"].seconds)
    assert moved == (not taken_over)
    assert named["experts.sort"].seconds > 0
    # A kernel for products, activation and casts at once exists for fp8 alone.
    fused = taken_over == "fused" and precision == "fp8"
    assert bool(named["experts.activation"].seconds) != fused
    assert ("experts.up.cast" in named) == (precision == "fp8" and not fused)
    # It sends a token once to each of four ranks: with two experts a token, to 1.75 of them.
    sent = 2 * 1.75 if taken_over else 2 * 2
    work = load(RankShapes(SPARSE, how, "gb200", catalogue))
    assert work.copies == 2 * work.rows
    for name in ("experts.dispatch", "experts.combine"):
        assert named[name].size_bytes == sent * work.rows * SPARSE.expert_hidden


def test_experts_on_a_narrower_hidden_state_exchange_less():
    narrow = RankShapes(NARROW, plan(dp=8, ep=8), "h100", shipped_catalogue())
    wide = replace(narrow, model=SPARSE)
    for direction in (forward, backward):
        steps, usual = (by_name(direction(shapes, moe=True)) for shapes in (narrow, wide))
        exchanges = [name for name in usual if usual[name].axis == "ep"]
        assert len(exchanges) == 2
        for name in exchanges:
            assert steps[name].size_bytes == usual[name].size_bytes / 4
        for name in ("experts.permute", "experts.sum.data"):
            assert name not in usual or steps[name].seconds < usual[name].seconds
    # The products before and behind the exchange are whole on every rank, as in Megatron-Core.
    whole = [layer_share(NARROW, plan(tp=tp, dp=8, ep=8), moe=True).dense for tp in (1, 2)]
    around = 2 * 1024 * 256
    assert 2 * whole[1] - whole[0] >= around


def test_shared_experts_work_while_copies_travel():
    apart, beside = (plan(ep=8, dp=16, overlap=kind) for kind in ("dp", "all"))
    steps = forward(RankShapes(SPARSE, beside, "h100", shipped_catalogue()), moe=True)
    after = {
        "shared.up": NOTHING, "experts.sort": "experts.dispatch", "experts.up": PREVIOUS,
        "shared.down": NOTHING, "experts.sum": "experts.combine",
    }  # fmt: skip
    assert after.items() <= {step.name: step.after for step in steps}.items()
    usual, hidden = (iteration(SPARSE, sixteen(), how).breakdown_s for how in (apart, beside))
    assert hidden["exposed_ep"] < usual["exposed_ep"]
    assert hidden["compute"] == pytest.approx(usual["compute"], rel=1e-3)


def test_the_host_issues_the_product_of_every_expert():
    share = shipped_catalogue().value("kernels.h100", "expert_issue")
    assert share == shipped_catalogue().value("training", "expert_issue")
    some, alone = (
        {step.name: step.issued for step in steps_of(SPARSE, "h100", {"dp": 16, "ep": ep})[0]}
        for ep in (2, 16)
    )
    assert some["experts.up"] == some["experts.down"] == 1 + 7 * share
    assert some["router.logits"] == 1
    assert set(alone.values()) == {1}


def test_pytorch_multiplies_the_tokens_of_all_experts_in_one_kernel():
    chosen = {"kernels.b200.expert_issue": "grouped", "kernels.b200.grouped_efficiency": "pytorch"}
    several, one = shipped_catalogue(), shipped_catalogue().with_variants(chosen)
    rates = {"bf16": one.value("kernels.b200", "grouped_efficiency"), "mxfp8": 1}
    for precision, rate in rates.items():
        how = plan(dp=16, ep=2, precision=precision)
        shapes = [RankShapes(SPARSE, how, "b200", numbers) for numbers in (several, one)]
        for pass_ in forward, backward:
            each, together = (by_name(pass_(shape, moe=True)) for shape in shapes)
            for name in {"experts.up", "experts.up.data", "experts.down.weight"} & {*each}:
                assert together[name].issued == 1 < each[name].issued
                assert together[name].seconds == pytest.approx(each[name].seconds / rate)


@pytest.mark.parametrize("name", ["torchtitan", "transformers"])
def test_experts_are_issued_one_by_one_where_no_kernel_takes_all(name):
    def issued(place, stack=name):
        numbers = framework(stack).on(cluster(place), SPARSE).numbers
        shapes = RankShapes(SPARSE, plan(dp=16, ep=2), cluster(place).chip, numbers)
        steps = by_name(forward(shapes, moe=True))
        assert "experts.weights" not in steps or steps["experts.weights"].issued == 1
        return steps["experts.up"].issued

    assert issued("dgx-h100") == issued("dgx-b200") == 1 < issued("dgx-a100")
    assert issued("dgx-h100", "transformers:2026-01") == issued("dgx-a100")


def test_the_tokens_of_every_expert_are_cast_to_fp8_by_a_kernel_of_their_own():
    how = plan(dp=8, ep=2, precision="fp8")
    shapes = RankShapes(SPARSE, how, "h100", shipped_catalogue())
    steps = by_name([*forward(shapes, moe=True), *backward(shapes, moe=True)])
    casts = {name: step for name, step in steps.items() if ".cast" in name}
    names = "up.cast", "down.cast", "down.cast.data", "up.cast.data"
    assert [*casts] == [f"experts.{name}" for name in names]
    assert {step.issued for step in casts.values()} == {steps["experts.up"].issued}
    # Read in two bytes, written in one by rows and in one by columns.
    copies = how.microbatch * how.seq * SPARSE.experts.per_token
    assert casts["experts.up.cast"].size_bytes == 4 * copies * SPARSE.hidden
    assert casts["experts.down.cast"].size_bytes == 4 * copies * SPARSE.experts.ffn


@pytest.mark.parametrize(("chip", "stated", "casts"), [
    ("h100", {"precision": "bf16"}, []),
    ("h100", {"precision": "fp8", "fp8_recipe": "rowwise"}, []),  # the product casts
    ("trn2", {"precision": "fp8"}, []),  # a compiler does
    ("tpu7x", {"precision": "fp8"}, []),
    # What is sent in fp8 is not cast where it arrives.
    ("h100", {"precision": "fp8", "fp8_exchange": True}, ["experts.down.cast"]),
])  # fmt: skip
def test_tokens_of_experts_are_cast_where_a_kernel_does_so(chip, stated, casts):
    shapes = RankShapes(SPARSE, plan(dp=8, ep=2, **stated), chip, shipped_catalogue())
    assert [step.name for step in forward(shapes, moe=True) if ".cast" in step.name] == casts


def test_kernels_of_their_own_weigh_the_tokens_of_experts_where_a_framework_fuses_none():
    names = {f"training.expert_bytes_{way}": "torchtitan" for way in ("forward", "backward")}
    usual, counted_each = shipped_catalogue(), shipped_catalogue().with_variants(names)
    elements = 1024 * SPARSE.experts.per_token * SPARSE.hidden
    for pass_, name, traffic in (forward, "weights", 24), (backward, "weights.data", 40):
        shapes = [RankShapes(SPARSE, plan(dp=8), "h100", each) for each in (usual, counted_each)]
        within, apart = (by_name(pass_(shape, moe=True)) for shape in shapes)
        assert {*apart} - {*within} == {f"experts.{name}"}
        assert apart[f"experts.{name}"].size_bytes == traffic * elements
        # What moves tokens then takes the time of its own passes alone.
        moves = [step for step in within if step.startswith(("experts.permute", "experts.sum"))]
        assert len(moves) == 2
        for move in moves:
            assert apart[move].seconds == shapes[1].passes(within[move].size_bytes).seconds
            assert apart[move].seconds < within[move].seconds


@pytest.mark.parametrize(("chip", "eager"), [("h100", True), ("trn2", False), ("tpu7x", False)])
def test_biases_of_experts_are_added_by_kernels_of_an_eager_framework(chip, eager):
    def added(model):
        ahead, back = steps_of(model, chip, {"dp": 8, "ep": 2})
        return {s.name: s.size_bytes for s in (*ahead, *back) if "down.bias" in s.name}

    elements = 1024 * SPARSE.experts.per_token * SPARSE.hidden
    sizes = {"experts.down.bias": 28 * elements, "experts.down.bias.data": 40 * elements}
    biased = replace(SPARSE, experts=replace(SPARSE.experts, bias=True))
    assert added(biased) == (sizes if eager else {})
    assert added(SPARSE) == {}


@pytest.mark.parametrize(
    ("chip", "rows", "weight_rows"), [("tpu7x", 192, 1536), ("tpu-v6e", 384, 384), ("h100", 0, 0)]
)
def test_experts_share_tiles_of_grouped_products(chip, rows, weight_rows):
    """Three of four experts begin in a tile of another, which is computed for both."""
    experts = replace(SPARSE, experts=replace(SPARSE.experts, count=4))
    shapes = RankShapes(experts, plan(), chip, shipped_catalogue())
    work = load(shapes)
    assert (work.tiled - work.each, work.weight_tiled - work.each) == (rows, weight_rows)
    under_capacity = load(replace(shapes, plan=replace(shapes.plan, capacity_factor=1.25)))
    assert under_capacity.tiled == under_capacity.weight_tiled == under_capacity.each


CHIPS = ("a100-80gb", "h100", "b200", "trn2")
PLANS = [
    {"seq": 16_384, **more}
    for more in ({}, {"tp": 4}, {"cp": 4}, {"cp": 4, "cp_exchange": "all-gather", "tp": 2})
]


def test_flops_of_selected_keys_by_hand():
    """128 of at most 1,024 keys, 4 heads of 32 columns that score all of them."""
    seen = (128 * 129 / 2 + 896 * 128) / 1024
    widths, scores = 16 * (96 + 64), 4 * 32
    assert attention_flops(SELECTING, 1024) == 2 * widths * seen + 2 * scores * 512.5
    assert index_flops(SELECTING, 1024) == 2 * scores * 512.5
    assert index_flops(SELECTING, 1024, selected=True) == 2 * scores * seen
    assert index_size(SELECTING) == (256 * scores + 1024 * (32 + 4), 2 * 32)
    plain = replace(TOY, window=128, keys="selected", indexer=SELECTING.indexer)
    assert index_size(plain) == (1024 * (scores + 32 + 4), 2 * 32)  # no compressed queries
    products = layer_flops(plain, 1024, moe=False) - attention_flops(plain, 1024)
    assert product_flops(forward(counted(plain))) == pytest.approx(1024 * products)
    assert SELECTING.parameters - LATENT.parameters == 4 * sum(index_size(SELECTING))
    # Scores of keys that are not selected have no gradients.
    idle = 4 * (index_flops(SELECTING, 1024) - index_flops(SELECTING, 1024, selected=True))
    needed = training_flops(SELECTING, 1024, 1)
    assert needed == pytest.approx(3 * forward_flops(SELECTING, 1024) - 2 * idle, rel=1e-12)


@pytest.mark.parametrize("changes", PLANS)
@pytest.mark.parametrize("chip", CHIPS)
def test_no_more_selected_keys_are_ever_faster(chip, changes):
    models = [replace(SELECTING, window=keys) for keys in (128, 512, 2048, 8192, 16_384)]
    for which in (0, 1):
        passes = [steps_of(model, chip, changes)[which] for model in models]
        times = [sum(step.seconds for step in steps) for steps in passes]
        assert times == pytest.approx(sorted(times), rel=2e-3)
        assert times[0] < times[-1]


@pytest.mark.parametrize("changes", PLANS)
@pytest.mark.parametrize("chip", CHIPS)
def test_short_sequences_have_the_dense_core_beside_the_indexer(chip, changes):
    model = replace(SELECTING, window=16_384)
    passes = (steps_of(one, chip, changes) for one in (model, LATENT))
    for sparse, dense in zip(*passes, strict=True):
        core, dense_core = (
            [(step.name, step.seconds) for step in steps if ".core" in step.name]
            for steps in (sparse, dense)
        )
        assert core == dense_core
        more = {step.name for step in sparse} - {step.name for step in dense}
        assert {name.split(".")[1] for name in more} == {"index"}


def test_an_indexer_scores_all_keys_forward_and_selected_ones_backward():
    ahead, back = steps_of(SELECTING, "h100", {"seq": 16_384})
    times = {step.name: step.seconds for step in (*ahead, *back)}
    launch_s = RankShapes(SELECTING, plan(), "h100", shipped_catalogue()).stream(0).seconds
    score_s = index_score_s("h100", 4, 32, "bf16")
    all_scores, some = 16_384 * 8192.5, 128 * 129 / 2 + (16_384 - 128) * 128
    for name, expected in (
        ("attention.index", 2 * launch_s + all_scores * score_s),
        ("attention.index.weight", 4 * launch_s + 3 * some * score_s),
    ):
        assert times[name] == pytest.approx(expected, rel=1e-12)


def test_an_indexer_is_exchanged_run_again_and_left_without_gradients_where_frozen():
    ahead, back = steps_of(SELECTING, "h100", {"seq": 16_384, "cp": 4})
    exchanged = {s.name: (s.collective, s.size_bytes) for s in (*ahead, *back) if "index" in s.name}
    size = 2 * 16_384 * 32
    assert exchanged["attention.index.keys"] == ("all-gather", size)
    assert exchanged["attention.index.sums.weight"] == ("reduce-scatter", size)
    again = {step.name for step in steps_of(SELECTING, "h100", {"recompute": "full"})[1]}
    assert {"again.attention.index", "attention.index.weight"} <= again
    frozen = {step.name for step in steps_of(SELECTING, "h100", {"lora_rank": 8})[1]}
    assert "attention.core.data" in frozen
    assert not any(name.endswith("index.weight") for name in frozen)


def test_memory_of_an_indexer_is_on_every_rank():
    how = plan(tp=4, recompute="none")
    more = layer_activations(SELECTING, how, moe=True) - layer_activations(LATENT, how, moe=True)
    assert more == 1024 * (2 * (4 * 32 + 32 + 4) + 4 * 128)
    shares = [layer_share(model, how, moe=True).total for model in (SELECTING, LATENT)]
    assert shares[0] - shares[1] == sum(index_size(SELECTING))
