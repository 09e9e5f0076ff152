"""The steps of a layer with experts: routing, all-to-alls, grouped products, shared experts.

Each rank routes its own part of the tokens, sends every copy to the rank that holds the expert,
and gets it back after (GShard, arXiv 2006.16668; Megatron-LM's all-to-all dispatcher). A skew says
how many tokens the busiest rank gets over the mean; as everybody waits for it in the exchange
after, all are given its load. Under a capacity every expert computes its whole room, full or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from workloads.kernels.chip_share import Timing
from workloads.kernels.runtime import NEURON
from workloads.models.model import Experts
from workloads.training.layers.mlp import products, products_backward, up_width
from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import NOTHING, PREVIOUS, LayerOp, collective, kernel
from workloads.training.layers.tensor_parallel import norm, residual

ROUTER_PASSES = 4
"""Over the router's scores in fp32: written, softmax read and written, read for the best."""


class Load(NamedTuple):
    """Work of one rank's experts.

    ``rows``: tokens that the rank routes; ``copies``: those that it sends, one for each visit;
    ``local``: experts of the rank; ``each``: tokens of one of them; ``inner``: its columns.
    """

    rows: int
    copies: int
    local: int
    each: int
    inner: int


def load(shapes: RankShapes) -> Load:
    """Tokens and experts of a rank."""
    plan, some = shapes.plan, _experts(shapes)
    rows = -(-shapes.tokens // plan.tp)
    copies = rows * some.per_token
    local = some.count // plan.ep
    busy = copies * plan.expert_tp * plan.expert_load
    return Load(rows, copies, local, max(1, math.ceil(busy / local)), some.ffn // plan.expert_tp)


def experts_forward(shapes: RankShapes) -> list[LayerOp]:
    """Steps of one layer's experts over one microbatch."""
    some, has, h = _experts(shapes), load(shapes), shapes.model.hidden
    wide = up_width(shapes, has.inner)
    shared = products(shapes, some.shared_ffn, "shared") if some.shared_ffn else []
    there, home = _there(shapes, "experts"), _home(shapes, "experts")
    before, after = [], []
    if _beside(shapes):
        before, after, shared = _apart(shared[:2]), _apart(shared[2:]), []
    return [
        norm(shapes, "mlp.norm"),
        kernel("router.logits", shapes.gemm(has.rows, some.count, h)),
        kernel("router.choice", shapes.stream(ROUTER_PASSES * 4 * has.rows * some.count)),
        _move(shapes, "experts.permute"),
        *there,
        *before,
        *_waiting(
            [
                *_regroup(shapes, "experts.sort"),
                _product("experts.up", shapes, has.each, wide, h),
            ],
            there,
        ),
        kernel("experts.activation", _activation(shapes, wide + has.inner)),
        _product("experts.down", shapes, has.each, h, has.inner),
        *_regroup(shapes, "experts.unsort"),
        *home,
        *after,
        replace(_move(shapes, "experts.sum"), after=_end(home)),
        *shared,
        *_whole(shapes, "experts.output"),
        residual(shapes, "mlp.residual"),
    ]


def experts_backward(shapes: RankShapes) -> list[LayerOp]:
    """Steps of one layer's experts backward."""
    some, has, h = _experts(shapes), load(shapes), shapes.model.hidden
    wide = up_width(shapes, has.inner)
    shared = products_backward(shapes, some.shared_ffn, "shared") if some.shared_ffn else []
    there, home = _there(shapes, "experts.gradient"), _home(shapes, "experts.gradient")
    before, after, last = [], [], [] if shared else [norm(shapes, "mlp.norm.data", passes=4)]
    if _beside(shapes):
        before, after, shared = _apart(shared[:3]), _apart(shared[3:-1]), shared[-1:]
    return [
        _move(shapes, "experts.sum.data"),
        *there,
        *before,
        *_waiting(
            [
                *_regroup(shapes, "experts.unsort.data"),
                _product("experts.down.data", shapes, has.each, has.inner, h),
            ],
            there,
        ),
        _product("experts.down.weight", shapes, has.inner, h, has.each),
        kernel("experts.activation.data", _activation(shapes, 2 * wide + has.inner)),
        _product("experts.up.data", shapes, has.each, h, wide),
        _product("experts.up.weight", shapes, h, wide, has.each),
        *_regroup(shapes, "experts.sort.data"),
        *home,
        *after,
        replace(_move(shapes, "experts.permute.data"), after=_end(home)),
        kernel("router.logits.data", shapes.gemm(has.rows, h, some.count)),
        kernel("router.logits.weight", shapes.gemm(h, some.count, has.rows)),
        *shared,
        *_whole(shapes, "experts.hidden"),
        *last,
    ]


def _beside(shapes: RankShapes) -> bool:
    """Return whether shared experts work while copies are on their way (Megatron-LM, tp 1)."""
    plan = shapes.plan
    return plan.overlap == "all" and plan.ep > 1 == plan.tp and bool(_experts(shapes).shared_ffn)


def _apart(steps: Sequence[LayerOp]) -> list[LayerOp]:
    """Kernels that do not wait for the communication before them."""
    return [replace(step, after=NOTHING) for step in steps]


def _waiting(kernels: Sequence[LayerOp], talks: Sequence[LayerOp]) -> list[LayerOp]:
    """Kernels, the first of which waits for all of these communications."""
    return [replace(kernels[0], after=_end(talks)), *kernels[1:]]


def _end(talks: Sequence[LayerOp]) -> str:
    """Name of the op that waits for all of these communications."""
    return talks[-1].name if talks else PREVIOUS


def _experts(shapes: RankShapes) -> Experts:
    return cast("Experts", shapes.model.experts)


def _product(name: str, shapes: RankShapes, m: int, n: int, k: int) -> LayerOp:
    """Product of every expert of the rank, which the host issues one after the other."""
    local = load(shapes).local
    issued = 1 + (local - 1) * shapes.catalogue.value("training", "expert_issue")
    return replace(kernel(name, shapes.gemm(m, n, k, local)), issued=issued)


def _move(shapes: RankShapes, name: str) -> LayerOp:
    """Read tokens and write the copies sorted by expert, or the other way round.

    Rows are picked by index, by the kernels that look up an embedding.
    """
    has, per_token = load(shapes), _experts(shapes).per_token
    read = TWO * has.rows * shapes.model.hidden
    return kernel(name, shapes.gather(read * (1 + per_token)))


def _regroup(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Copy what arrived rank by rank into one block for each expert, or the other way round.

    A rank with one expert needs none of it, nor does one whose tokens are its own. Tokens that
    come once to each server get their copies where they arrive, sorted (DeepEP). Trainium's
    kernels of blocks read each row by its index.
    """
    has, plan = load(shapes), shapes.plan
    by_index = plan.routed_nodes or shapes.chip.startswith(NEURON)
    if has.local == 1 or plan.ep * plan.expert_tp == 1 or by_index:
        return []
    return [kernel(name, shapes.passes(2 * TWO * has.each * has.local * shapes.model.hidden))]


def _activation(shapes: RankShapes, width: int) -> Timing:
    has = load(shapes)
    return shapes.stream(TWO * has.each * has.local * width)


def _there(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Steps that send copies to the ranks of their experts, and to all that share an expert."""
    plan, size = shapes.plan, _sent(shapes, shapes.plan.exchange_bytes)
    steps = []
    if plan.ep > 1:
        steps.append(collective(f"{name}.dispatch", "ep", "all-to-all", size))
    if plan.expert_tp > 1:
        steps.append(collective(f"{name}.gather", "etp", "all-gather", size * plan.expert_tp))
    return steps


def _home(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Steps that sum the parts of those that share an expert, and send copies back."""
    plan, size = shapes.plan, _sent(shapes)
    steps = []
    if plan.expert_tp > 1:
        steps.append(collective(f"{name}.scatter", "etp", "reduce-scatter", size * plan.expert_tp))
    if plan.ep > 1:
        steps.append(collective(f"{name}.combine", "ep", "all-to-all", size))
    return steps


def _sent(shapes: RankShapes, element_bytes: float = TWO) -> int:
    """Size of the copies that the busiest rank receives from each replica of its experts [B]."""
    busy = shapes.plan.expert_load
    return math.ceil(element_bytes * load(shapes).copies * shapes.model.hidden * busy)


def _whole(shapes: RankShapes, name: str) -> list[LayerOp]:
    """Steps that gather the routed parts of a group's ranks without sequence parallelism."""
    if shapes.plan.tp == 1 or shapes.plan.sequence_parallel:
        return []
    return [collective(f"{name}.gather", "tp", "all-gather", shapes.wide_bytes)]
