"""Layers: FLOPs of all products, what runs beside, before and after them, and in pieces."""

import re
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from tests.support.counted_layers import counted, product_flops
from tests.support.toy_training import LATENT, NARROW, SELECTING, SPARSE, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels import gemm as kernel_times
from workloads.models.huggingface import named
from workloads.models.model import attention_flops, layer_flops, training_flops
from workloads.training.iteration import recomputed_flops
from workloads.training.layers.adapters import trained_flops
from workloads.training.layers.layer import (
    backward,
    data_half,
    embedding,
    embedding_backward,
    forward,
    output,
    output_backward,
    weight_half,
)
from workloads.training.layers.steps import NOTHING, PREVIOUS, RankShapes
from workloads.training.memory.memory import layer_activations, stack_of
from workloads.training.plan.placement import place
from workloads.training.plan.stages import layer_share
from workloads.training.program.program import program
from workloads.training.program.stage import as_tried

GATED = replace(LATENT, attention_gate=True)
UNCOMPRESSED = replace(GATED, latent=LATENT.latent and replace(LATENT.latent, query_rank=0))
PLANS = [
    {}, {"tp": 4}, {"tp": 4, "sequence_parallel": False}, {"cp": 4},
    {"tp": 2, "dp": 4, "ep": 8, "etp": 1}, {"tp": 2, "dp": 4, "ep": 4, "etp": 2},
]  # fmt: skip


@pytest.mark.parametrize(("model", "moe", "changes"), [
    *product([TOY], [False], PLANS),
    *product([SPARSE], [True, False], PLANS),
    *product([NARROW], [True], PLANS),
    *product([LATENT, UNCOMPRESSED, SELECTING, GATED], [True], [{}]),
])  # fmt: skip
def test_products_are_the_flops_of_the_layer(model, moe, changes):
    """Forward two a weight and token, backward twice that; every rank does its part."""
    if not model.experts:
        changes = {name: size for name, size in changes.items() if name not in ("ep", "etp")}
    shapes = counted(model, **changes)
    per_token = layer_flops(model, 1024, moe=moe) - attention_flops(model, 1024)
    expected = per_token * 1024 / (shapes.plan.tp * shapes.plan.cp)
    assert product_flops(forward(shapes, moe=moe)) == pytest.approx(expected, rel=1e-9)
    assert product_flops(backward(shapes, moe=moe)) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "again"),
    [({}, True), ({"seq": 4096}, False), ({"pp": 1}, False), ({"recompute": "none"}, False)],
)
def test_long_sequences_in_pipelines_of_nxd_run_the_up_projection_again(changes, again):
    """Its gathered input and the activation too; the down-projection's output is not needed."""
    catalogue = shipped_catalogue().with_variants({"training.feed_again_tokens": "neuronx"})
    stated = {"tp": 4, "pp": 2, "seq": 8192, "recompute": "selective", **changes}
    shapes = replace(counted(TOY, **stated), catalogue=catalogue)
    steps = [step for step in backward(shapes) if step.name.startswith("again.")]
    assert bool(steps) == again
    wide = 2 * TOY.ffn if TOY.gated_mlp else TOY.ffn
    expected = 2 * shapes.tokens * TOY.hidden * wide / shapes.plan.tp
    assert product_flops(steps) == pytest.approx(again * expected)
    kept = layer_activations(TOY, shapes.plan, stack=stack_of(shipped_catalogue()))
    not_kept = layer_activations(TOY, shapes.plan, stack=stack_of(catalogue))
    assert (not_kept < kept) == again


