"""The part of a layer that works on each token by itself, as steps: dense, or with experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

from cluster_sim.collectives.duration.expert_library import MERGING, known, visited
from topologies.catalogue.catalogue import NCCL, Catalogue, chip_family
from workloads.kernels.chip_share import Rank, Timing, rank_of
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import Experts
from workloads.training.layers.steps import (
    NOTHING,
    PREVIOUS,
    TWO,
    LayerOp,
    RankShapes,
    collective,
    column_backward,
    gathered_product,
    kernel,
    norm,
    prefixed,
    product_scattered,
    residual,
)
from workloads.training.plan.plan import ParallelPlan


def mlp_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's dense feed-forward part for a microbatch's forward pass."""
    return [
        norm(shapes, "mlp.norm"),
        *_products(shapes, shapes.model.ffn, "mlp"),
        residual(shapes, "mlp.residual"),
    ]


def fed_again(plan: ParallelPlan, from_tokens: int) -> bool:
    """Return whether selective recomputation runs feed-forward parts again, too."""
    # ``from_tokens``: length of a sequence from which a stack does so in pipelines; 0 for none.
    return plan.recompute == "selective" and plan.pp > 1 and 0 < from_tokens <= plan.seq


def mlp_again(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps that a backward pass runs again of a part of which it keeps the input."""
    steps = _products(shapes, shapes.model.ffn, "mlp")
    last = next(place for place, step in enumerate(steps) if step.name == "mlp.activation")
    return prefixed(steps[: last + 1], "again.")


def beside_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps for copies of the hidden state, and for a layer's own embedding."""
    # Every rank of a tensor-parallel group has all products, for its part of the sequence.
    inputs, t, h = shapes.model.layer_input, shapes.tokens // shapes.plan.sp, shapes.model.hidden
    steps = []
    if streams := shapes.model.streams:
        passes = shapes.passes(streams.passes * TWO * t * h)
        mixed = kernel("streams.weights", shapes.gemm(t, streams.columns, h))
        steps = [mixed, kernel("streams.mixtures", passes)]
    if inputs is None:
        return steps
    return [
        *steps,
        kernel("layer-input.gate", shapes.gemm(t, inputs.width, h)),
        kernel("layer-input.activation", shapes.stream(3 * TWO * t * inputs.width, "activation")),
        kernel("layer-input.out", shapes.gemm(t, h, inputs.width)),
        norm(shapes, "layer-input.norm"),
        residual(shapes, "layer-input.residual"),
    ]


def beside_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the gradients of copies of the hidden state and a layer's embedding."""
    inputs, t, h = shapes.model.layer_input, shapes.tokens // shapes.plan.sp, shapes.model.hidden
    steps = []
    if streams := shapes.model.streams:
        steps = [
            kernel("streams.mixtures.data", shapes.passes(2 * streams.passes * TWO * t * h)),
            kernel("streams.weights.data", shapes.gemm(t, h, streams.columns)),
            kernel("streams.weights.weight", shapes.gemm(h, streams.columns, t)),
        ]
    if inputs is None:
        return steps
    product = shapes.stream(5 * TWO * t * inputs.width, "activation")
    return [
        norm(shapes, "layer-input.norm.data", backward=True),
        kernel("layer-input.out.data", shapes.gemm(t, inputs.width, h)),
        kernel("layer-input.out.weight", shapes.gemm(inputs.width, h, t)),
        kernel("layer-input.activation.data", product),
        kernel("layer-input.gate.data", shapes.gemm(t, h, inputs.width)),
        kernel("layer-input.gate.weight", shapes.gemm(h, inputs.width, t)),
        *steps,
    ]


def _products(shapes: RankShapes, ffn: int, name: str) -> list[LayerOp]:
    """Return the steps of up-projection, activation and down-projection, with ``ffn`` columns."""
    t, h, inner = shapes.tokens, shapes.model.hidden, ffn // shapes.plan.tp
    wide = _up_width(shapes, inner)
    return [
        *gathered_product(shapes, name, f"{name}.up", wide, h),
        kernel(f"{name}.activation", shapes.stream(TWO * t * (wide + inner), "activation")),
        *product_scattered(shapes, name, f"{name}.down", h, inner),
    ]


def products_backward(shapes: RankShapes, ffn: int, name: str) -> list[LayerOp]:
    """Return the steps of the gradients of :func:`_products`, and of the norm before them."""
    t, h, inner = shapes.tokens, shapes.model.hidden, ffn // shapes.plan.tp
    wide = _up_width(shapes, inner)
    return [
        *gathered_product(shapes, f"{name}.gradient", f"{name}.down.data", inner, h),
        kernel(f"{name}.down.weight", shapes.gemm(inner, h, t)),
        kernel(
            f"{name}.activation.data", shapes.stream(TWO * t * (2 * wide + inner), "activation")
        ),
        *column_backward(shapes, name, f"{name}.up", wide),
    ]


def _up_width(shapes: RankShapes, inner: int) -> int:
    """Return the columns of the up-projection: ``inner``, or twice as many where it is gated."""
    return 2 * inner if shapes.model.gated_mlp else inner


# A layer with experts as steps: routing, all-to-alls, grouped products, shared experts.
#
# Each rank routes its own part of the tokens, sends a copy of a token to the rank of each of its
# experts (*dispatch*), and gets the results back (*combine*): GShard, arXiv 2006.16668;
# Megatron-LM's all-to-all dispatcher. A routing skew is the load of the busiest rank over the mean;
# as all ranks wait for the busiest one in the exchange that follows, all are given its load. Under
# a capacity factor every expert computes its whole capacity, filled or not.

ROUTER_PASSES = 4
"""Passes over the router's scores in fp32: write, read and write by softmax, read for the best."""

BIAS_FORWARD_BYTES, BIAS_BACKWARD_BYTES = 28, 40
"""Moved for an element of the experts' output to add its bias times the token's weight [B].

Megatron-Core does so in fp32, expert by expert, in kernels of their own
(``TEGroupedMLP._apply_bias``): the weighted bias is written 4, added to the output 2 + 4 + 4,
concatenated 4 + 4 and cast 4 + 2. Gradients are cast 2 + 4; that of the output is cast back 4 + 2
and joined 2 + 2; those of bias and weight are multiplied 4 + 4 each and summed 4 each.
"""


class Load(NamedTuple):
    """Tokens and experts of one rank."""

    rows: int  # tokens that the rank routes
    copies: int  # copies of tokens that the rank sends, one for each expert of a token
    local: int  # experts that the rank holds
    each: int  # tokens that one of its experts computes
    inner: int  # columns of an expert on the rank
    tiled: int  # rows of a product of one of its experts, with those of a tile that it shares
    weight_tiled: int  # the same of the product that gives the gradient of its weights


def merged_exchange(catalogue: Catalogue | None, chip: str) -> bool:
    """Return whether DeepEP's kernels exchange tokens, where their rates on a chip are known."""
    if catalogue is None or not catalogue.integer("training", "token_exchange"):
        return False
    return known(catalogue, MERGING, chip)


def _own_passes(shapes: RankShapes) -> float:
    """Passes over experts' tokens by kernels of their own: to sort, and to activate and cast."""
    passes = _rank(shapes).constant("expert_passes", 2)
    # Products take activations and casts over only in fp8.
    return passes if ELEMENT_BYTES.get(shapes.plan.precision, TWO) < TWO else max(1, passes)


def _sorted_on_the_way(shapes: RankShapes) -> bool:
    """Return whether the exchange reads tokens where they are, and sums what comes back itself."""
    merged = merged_exchange(shapes.catalogue, shapes.chip) or _own_passes(shapes) < 2
    return shapes.plan.ep > 1 and merged


def load(shapes: RankShapes) -> Load:
    """Return the tokens and experts of the busiest rank."""
    plan, experts = shapes.plan, _experts(shapes)
    rows = -(-shapes.tokens // plan.tp)
    copies = rows * experts.per_token
    local = experts.count // plan.ep
    computed = copies * plan.expert_tp * plan.expert_load
    each = max(1, math.ceil(computed / local))
    # In JAX's grouped products an expert computes rows of others' tiles: a tile in which its tokens
    # begin is computed once for it and once for the one before (``make_group_metadata``). Under a
    # capacity each expert has rows of its own.
    tiled, numbers = [], shapes.catalogue
    for name in ("expert_tile", "expert_weight_tile"):
        alone = plan.capacity_factor or not numbers.has(shapes.chip, name)
        shared = 0 if alone else numbers.integer(shapes.chip, name) * (local - 1) // local
        tiled.append(each + shared)
    return Load(rows, copies, local, each, experts.ffn // plan.expert_tp, *tiled)


def experts_forward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's experts for the forward pass of a microbatch."""
    experts, work, h = _experts(shapes), load(shapes), shapes.model.hidden
    wide, width = _up_width(shapes, work.inner), shapes.model.expert_hidden
    shared = _products(shapes, experts.shared_ffn, "shared") if experts.shared_ffn else []
    dispatch, combine = _dispatch(shapes, "experts"), _combine(shapes, "experts")
    before, after = [], []
    if _beside(shapes):
        before, after, shared = _apart(shared[:2]), _apart(shared[2:]), []
    return [
        norm(shapes, "mlp.norm"),
        kernel("router.logits", shapes.gemm(work.rows, experts.count, h)),
        kernel("router.choice", shapes.stream(ROUTER_PASSES * 4 * work.rows * experts.count)),
        *_latent(shapes, "down", work.rows, experts.latent, h),
        _move(shapes, "experts.permute"),
        *dispatch,
        *before,
        *_waiting(
            [
                *_regroup(shapes, "experts.sort"),
                *_cast(shapes, "experts.up.cast", width, arrives=True),
                _product("experts.up", shapes, work.tiled, wide, width),
            ],
            dispatch,
        ),
        kernel("experts.activation", _activation(shapes, wide + work.inner)),
        *_cast(shapes, "experts.down.cast", work.inner),
        _product("experts.down", shapes, work.tiled, width, work.inner),
        *_counted(shapes, "experts.down.bias", BIAS_FORWARD_BYTES * experts.bias),
        *_weighed(shapes, "experts.weights", "forward"),
        *_regroup(shapes, "experts.unsort"),
        *combine,
        *after,
        _move(shapes, "experts.sum")._replace(after=_end(combine)),
        *_latent(shapes, "up", work.rows, h, experts.latent),
        *shared,
        *_whole(shapes, "experts.output"),
        residual(shapes, "mlp.residual"),
    ]


def experts_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of one layer's experts for the backward pass of a microbatch."""
    experts, work, h = _experts(shapes), load(shapes), shapes.model.hidden
    wide, width = _up_width(shapes, work.inner), shapes.model.expert_hidden
    shared = products_backward(shapes, experts.shared_ffn, "shared") if experts.shared_ffn else []
    dispatch, combine = _dispatch(shapes, "experts.gradient"), _combine(shapes, "experts.gradient")
    before, after = [], []
    last = [] if shared else [norm(shapes, "mlp.norm.data", backward=True)]
    if _beside(shapes):
        before, after, shared = _apart(shared[:3]), _apart(shared[3:-1]), shared[-1:]
    return [
        *_latent(shapes, "up.data", work.rows, experts.latent, h),
        *_latent(shapes, "up.weight", experts.latent, h, work.rows),
        _move(shapes, "experts.sum.data"),
        *dispatch,
        *before,
        *_waiting(
            [
                *_regroup(shapes, "experts.unsort.data"),
                *_weighed(shapes, "experts.weights.data", "backward"),
                *_counted(shapes, "experts.down.bias.data", BIAS_BACKWARD_BYTES * experts.bias),
                *_cast(shapes, "experts.down.cast.data", width),
                _product("experts.down.data", shapes, work.tiled, work.inner, width),
            ],
            dispatch,
        ),
        _product("experts.down.weight", shapes, work.inner, width, work.weight_tiled),
        kernel("experts.activation.data", _activation(shapes, 2 * wide + work.inner)),
        *_cast(shapes, "experts.up.cast.data", wide),
        _product("experts.up.data", shapes, work.tiled, width, wide),
        _product("experts.up.weight", shapes, width, wide, work.weight_tiled),
        *_regroup(shapes, "experts.sort.data"),
        *combine,
        *after,
        _move(shapes, "experts.permute.data")._replace(after=_end(combine)),
        *_latent(shapes, "down.data", work.rows, h, experts.latent),
        *_latent(shapes, "down.weight", h, experts.latent, work.rows),
        kernel("router.logits.data", shapes.gemm(work.rows, h, experts.count)),
        kernel("router.logits.weight", shapes.gemm(h, experts.count, work.rows)),
        *shared,
        *_whole(shapes, "experts.hidden"),
        *last,
    ]


def _latent(shapes: RankShapes, name: str, m: int, n: int, k: int) -> list[LayerOp]:
    """Product around experts on a narrower hidden state, whole on every rank (Megatron-Core)."""
    if not _experts(shapes).latent:
        return []
    return [kernel(f"experts.latent.{name}", shapes.gemm(m, n, k))]


def _beside(shapes: RankShapes) -> bool:
    """Return whether shared experts run beside dispatch and combine (Megatron-LM, tp 1)."""
    plan = shapes.plan
    return plan.overlap == "all" and plan.ep > 1 == plan.tp and bool(_experts(shapes).shared_ffn)


def _apart(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the same kernels without waiting for the communication before them."""
    return [step._replace(after=NOTHING) for step in steps]


def _waiting(kernels: Sequence[LayerOp], exchange: Sequence[LayerOp]) -> list[LayerOp]:
    """Return the same kernels, of which the first waits for the end of an exchange."""
    return [kernels[0]._replace(after=_end(exchange)), *kernels[1:]]


def _end(exchange: Sequence[LayerOp]) -> str:
    """Name of the last communication of an exchange, or of the step before where it has none."""
    return exchange[-1].name if exchange else PREVIOUS


def _experts(shapes: RankShapes) -> Experts:
    return cast("Experts", shapes.model.experts)


def _product(name: str, shapes: RankShapes, m: int, n: int, k: int) -> LayerOp:
    """Batched product of the rank's experts, of (m, k) × (k, n) each."""
    timing = shapes.gemm(m, n, k, load(shapes).local)
    if ELEMENT_BYTES.get(shapes.plan.precision, TWO) == TWO:
        share = _rank(shapes).constant("grouped_efficiency", 1.0)
        timing = timing._replace(seconds=timing.seconds / share)
    return _for_each(name, shapes, timing)


def _for_each(name: str, shapes: RankShapes, timing: Timing) -> LayerOp:
    """Kernel of each expert of the rank, with the time of all."""
    # The host prepares that of each expert, which takes longer the more experts there are.
    usual = shapes.catalogue.value("training", "expert_issue")
    share = _rank(shapes).constant("expert_issue", usual)
    return kernel(name, timing)._replace(issued=1 + (load(shapes).local - 1) * share)


def _rank(shapes: RankShapes) -> Rank:
    """Return what is known of the kernels of the rank's chip."""
    return rank_of(shapes.chip, "bf16", 1, shapes.catalogue)


def _cast(shapes: RankShapes, name: str, columns: int, *, arrives: bool = False) -> list[LayerOp]:
    """Kernels that cast the tokens of each expert to fp8, by rows and by columns."""
    # The tokens of every expert have a scale of their own, and what sorts them writes two bytes, so
    # Transformer Engine casts them one expert after the other (``split_quantize``). Tokens that are
    # sent in fp8 have it as they arrive. Recipes whose products cast both inputs count it there,
    # and compilers of whole programs fuse it.
    width = ELEMENT_BYTES.get(shapes.plan.precision, TWO)
    eager = chip_family(shapes.chip, shapes.catalogue).runtime == NCCL
    sent = arrives and shapes.plan.fp8_exchange
    elsewhere = shapes.recast_bytes or sent or not _own_passes(shapes)
    if width >= TWO or elsewhere or not eager:
        return []
    work = load(shapes)
    moved = shapes.stream(round((TWO + 2 * width) * work.each * work.local * columns))
    return [_for_each(name, shapes, moved)]


def _around(shapes: RankShapes, direction: str) -> float:
    """Traffic for an element of a copy by kernels beside those that move and multiply it [B]."""
    return shapes.catalogue.value("training", f"expert_bytes_{direction}")


def _weighed(shapes: RankShapes, name: str, direction: str) -> list[LayerOp]:
    """Kernels that weigh and order the tokens of all experts, issued once for all of them."""
    steps = _counted(shapes, name, _around(shapes, direction))
    return [step._replace(issued=1) for step in steps]


def _counted(shapes: RankShapes, name: str, element_bytes: float) -> list[LayerOp]:
    """Kernels over the tokens of experts, by the traffic of an element in all their passes."""
    work, eager = load(shapes), chip_family(shapes.chip, shapes.catalogue).runtime == NCCL
    moved = round(element_bytes * work.each * work.local * shapes.model.expert_hidden)
    # Compilers of whole programs fuse them.
    return [_for_each(name, shapes, shapes.passes(moved))] if moved and eager else []


def _move(shapes: RankShapes, name: str) -> LayerOp:
    """Kernel that reads tokens and writes their copies sorted by expert, or the other way round."""
    # It picks rows by index, so it runs at the rate of the kernels that look up an embedding, with
    # what surrounds it; where that is counted, at the rate of one pass.
    if _sorted_on_the_way(shapes):
        return kernel(name, Timing(0.0, "measured"))
    work, per_token = load(shapes), _experts(shapes).per_token
    read = TWO * work.rows * shapes.model.expert_hidden
    moved = shapes.passes if _around(shapes, "forward") else shapes.gather
    return kernel(name, moved(read * (1 + per_token)))


def _regroup(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Kernel that copies tokens, as they came from each rank, into a block an expert, or back."""
    # A rank with one expert needs no such copy, nor does a rank whose tokens stay on it. Tokens
    # that come once to each server are copied where they arrive, already sorted (DeepEP).
    # Trainium's kernels read each row of a block by its index.
    work, plan = load(shapes), shapes.plan
    by_index = plan.routed_nodes or chip_family(shapes.chip, shapes.catalogue).is_neuron
    if _sorted_on_the_way(shapes):
        by_index = False  # sorted where they arrive, and not before
    if work.local == 1 or plan.ep * plan.expert_tp == 1 or by_index:
        return []
    moved = 2 * TWO * work.each * work.local * shapes.model.expert_hidden
    return [kernel(name, shapes.passes(moved))]


def _activation(shapes: RankShapes, width: int) -> Timing:
    """Time of the activation over all tokens of the rank's experts, of ``width`` columns."""
    if not _own_passes(shapes):
        return Timing(0.0, "assumed")
    work = load(shapes)
    return shapes.stream(TWO * work.each * work.local * width)


def _dispatch(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Dispatch: send copies to experts' ranks, and gather them where ranks share an expert."""
    plan, size = shapes.plan, _sent(shapes, shapes.plan.exchange_bytes)
    steps = []
    if plan.ep > 1:
        steps.append(collective(f"{name}.dispatch", "ep", "all-to-all", size))
    if plan.expert_tp > 1:
        steps.append(collective(f"{name}.gather", "etp", "all-gather", size * plan.expert_tp))
    return steps


def _combine(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Combine: sum the results of ranks that share an expert, and send them back."""
    plan, size = shapes.plan, _sent(shapes)
    steps = []
    if plan.expert_tp > 1:
        steps.append(collective(f"{name}.scatter", "etp", "reduce-scatter", size * plan.expert_tp))
    if plan.ep > 1:
        steps.append(collective(f"{name}.combine", "ep", "all-to-all", size))
    return steps


def _sent(shapes: RankShapes, element_bytes: float = TWO) -> int:
    """Buffer of an all-to-all between experts on the busiest rank [B]."""
    work, width = load(shapes), shapes.model.expert_hidden
    # HybridEP sends a token once to each rank that holds some of its experts.
    once = _sorted_on_the_way(shapes) and not merged_exchange(shapes.catalogue, shapes.chip)
    copies = work.rows * visited(shapes.plan.ep, work.copies // work.rows) if once else work.copies
    return math.ceil(element_bytes * copies * width * shapes.plan.expert_load)


def _whole(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Gather the results of a tensor-parallel group's ranks where each needs the whole sequence."""
    if shapes.plan.tp == 1 or shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", shapes.wide_bytes)]
