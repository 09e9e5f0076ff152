"""Layers: FLOPs of all products, bytes of all communication, and shares of parameters."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import LATENT, SPARSE, TOY, plan, sixteen
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels import gemm as kernel_times
from workloads.kernels.chip_share import Timing
from workloads.models.flops import attention_flops, layer_flops
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.layers.embedding import output, output_backward
from workloads.training.layers.layer import backward, data_half, forward, weight_half
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import NOTHING, PREVIOUS, LayerOp
from workloads.training.plan.parameters import edge_share, layer_share, stage_share
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import chunk_layers, layer_counts, stage_layers
from workloads.training.program.program import program


class Counted(RankShapes):
    """RankShapes whose products take as many seconds as they have FLOPs, and all else none."""

    def gemm(self, m: int, n: int, k: int, batch: int = 1) -> Timing:
        return Timing(2.0 * m * n * k * batch, "assumed")

    def beside(self, timing: Timing) -> Timing:
        return timing

    def stream(self, size_bytes: int, work: str = "streaming") -> Timing:
        return Timing(0.0, "assumed")


class Undisturbed(RankShapes):
    """RankShapes whose products lose nothing to what runs beside them."""

    def beside(self, timing: Timing) -> Timing:
        return timing


def counted(model: Model, **changes: Any) -> Counted:
    return Counted(model, plan(**changes), "h100", shipped_catalogue())


def flops(steps: list[LayerOp]) -> float:
    """FLOPs of all products, without the attention core."""
    return sum(step.seconds for step in steps if ".core" not in step.name)


PLANS: list[dict[str, Any]] = [
    {},
    {"tp": 4},
    {"tp": 4, "sequence_parallel": False},
    {"cp": 4},
    {"tp": 2, "dp": 4, "ep": 8, "etp": 1},
    {"tp": 2, "dp": 4, "ep": 4, "etp": 2},
]


@pytest.mark.parametrize("changes", PLANS)
@pytest.mark.parametrize(("model", "moe"), [(TOY, False), (SPARSE, True), (SPARSE, False)])
def test_products_are_the_flops_of_the_layer(
    model: Model, moe: bool, changes: dict[str, Any]
) -> None:
    """Forward two a weight and token, backward twice that; every rank does its part."""
    if not model.experts:
        changes = {name: size for name, size in changes.items() if name not in ("ep", "etp")}
    shapes = counted(model, **changes)
    per_token = layer_flops(model, 1024, moe=moe) - attention_flops(model, 1024)
    expected = per_token * 1024 / (shapes.plan.tp * shapes.plan.cp)
    assert flops(forward(shapes, moe=moe)) == pytest.approx(expected, rel=1e-9)
    assert flops(backward(shapes, moe=moe)) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize(("recipe", "each"), [("tensorwise", 0), ("rowwise", 5), ("blockwise", 3)])
def test_a_product_casts_both_of_its_inputs(recipe: str, each: int) -> None:
    """By the recipe an element's cast moves 0, 5 or 3 bytes; tp gathers bf16 where one casts."""
    rank = RankShapes(
        TOY, plan(tp=2, precision="fp8", fp8_recipe=recipe), "h100", shipped_catalogue()
    )
    alone = kernel_times.gemm("h100", 4096, 2048, 1024, "fp8").seconds
    cast = rank.stream(each * (4096 + 2048) * 1024).seconds if each else 0.0
    assert rank.gemm(4096, 2048, 1024).seconds == pytest.approx(alone + cast, rel=1e-12)
    assert rank.gathered_bytes == rank.wide_bytes // (1 if each else 2)


@pytest.mark.parametrize("query_rank", [0, 256])
def test_products_of_latent_attention(query_rank: int) -> None:
    assert LATENT.latent is not None
    model = replace(LATENT, latent=replace(LATENT.latent, query_rank=query_rank))
    shapes = counted(model)
    expected = 1024 * (layer_flops(model, 1024, moe=True) - attention_flops(model, 1024))
    assert flops(forward(shapes, moe=True)) == pytest.approx(expected, rel=1e-9)
    assert flops(backward(shapes, moe=True)) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize("model", [TOY, SPARSE, LATENT])