@pytest.mark.parametrize(("stated", "variants", "cast"), [
    ({"precision": "fp8", "zero": 3}, {"training.gathered_cast": "whole"}, True),
    ({"precision": "fp8", "zero": 1}, {"training.gathered_cast": "whole"}, False),
    ({"precision": "bf16", "zero": 3}, {"training.gathered_cast": "whole"}, False),
    ({"precision": "fp8", "zero": 3}, {}, False),
])  # fmt: skip
def test_weights_gathered_in_bf16_are_cast_in_each_pass(stated, variants, cast):
    """Two bytes read and one written of every weight of the layer, forward and backward."""
    catalogue = shipped_catalogue().with_variants(variants)
    how = plan(dp=4, recompute="full", **stated)
    shapes = RankShapes(TOY, how, "h100", catalogue)
    for steps in (forward(shapes), backward(shapes)):
        sizes = [step.size_bytes for step in steps if step.name.endswith("layer.unshard")]
        assert sizes == [3 * layer_share(TOY, how).total] * cast
    on_tpu = RankShapes(TOY, how, "tpu7x", catalogue)
    assert not [step for step in forward(on_tpu) if step.name == "layer.unshard"]


@pytest.mark.parametrize("tp", [1, 4])
def test_a_look_up_by_one_hot_rows_is_a_product_with_the_vocabulary(tp):
    catalogue = shipped_catalogue().with_variants({"training.embedding_products": "one-hot"})
    looked_up, fetched = counted(TOY, tp=tp), counted(TOY, tp=tp)
    looked_up = replace(looked_up, catalogue=catalogue)
    expected = 2 * looked_up.tokens * TOY.vocab * TOY.hidden / tp
    for steps in (embedding, embedding_backward):
        plain = [step for step in steps(fetched) if step.axis == ""]
        assert product_flops(steps(looked_up)) == pytest.approx(expected, rel=1e-9)
        assert product_flops(plain) < expected / 1e6


@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("zero", [1, 3])
def test_policies_of_jax_keep_attentions_projections_alone(attention, zero):
    """The core of attention and the up-projection run again, and nothing is kept of them."""
    catalogue = shipped_catalogue().with_variants(
        {"training.selective_keeps": "projections", "training.again_to_the_end": "early-stop"}
    )
    stated = {"dp": 4, "zero": zero, "recompute": "selective", "attention": attention}
    shapes = replace(counted(TOY, **stated), catalogue=catalogue)
    again = [step for step in backward(shapes) if step.name.startswith("again.")]
    products = {"again.attention.core", "again.mlp.up"}
    assert {step.name for step in again} >= products
    assert not [step for step in again if "qkv" in step.name or "out" in step.name]
    assert len([step for step in backward(shapes) if "again.attention.core" in step.name]) == 1
    kept, whole, full = (
        layer_activations(TOY, replace(shapes.plan, recompute=how), stack=stack_of(catalogue))
        for how in ("selective", "none", "full")
    )
    columns = 2 * TOY.hidden + TOY.query_width + 2 * TOY.kv_heads * TOY.head_dim
    assert full < kept < whole
    assert kept == 2 * shapes.tokens * columns + 4 * shapes.tokens * TOY.heads
    per_token = recomputed_flops(TOY, shapes.plan, catalogue) / TOY.layers
    scores = attention_flops(TOY, shapes.plan.seq)
    assert product_flops(again) == pytest.approx((per_token - scores) * shapes.tokens, rel=1e-9)


@pytest.mark.parametrize(("changes", "chip", "heads", "kernels"), [
    ({"tp": 8}, "h100", "", 3),
    ({"tp": 8, "microbatch": 2}, "h100", "", 0),
    ({"tp": 4}, "h100", "", 0),
    ({"tp": 8, "attention": "fused"}, "h100", "", 0),
    ({"tp": 8}, "mi300x", "", 0),
    ({"tp": 4}, "mi300x", "eager", 3),
    ({"tp": 4, "attention": "fused"}, "h100", "eager", 0),
])  # fmt: skip
def test_scores_of_two_heads_are_normalised_by_kernels_of_pytorch(changes, chip, heads, kernels):
    """The fused kernel of masked softmax takes multiples of four heads; some stacks have none."""
    catalogue = shipped_catalogue().with_variants({"training.softmax_heads": heads})
    whole = counted(TOY, **{"attention": "unfused", **changes})
    shapes = replace(whole, chip=chip, catalogue=catalogue)
    for steps, name in (
        (forward(shapes), "attention.core.softmax"),
        (backward(shapes), "attention.core.data.softmax"),
    ):
        assert sum(step.issued for step in steps if step.name == name) == kernels