def test_a_split_backward_pass_does_the_same_work(model: Model, overlap: str) -> None:
    steps = backward(counted(model, tp=2, overlap=overlap), moe=bool(model.experts))
    halves = [*data_half(steps), *weight_half(steps)]
    assert Counter(s.name for s in halves) == Counter(s.name for s in steps)
    assert not any(".weight" in s.name for s in data_half(steps))


def test_experts_exchange_every_copy_twice_each_way() -> None:
    shapes = counted(SPARSE, dp=8, ep=8)
    copies = 2 * 1024 * 2 * SPARSE.hidden
    talks = [s for s in (*forward(shapes, moe=True), *backward(shapes, moe=True)) if s.axis == "ep"]
    assert [(s.collective, s.size_bytes) for s in talks] == [("all-to-all", copies)] * 4
    skewed = counted(SPARSE, dp=8, ep=8, routing_skew=1.25)
    there = [s for s in forward(skewed, moe=True) if s.axis == "ep"]
    assert there[0].size_bytes == 1.25 * copies
    products = [flops(forward(one, moe=True)) for one in (shapes, skewed)]
    routed = 2 * 3 * SPARSE.hidden * 1024 * 1024 * 2
    assert products[1] - products[0] == pytest.approx(0.25 * routed)


@pytest.mark.parametrize("ep", [1, 8])
def test_a_capacity_is_computed_whole_whatever_the_skew(ep: int) -> None:
    even = counted(SPARSE, dp=8, ep=ep)
    room = counted(SPARSE, dp=8, ep=ep, capacity_factor=1.25, routing_skew=2.0)
    products = [flops(forward(one, moe=True)) for one in (even, room)]
    routed = 2 * 3 * SPARSE.hidden * 1024 * 1024 * 2
    assert products[1] - products[0] == pytest.approx(0.25 * routed)
    sent = [[s.size_bytes for s in forward(one, moe=True) if s.axis] for one in (even, room)]
    assert sent[1] == [1.25 * size for size in sent[0]]


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"dp": 8, "ep": 8}, True),  # copies of eight ranks, for two experts
        ({"dp": 16, "ep": 16}, False),  # one expert: all copies are its own
        ({"dp": 8}, False),  # no other rank: the first sorting puts them in order
    ],
)
def test_what_arrives_rank_by_rank_is_sorted_by_expert(changes: Any, blocks: bool) -> None:
    shapes = counted(SPARSE, **changes)
    steps = [*forward(shapes, moe=True), *backward(shapes, moe=True)]
    moved = 2 * 2 * 1024 * 2 * SPARSE.hidden  # two bytes, read and written, two copies a token
    names = ("experts.sort", "experts.unsort", "experts.unsort.data", "experts.sort.data")
    sorts = {step.name: step.size_bytes for step in steps if "sort" in step.name}
    assert sorts == (dict.fromkeys(names, moved) if blocks else {})
    on_trainium = RankShapes(SPARSE, shapes.plan, "trn2", shipped_catalogue())
    assert not [step for step in forward(on_trainium, moe=True) if "sort" in step.name]


def test_experts_of_one_rank_talk_to_nobody() -> None:
    assert not [s for s in forward(counted(SPARSE, dp=8), moe=True) if s.axis]


@pytest.mark.parametrize("way", ["ring", "all-gather"])
def test_context_parallelism_moves_keys_and_values_round(way: Any) -> None:
    shapes = counted(TOY, cp=4, cp_exchange=way)
    own = 2 * 2 * TOY.kv_heads * TOY.head_dim * 1024 // 4
    there = [(s.collective, s.size_bytes) for s in forward(shapes) if s.axis == "cp"]
    back = Counter((s.collective, s.size_bytes) for s in backward(shapes) if s.axis == "cp")
    if way == "ring":
        assert there == [("permute", own)] * 3
        assert back == {("permute", own): 3 + 4}
    else:
        assert there == [("all-gather", 4 * own)]
        assert back == {("all-gather", 4 * own): 1, ("reduce-scatter", 4 * own): 1}


@pytest.mark.parametrize("direction", [forward, backward])
def test_a_ring_of_ranks_does_the_work_of_one(direction: Any) -> None:
    """Its blocks are balanced, so four ranks have a quarter of the core each, small ones cost more.

    That only a quarter is left of the square of scores shows where sequences are long.
    """
    model = replace(TOY, heads=32, head_dim=128, hidden=4096)
    core = [
        sum(s.seconds for s in direction(counted(model, cp=cp, seq=65536)) if ".core" in s.name)
        for cp in (1, 4)
    ]
    assert core[1] == pytest.approx(core[0] / 4, rel=0.1)