@pytest.mark.parametrize(("changes", "positions", "copied"), [
    ({}, 0, (4, 24)),
    ({}, 1024, (24, 24)),
    ({"microbatch": 2}, 0, (40, 40)),
    ({"microbatch": 2, "tp": 2}, 0, (20, 20)),
    ({"microbatch": 2, "attention": "unfused"}, 0, (0, 0)),
])  # fmt: skip
def test_batches_come_first_by_copies_of_four_bytes_an_element(changes, positions, copied):
    """Of 16 + 4 + 4 heads and 16 of the result; rotated ones of one sequence need no copy."""
    catalogue = shipped_catalogue().with_variants({"training.attention_copy_bytes": "batch-first"})
    shapes = replace(counted(replace(TOY, positions=positions), **changes), catalogue=catalogue)
    for steps, heads in zip((forward(shapes), backward(shapes)), copied, strict=True):
        seconds = [step.seconds for step in steps if step.name == "attention.rotate.copies"]
        assert seconds == [shapes.stream(4 * shapes.tokens * heads * 64).seconds] * (heads > 0)


@pytest.mark.parametrize(("changes", "early"), [
    ({}, True),
    ({"tp": 2}, True),
    ({"lora_rank": 8}, False),
    ({"lora_rank": 8, "lora_on": "attention"}, True),
    ({"recompute": "none"}, False),
])  # fmt: skip
def test_recomputation_that_ends_early_leaves_out_the_down_projection(changes, early):
    """What it gives only enters a sum; an adapter beside it needs its own input, after it."""
    catalogue = shipped_catalogue().with_variants({"training.again_to_the_end": "early-stop"})
    whole = counted(TOY, **{"recompute": "full", **changes})
    shapes = replace(whole, catalogue=catalogue)
    left_out = {step.name for step in backward(whole)} - {step.name for step in backward(shapes)}
    assert ("again.mlp.down" in left_out) == early
    flops = product_flops(backward(whole)) - product_flops(backward(shapes))
    down = 2 * shapes.tokens * TOY.hidden * TOY.ffn / shapes.plan.tp
    assert flops == pytest.approx(early * down)


@pytest.mark.parametrize(("recipe", "each"), [("tensorwise", 0), ("rowwise", 5), ("blockwise", 3)])
def test_a_product_casts_both_of_its_inputs(recipe, each):
    """By the recipe an element's cast moves 0, 5 or 3 bytes; tp gathers bf16 where one casts."""
    rank = RankShapes(
        TOY, plan(tp=2, precision="fp8", fp8_recipe=recipe), "h100", shipped_catalogue()
    )
    alone = kernel_times.gemm("h100", 4096, 2048, 1024, "fp8").seconds
    cast = rank.stream(each * (4096 + 2048) * 1024).seconds if each else 0.0
    assert rank.gemm(4096, 2048, 1024).seconds == pytest.approx(alone + cast, rel=1e-12)
    assert rank.gathered_bytes == rank.wide_bytes // (1 if each else 2)


def test_torchao_casts_blocks_of_mxfp8_for_each_product():
    shipped = shipped_catalogue()
    kept = RankShapes(TOY, plan(precision="mxfp8"), "b200", shipped)
    again = replace(kept, catalogue=shipped.with_variants({"training.fp8_input_bytes": "wide"}))
    longer = again.gemm(4096, 2048, 1024).seconds - kept.gemm(4096, 2048, 1024).seconds
    assert longer == pytest.approx(kept.stream(3 * (4096 + 2048) * 1024).seconds, rel=1e-9)


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize("model", [TOY, SPARSE, LATENT, SELECTING])
def test_a_split_backward_pass_does_the_same_work(model, overlap):
    steps = backward(counted(model, tp=2, overlap=overlap), moe=bool(model.experts))
    halves = [*data_half(steps), *weight_half(steps)]
    assert Counter(s.name for s in halves) == Counter(s.name for s in steps)
    assert not any(".weight" in s.name for s in data_half(steps))