@pytest.mark.parametrize("direction", [forward, backward])
def test_every_turn_of_a_ring_but_the_first_is_merged(direction: Any) -> None:
    """One kernel that sees all keys merges nothing; PyTorch moves more bytes than a fused one."""

    def merged(parts: Any, cp: int) -> list[int]:
        shapes = RankShapes(TOY, plan(cp=cp), "h100", parts)
        return [s.size_bytes for s in direction(shapes) if s.name.endswith(".merge")]

    loose = {f"training.ring_merge_{way}": "pytorch" for way in ("forward", "backward")}
    fused, apart = shipped_catalogue(), shipped_catalogue().with_variants(loose)
    assert merged(fused, 1) == []
    assert len(merged(fused, 4)) == 3
    values = 1024 // 4 * TOY.heads * TOY.head_dim
    assert merged(apart, 4)[0] == (40 if direction is forward else 54) * values
    assert merged(apart, 4)[0] > merged(fused, 4)[0]


def test_products_in_fp8_gather_half_the_bytes() -> None:
    """Inputs are cast before they are gathered; sums and the output layer stay in two bytes."""

    def sent(precision: Any) -> list[Counter[str]]:
        shapes = counted(TOY, tp=4, precision=precision)
        counts = [Counter[str](), Counter[str]()]
        for count, steps in zip(counts, (forward(shapes), output(shapes)), strict=True):
            for step in steps:
                count[step.collective] += step.size_bytes
        return counts

    (wide, end), (narrow, same_end) = sent("bf16"), sent("fp8")
    assert narrow["all-gather"] == wide["all-gather"] // 2
    assert narrow["reduce-scatter"] == wide["reduce-scatter"]
    assert same_end == end


SHARES: list[tuple[Model, dict[str, Any]]] = [
    (TOY, {"tp": 4, "pp": 2}),
    (TOY, {"tp": 2, "pp": 4, "vpp": 2}),
    (TOY, {"tp": 2, "pp": 3}),
    (SPARSE, {"tp": 2, "pp": 2, "dp": 4, "ep": 8, "etp": 1}),
    (SPARSE, {"tp": 4, "dp": 2, "ep": 2}),
    (LATENT, {"tp": 4, "pp": 2, "dp": 4, "ep": 4}),
]


@pytest.mark.parametrize(("model", "changes"), SHARES)
def test_shares_of_all_ranks_are_the_model(model: Model, changes: dict[str, Any]) -> None:
    """Each tensor-parallel rank holds the undivided parameters; experts are on one."""
    how = plan(**changes)
    shares = [stage_share(model, how, stage) for stage in range(how.pp)]
    experts = sum(share.experts for share in shares) * how.ep * how.expert_tp
    alone = [stage_share(model, plan(), 0)]
    assert experts == alone[0].experts
    whole = model.norm_parameters + sum(
        layers * _undivided(model, moe=moe)
        for moe, layers in ((False, model.layers - model.moe_layers), (True, model.moe_layers))
    )
    dense = sum(share.dense for share in shares) * how.tp
    assert dense == alone[0].dense + (how.tp - 1) * whole
    assert alone[0].total == model.parameters