@pytest.mark.parametrize("way", ["ring", "all-gather"])
def test_context_parallelism_moves_keys_and_values_round(way):
    shapes = counted(TOY, cp=4, cp_exchange=way)
    shard_bytes = 2 * 2 * TOY.kv_heads * TOY.head_dim * 1024 // 4
    there = [(s.collective, s.size_bytes) for s in forward(shapes) if s.axis == "cp"]
    back = Counter((s.collective, s.size_bytes) for s in backward(shapes) if s.axis == "cp")
    if way == "ring":
        assert there == [("permute", shard_bytes)] * 3
        assert back == {("permute", shard_bytes): 3 + 4}
    else:
        assert there == [("all-gather", 4 * shard_bytes)]
        assert back == {("all-gather", 4 * shard_bytes): 1, ("reduce-scatter", 4 * shard_bytes): 1}


@pytest.mark.parametrize(("chip", "padded"), [("tpu-v5p", True), ("h100", False)])
def test_tpus_compute_narrow_heads_as_whole_lanes(chip, padded):
    """Splash attention takes heads of multiples of 128."""
    narrow_s, lanes_s = (
        sum(step.seconds for step in forward(shapes) if step.name == "attention.core")
        for width in (64, 128)
        for shapes in [replace(counted(replace(TOY, head_dim=width)), chip=chip)]
    )
    assert (narrow_s == lanes_s) is padded


@pytest.mark.parametrize("direction", [forward, backward])
def test_every_turn_of_a_ring_but_the_first_is_merged(direction):
    """One kernel that sees all keys merges nothing; PyTorch moves more bytes than a fused one."""
    loose = {f"training.ring_merge_{way}": "pytorch" for way in ("forward", "backward")}
    fused, apart = shipped_catalogue(), shipped_catalogue().with_variants(loose)

    def merged(parts, cp):
        steps = direction(RankShapes(TOY, plan(cp=cp), "h100", parts))
        return [step.size_bytes for step in steps if step.name.endswith(".merge")]

    few, values = merged(fused, 4), 1024 // 4 * TOY.heads * TOY.head_dim
    assert (len(merged(fused, 1)), len(few)) == (0, 3)
    assert merged(apart, 4)[0] == (40 if direction is forward else 54) * values > few[0]


def test_products_in_fp8_gather_half_the_bytes():
    """Inputs are cast before they are gathered; sums and the output layer stay in two bytes."""
    wide, narrow = (counted(TOY, tp=4, precision=kind) for kind in ("bf16", "fp8"))

    def sent(steps, kind):
        return sum(step.size_bytes for step in steps if step.collective == kind)

    for kind, part in (("all-gather", 2), ("reduce-scatter", 1)):
        assert sent(forward(narrow), kind) == sent(forward(wide), kind) // part > 0
    assert [step.size_bytes for step in output(narrow)] == [s.size_bytes for s in output(wide)]


@pytest.mark.parametrize(("sums", "element_bytes"), [("separate", 6), ("fp32", 18)])
def test_gradients_of_several_microbatches_are_summed_where_products_do_not(sums, element_bytes):
    separate = shipped_catalogue().with_variants({"training.accumulation_bytes": sums})
    many, one = plan(tp=2), plan(tp=2, global_batch=1)
    fused = backward(RankShapes(TOY, many, "h100", shipped_catalogue()))
    summed = backward(RankShapes(TOY, many, "h100", separate))
    assert backward(RankShapes(TOY, one, "h100", separate)) == fused
    assert summed[:-1] == fused
    held = layer_share(TOY, many).total
    moved = RankShapes(TOY, many, "h100", separate).passes(element_bytes * held)
    assert summed[-1].seconds == moved.seconds
    assert weight_half(summed)[-1].name == summed[-1].name