def _undivided(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that all ranks of a group have: twice what two ranks have too many."""
    one, two = (layer_share(model, plan(tp=tp), moe=moe).dense for tp in (1, 2))
    return 2 * two - one


def test_layers_are_spread_evenly_and_the_ends_have_fewer() -> None:
    assert layer_counts(126, 64) == (1, *[2] * 62, 1)
    assert layer_counts(32, 8) == (4,) * 8
    assert sum(layer_counts(61, 16)) == 61
    how = ParallelPlan(pp=2, vpp=2, seq=1024)
    held = [chunk_layers(TOY, how, stage) for stage in (0, 1)]
    assert [layers.tolist() for layers in held[1]] == [[2, 3], [6, 7]]
    assert np.sort(np.concatenate([*held[0], *held[1]])).tolist() == [*range(8)]
    stated = replace(how, stage_layers=(1, 3, 3, 1))
    assert [layers.tolist() for layers in chunk_layers(TOY, stated, 0)] == [[0], [4, 5, 6]]
    assert stage_layers(TOY, stated) == 4


def test_edges_are_on_the_first_and_the_last_stage() -> None:
    how = plan(pp=4)
    assert [edge_share(TOY, how, stage) > 0 for stage in range(4)] == [True, False, False, True]


@pytest.mark.parametrize("moe", [False, True])
def test_overlapped_products_do_the_same_work_in_pieces(moe: bool) -> None:
    """Bytes of communication and steps but for the pieces are those of the plan without overlap."""
    model = SPARSE if moe else TOY
    apart, beside = (
        RankShapes(model, plan(tp=4, overlap=kind, seq=16_384), "trn2", shipped_catalogue())
        for kind in ("dp", "all")
    )
    for way in (forward, backward):
        sent = [
            sum(step.size_bytes for step in way(one, moe=moe) if step.axis == "tp")
            for one in (apart, beside)
        ]
        assert sent[0] == sent[1]
        names = [[step.name for step in way(one, moe=moe)] for one in (apart, beside)]
        whole = {re.sub(r"\.[234]$", "", name) for name in names[1]}
        assert whole == set(names[0])
        issued = [sum(step.issued for step in way(one, moe=moe)) for one in (apart, beside)]
        assert issued[1] == issued[0] >= len(names[0])


def test_pieces_of_a_product_wait_for_their_own_piece_only() -> None:
    shapes = RankShapes(TOY, plan(tp=4, overlap="all", seq=16_384), "trn2", shipped_catalogue())
    steps = {step.name: step for step in forward(shapes)}
    assert steps["mlp.up"].after == "mlp.gather"
    assert steps["mlp.up.3"].after == "mlp.gather.3"
    assert steps["mlp.gather.3"].after == NOTHING
    assert steps["mlp.down.3"].after == NOTHING
    assert steps["mlp.scatter.3"].after == PREVIOUS
    short = RankShapes(TOY, plan(tp=4, overlap="all"), "trn2", shipped_catalogue())
    assert all(step.issued for step in forward(short))


@pytest.mark.parametrize("machine", ["trn2.48xlarge", "dgx-h100:2"])
def test_pieces_hide_the_gathering_of_long_sequences(machine: str) -> None:
    wide = replace(TOY, layers=2, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28_672)
    how, where = plan(tp=8, dp=2, seq=8192, global_batch=2), cluster(machine)
    steps = [iteration(wide, where, replace(how, overlap=kind)) for kind in ("dp", "all")]
    assert steps[1].breakdown_s["exposed_tp"] < 0.6 * steps[0].breakdown_s["exposed_tp"]
    assert steps[1].iteration_s < steps[0].iteration_s


def test_shared_experts_work_while_copies_travel() -> None:
    how = plan(ep=8, dp=16, overlap="all")
    steps = {
        step.name: step
        for step in forward(RankShapes(SPARSE, how, "h100", shipped_catalogue()), moe=True)
    }
    assert steps["shared.up"].after == NOTHING
    assert steps["experts.sort"].after == "experts.dispatch"
    assert steps["experts.up"].after == PREVIOUS
    assert steps["shared.down"].after == NOTHING
    assert steps["experts.sum"].after == "experts.combine"
    times = {
        kind: iteration(SPARSE, sixteen(), plan(ep=8, dp=16, overlap=kind)).breakdown_s
        for kind in ("dp", "all")
    }
    assert times["all"]["exposed_ep"] < times["dp"]["exposed_ep"]
    assert times["all"]["compute"] == pytest.approx(times["dp"]["compute"], rel=1e-3)


def test_the_output_layer_is_not_in_fp8() -> None:
    plain, eight = (
        {step.name: step.seconds for step in (*output(shapes), *output_backward(shapes))}
        for shapes in (
            RankShapes(TOY, plan(tp=2, precision=kind), "h100", shipped_catalogue())
            for kind in ("bf16", "fp8")
        )
    )
    assert plain == eight


@pytest.mark.parametrize(("sums", "element_bytes"), [("separate", 6), ("fp32", 18)])
def test_gradients_of_several_microbatches_are_summed_where_the_product_does_not(
    sums: str, element_bytes: int
) -> None:
    separate = shipped_catalogue().with_variants({"training.accumulation_bytes": sums})
    many, one = plan(tp=2), plan(tp=2, global_batch=1)
    fused, summed, first = (
        backward(RankShapes(TOY, how, "h100", parts))
        for how, parts in ((many, shipped_catalogue()), (many, separate), (one, separate))
    )
    assert first == fused
    assert summed[:-1] == fused
    held = layer_share(TOY, many).total
    moved = RankShapes(TOY, many, "h100", separate).passes(element_bytes * held)
    assert summed[-1].seconds == moved.seconds
    assert weight_half(summed)[-1].name == summed[-1].name


@pytest.mark.parametrize(
    ("chip", "share"), [("h100", 132 / 112), ("a100-80gb", 108 / 88), ("trn2", 1)]
)
def test_a_product_beside_a_reduction_gives_processors_up(chip: str, share: float) -> None:
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    shapes = RankShapes(TOY, how, chip, shipped_catalogue())
    product = shapes.gemm(4096, 4096, 4096)
    assert shapes.beside(product).seconds == pytest.approx(share * product.seconds)


def test_only_reductions_take_processors_from_products() -> None:
    how = plan(tp=2, dp=4, sequence_parallel=True, overlap="all")
    slowed, undisturbed = (
        kind(TOY, how, "h100", shipped_catalogue()) for kind in (RankShapes, Undisturbed)
    )
    longer = [
        one.name
        for one, other in zip(backward(slowed), backward(undisturbed), strict=True)
        if one.seconds > other.seconds
    ]
    assert longer == ["mlp.up.weight", "attention.qkv.weight"]


@pytest.mark.parametrize("parallel", [True, False])
def test_stages_send_each_value_once_and_put_sequences_together(parallel: bool) -> None:
    """Without sequence parallelism what the ranks of a group sent in parts is gathered behind."""
    how = plan(tp=4, pp=2, sequence_parallel=parallel)
    whole = program(
        RankShapes(TOY, how, "h100", shipped_catalogue()), place(how, cluster("dgx-h100"))
    )
    sends = {s.name: s.size_bytes for s in whole.steps if s.axis in ("forward", "backward")}
    assert set(sends.values()) == {2 * 1024 * TOY.hidden // 4}
    gathers = [s for s in whole.steps if s.name in ("forward.gather", "backward.gather")]
    assert [s.size_bytes for s in gathers] == ([] if parallel else [2 * 1024 * TOY.hidden] * 2)


def test_sharded_layers_are_handled_three_times_a_microbatch() -> None:
    """Parameters before each pass, gradients after; recomputation adds none."""

    def handled(**changes: Any) -> list[float]:
        names = ("sharded_copy_bytes", "sharded_start")
        parts = shipped_catalogue().with_variants({f"training.{name}": "eager" for name in names})
        shapes = RankShapes(TOY, plan(dp=8, **changes), "h100", parts)
        steps = [*forward(shapes), *backward(shapes)]
        return [s.seconds for s in steps if s.name.endswith((".unshard", ".shard"))]

    assert handled(zero=1) == []
    kept = handled(zero=3)
    assert len(kept) == 3
    assert min(kept) > shipped_catalogue().with_variants({"training.sharded_start": "eager"}).value(
        "training", "sharded_start"
    )
    assert handled(zero=3, recompute="full") == kept
    usual = RankShapes(TOY, plan(dp=8, zero=3), "h100", shipped_catalogue())
    assert not [s for s in forward(usual) if s.name == "layer.unshard"]


def test_the_host_issues_the_ends_of_a_model_too() -> None:
    """Embedding and loss take as long as any kernel where the host holds a step up."""
    small = replace(TOY, layers=2, hidden=128, ffn=512, vocab=512)
    machine, catalogue = cluster("dgx-h100"), shipped_catalogue()
    how = plan(tp=1, dp=8, global_batch=8, seq=128)
    shapes = RankShapes(small, how, "h100", catalogue)
    steps = [*forward(shapes) * 2, *backward(shapes) * 2, *output(shapes), *output_backward(shapes)]
    issued = sum(step.issued for step in steps) * catalogue.value("kernels.h100", "host_dispatch")
    step = iteration(small, machine, how)
    assert step.iteration_s > issued


def test_the_host_issues_the_product_of_every_expert() -> None:
    share = shipped_catalogue().value("training", "expert_issue")
    steps = forward(RankShapes(SPARSE, plan(dp=8, ep=2), "h100", shipped_catalogue()), moe=True)
    issued = {step.name: step.issued for step in steps}
    assert issued["experts.up"] == issued["experts.down"] == 1 + 7 * share
    assert issued["router.logits"] == 1
    alone = forward(RankShapes(SPARSE, plan(dp=16, ep=16), "h100", shipped_catalogue()), moe=True)
    assert all(step.issued == 1 for step in alone)


def test_the_tokens_of_every_expert_are_cast_to_fp8_by_a_kernel_of_their_own() -> None:
    how = plan(dp=8, ep=2, precision="fp8")
    shapes = RankShapes(SPARSE, how, "h100", shipped_catalogue())
    ahead, back = forward(shapes, moe=True), backward(shapes, moe=True)
    casts = {step.name: step for step in [*ahead, *back] if ".cast" in step.name}
    products = {step.name: step for step in ahead}
    assert [*casts] == [
        "experts.up.cast", "experts.down.cast", "experts.down.cast.data", "experts.up.cast.data",
    ]  # fmt: skip
    assert {step.issued for step in casts.values()} == {products["experts.up"].issued}
    # Read in two bytes, written in one by rows and in one by columns.
    experts = SPARSE.experts
    assert experts
    copies = how.microbatch * how.seq * experts.per_token
    assert casts["experts.up.cast"].size_bytes == 4 * copies * SPARSE.hidden
    assert casts["experts.down.cast"].size_bytes == 4 * copies * experts.ffn


@pytest.mark.parametrize(
    ("chip", "stated"),
    [
        ("h100", {"precision": "bf16"}),
        ("h100", {"precision": "fp8", "fp8_recipe": "rowwise"}),
        ("trn2", {"precision": "fp8"}),
        ("tpu7x", {"precision": "fp8"}),
    ],
)
def test_nothing_casts_the_tokens_of_experts_where_the_product_or_a_compiler_does(
    chip: str, stated: dict[str, str]
) -> None:
    shapes = RankShapes(SPARSE, plan(dp=8, ep=2, **stated), chip, shipped_catalogue())
    assert not [step for step in forward(shapes, moe=True) if ".cast" in step.name]


@pytest.mark.parametrize(("chip", "eager"), [("h100", True), ("trn2", False), ("tpu7x", False)])
def test_biases_of_experts_are_added_by_kernels_of_an_eager_framework(
    chip: str, eager: bool
) -> None:
    experts = SPARSE.experts
    assert experts
    biased = replace(SPARSE, experts=replace(experts, bias=True))
    how = plan(dp=8, ep=2)
    without, ahead, back = (
        {step.name: step for step in way(RankShapes(model, how, chip, catalogue), moe=True)}
        for catalogue in [shipped_catalogue()]
        for model, way in ((SPARSE, forward), (biased, forward), (biased, backward))
    )
    added = [name for name in [*ahead, *back] if "down.bias" in name]
    assert added == (["experts.down.bias", "experts.down.bias.data"] if eager else [])
    assert not [name for name in without if "down.bias" in name]
    elements = how.microbatch * how.seq * experts.per_token * SPARSE.hidden
    if eager:
        assert ahead["experts.down.bias"].size_bytes == 28 * elements
        assert back["experts.down.bias.data"].size_bytes == 40 * elements


def test_tokens_sent_in_fp8_are_not_cast_where_they_arrive() -> None:
    how = plan(dp=8, ep=2, precision="fp8", fp8_exchange=True)
    steps = forward(RankShapes(SPARSE, how, "h100", shipped_catalogue()), moe=True)
    assert [step.name for step in steps if ".cast" in step.name] == ["experts.down.cast"]


@pytest.mark.parametrize(("machine", "issues"), [("dgx-h100", True), ("tpu-v6e-pod", False)])
def test_no_host_issues_the_kernels_of_a_compiled_program(machine: str, issues: bool) -> None:
    small = replace(TOY, layers=2, hidden=128, ffn=512, vocab=512)
    where = cluster(machine)
    how = plan(dp=where.chips, global_batch=where.chips, seq=128)
    whole = program(RankShapes(small, how, where.chip, where.catalogue), place(how, where))
    assert any(step.name == "host.issue" for step in whole.steps) == issues