@pytest.mark.parametrize(
    ("stack", "forward_bytes", "backward_bytes"),
    [("written-out", 36, 96 + 2 * 6), ("autocast", 32 + 2 * 6, 102 + 2 * 18)],
)
def test_a_norm_written_out_moves_what_its_kernels_do(stack, forward_bytes, backward_bytes):
    """Gate and up-projection are two products that read the norm's result."""
    names = ["norm_forward", "norm_backward", "reader_backward"]
    names += ["reader_forward"] if stack == "autocast" else []
    variants = {f"training.{name}_bytes": stack for name in names}
    gated = replace(TOY, gated_mlp=True)
    shapes = RankShapes(gated, plan(tp=1), "h100", shipped_catalogue().with_variants(variants))
    steps = {step.name: step for step in (*forward(shapes), *backward(shapes))}
    elements = shapes.tokens * gated.hidden
    assert steps["mlp.norm"].size_bytes == forward_bytes * elements
    assert steps["mlp.norm.data"].size_bytes == backward_bytes * elements
    # Queries, keys and values are one reader more.
    more = steps["attention.norm.data"].size_bytes - steps["mlp.norm.data"].size_bytes
    assert more == (18 if stack == "autocast" else 6) * elements


def test_autocast_casts_weights_before_and_gradients_after_each_pass():
    parts = shipped_catalogue().with_variants({"training.weight_cast_bytes": "autocast"})
    shapes, usual = (
        RankShapes(TOY, plan(tp=1), "h100", catalogue) for catalogue in (parts, shipped_catalogue())
    )
    moved = 6 * layer_share(TOY, shapes.plan, moe=False).total
    for direction, name in ((forward, "layer.cast"), (backward, "layer.sum.weight")):
        added = set(direction(shapes)) - set(direction(usual))
        assert [(step.name, step.size_bytes) for step in added] == [(name, moved)]
    head = {step.name: step for step in (*output(shapes), *output_backward(shapes))}
    for name in ("output.cast", "output.cast.weight"):
        assert head[name].size_bytes == 6 * TOY.vocab * TOY.hidden


@pytest.mark.parametrize("parallel", [True, False])
def test_stages_send_each_value_once_and_put_sequences_together(parallel):
    """Without sequence parallelism what the ranks of a group sent in parts is gathered behind."""
    how = plan(tp=4, pp=2, sequence_parallel=parallel)
    whole = program(
        RankShapes(TOY, how, "h100", shipped_catalogue()), place(how, cluster("dgx-h100"))
    )
    sends = {s.name: s.size_bytes for s in whole.steps if s.axis in ("forward", "backward")}
    assert set(sends.values()) == {2 * 1024 * TOY.hidden // 4}
    gathers = [s for s in whole.steps if s.name in ("forward.gather", "backward.gather")]
    assert [s.size_bytes for s in gathers] == ([] if parallel else [2 * 1024 * TOY.hidden] * 2)


def test_sharded_layers_are_handled_three_times_a_microbatch():
    """Parameters before each pass, gradients after; recomputation adds none."""
    names = ("sharded_copy_bytes", "sharded_start")
    eager = shipped_catalogue().with_variants({f"training.{name}": "eager" for name in names})

    def handled(parts=eager, **changes):
        shapes = RankShapes(TOY, plan(dp=8, **changes), "h100", parts)
        steps = [*forward(shapes), *backward(shapes)]
        return [s.seconds for s in steps if s.name.endswith((".unshard", ".shard"))]

    kept = handled(zero=3)
    assert len(kept) == 3
    assert min(kept) > eager.value("training", "sharded_start")
    assert handled(zero=3, recompute="full") == kept
    assert handled(zero=1) == handled(shipped_catalogue(), zero=3) == []


@pytest.mark.parametrize(("machine", "issues"), [("dgx-h100", True), ("tpu-v6e-pod", False)])
def test_no_host_issues_the_kernels_of_a_compiled_program(machine, issues):
    small = replace(TOY, layers=2, hidden=128, ffn=512, vocab=512)
    where = cluster(machine)
    how = plan(dp=where.chips, global_batch=where.chips, seq=128)
    whole = program(RankShapes(small, how, where.chip, where.catalogue), place(how, where))
    assert any(step.name == "host.issue" for step in whole.steps) == issues


def packed_steps(model, **changes):
    shapes = RankShapes(model, plan(**changes), "h100", shipped_catalogue())
    return forward(shapes) + backward(shapes)


@pytest.mark.parametrize("model", [TOY, replace(TOY, window=128), LATENT])
def test_packed_samples_take_as_long_as_so_many_short_sequences(model):
    """A batch of 2 × 4,096 tokens in samples of 256 is one of 32 sequences of 256."""
    packed = packed_steps(model, seq=4096, sample_tokens=256, microbatch=2)
    short = packed_steps(model, seq=256, microbatch=32, global_batch=32)
    assert [step.name for step in packed] == [step.name for step in short]
    assert [step.seconds for step in packed] == [step.seconds for step in short]


def test_scores_of_an_indexer_stay_within_a_sample():
    """The mean token sees 512.5 keys of a sample of 1,024 and 2,048.5 of a whole sequence."""

    def index_s(**changes):
        steps = packed_steps(SELECTING, seq=4096, **changes)
        return sum(step.seconds for step in steps if step.name == "attention.index")

    launches = index_s(sample_tokens=128)
    whole, packed = index_s() - launches, index_s(sample_tokens=1024) - launches
    assert packed / whole == pytest.approx((512.5 - 64.5) / (2048.5 - 64.5))


def test_flops_count_the_scores_within_samples():
    how = plan(seq=4096, sample_tokens=256, global_batch=8)
    assert trained_flops(TOY, how) == training_flops(TOY, 256, 8 * 4096)
    assert trained_flops(TOY, how) < trained_flops(TOY, plan(seq=4096, global_batch=8))


class Undisturbed(RankShapes):
    """RankShapes whose products lose nothing to what runs beside them."""

    def beside(self, timing):
        return timing


@pytest.mark.parametrize("moe", [False, True])
def test_overlapped_products_do_the_same_work_in_pieces(moe):
    """Bytes of communication and steps but for the pieces are those of the plan without overlap."""
    model = SPARSE if moe else TOY
    apart, beside = (
        RankShapes(model, plan(tp=4, overlap=kind, seq=16_384), "trn2", shipped_catalogue())
        for kind in ("dp", "all")
    )
    for way in (forward, backward):
        whole, pieces = both = way(apart, moe=moe), way(beside, moe=moe)
        sent, sent_in_pieces = (sum(s.size_bytes for s in one if s.axis == "tp") for one in both)
        assert sent_in_pieces == sent
        names = {re.sub(r"\.[234]$", "", step.name) for step in pieces}
        assert names == {step.name for step in whole}
        assert sum(s.issued for s in pieces) == sum(s.issued for s in whole) >= len(whole)


def test_pieces_of_a_product_wait_for_their_own_piece_only():
    shapes = RankShapes(TOY, plan(tp=4, overlap="all", seq=16_384), "trn2", shipped_catalogue())
    after = {
        "mlp.up": "mlp.gather", "mlp.up.3": "mlp.gather.3", "mlp.gather.3": NOTHING,
        "mlp.down.3": NOTHING, "mlp.scatter.3": PREVIOUS,
    }  # fmt: skip
    assert after.items() <= {step.name: step.after for step in forward(shapes)}.items()
    short = RankShapes(TOY, plan(tp=4, overlap="all"), "trn2", shipped_catalogue())
    assert all(step.issued for step in forward(short))


@pytest.mark.parametrize(("a_byte_s", "beside"), [(1e-16, False), (1e-11, True)])
def test_products_run_beside_communication_where_that_is_faster(a_byte_s, beside):
    """Pieces of products take longer than a whole, which communication must make good."""
    how = plan(tp=4, overlap="all", seq=16_384)
    shapes = RankShapes(TOY, how, "h100", shipped_catalogue())
    tried = as_tried(shapes, lambda step: a_byte_s * step.size_bytes)
    assert tried.beside_tp == beside
    whole = RankShapes(TOY, replace(how, overlap="dp"), "h100", shipped_catalogue())
    assert (forward(tried) == forward(whole)) == (backward(tried) == backward(whole)) != beside


@pytest.mark.parametrize(
    ("chip", "share"), [("h100", 132 / 112), ("a100-80gb", 108 / 88), ("trn2", 1)]
)
def test_a_product_beside_a_reduction_gives_processors_up(chip, share):
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    shapes = RankShapes(TOY, how, chip, shipped_catalogue())
    product = shapes.gemm(4096, 4096, 4096)
    assert shapes.beside(product).seconds == pytest.approx(share * product.seconds)


def test_only_reductions_take_processors_from_products():
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    passes = (
        backward(kind(TOY, how, "h100", shipped_catalogue())) for kind in (RankShapes, Undisturbed)
    )
    longer = [one.name for one, other in zip(*passes, strict=True) if one.seconds > other.seconds]
    assert longer == ["mlp.up.weight", "attention.qkv.weight"]


def test_batches_first_copy_what_is_gathered_and_scattered():
    """Each communication of the sequence has a copy beside it, unless products run beside it."""
    variants = {"training.sequence_copies": "concatenated", "training.input_gathers": "kept"}
    chosen = shipped_catalogue().with_variants(variants)
    how = plan(tp=4, sequence_parallel=True)
    for overlap, count in (("dp", 4), ("all", 0)):
        shapes = RankShapes(TOY, replace(how, overlap=overlap), "h100", chosen)
        steps = forward(shapes)
        copies = [step for step in steps if step.name.endswith(".copy")]
        assert len(copies) == count
        assert all(step.size_bytes == 2 * shapes.wide_bytes for step in copies)
    for catalogue, gathers in ((shipped_catalogue(), 4), (chosen, 2)):
        steps = backward(RankShapes(TOY, how, "h100", catalogue))
        assert sum(".gather" in step.name and step.axis == "tp" for step in steps) == gathers


@pytest.mark.parametrize(("chip", "model", "tokens", "measured_s"), [
    ("b200", "nemotron-3-nano-30b-a3b", 65536, 2.53e-3),
    ("b200", "nemotron-3-super-120b-a12b", 16384, 1.28e-3),
    ("b200", "nemotron-3-ultra-550b-a55b", 16384, 2.82e-3),
    ("h100", "nemotron-3-super-120b-a12b", 8192, 8192 / 12.62e6),
])  # fmt: skip
def test_scans_of_mamba_2_take_what_its_kernels_took(chip, model, tokens, measured_s):
    """``mamba_chunk_scan_combined``: aiconfigurator's on B200, of vLLM's pull request on H100."""
    hybrid = named(model)
    mixing = next(kind for kind in hybrid.kinds if kind.mixer == "recurrence")
    shapes = RankShapes(hybrid, plan(seq=tokens), chip, shipped_catalogue()).of_kind(mixing)
    took_s = sum(step.seconds for step in forward(shapes) if ".state." in step.name)
    assert took_s == pytest.approx(measured_s, rel=0.15)
    for share, name in ((1, "tpu-v5p"), (2, "gb300")):  # products where none was measured
        other = RankShapes(hybrid, plan(seq=tokens, tp=share), name, shipped_catalogue())
        steps = [step.seconds for step in forward(other.of_kind(mixing)) if ".state." in step.name]
        assert (share * sum(steps) > 0.5 * took_s) == (name == "gb300")
