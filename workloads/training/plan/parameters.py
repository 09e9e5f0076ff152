"""Shares: how many parameters of a model one rank holds, experts apart from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import Model, expert_parameters, layer_norms, layer_parameters
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import end_stages, stage_kinds

WEIGHT_BYTES = 2
"""Bytes of a parameter in bf16, in mixed precision (arXiv 1710.03740)."""
GRADIENT_BYTES = 4
"""Bytes of a gradient, accumulated in fp32."""
OPTIMIZER_BYTES = 12
"""Bytes of Adam's master copy, mean and variance in fp32 (arXiv 1910.02054, section 3.1)."""


def layer_weight_bytes(plan: ParallelPlan) -> float:
    """Bytes of a parameter of a layer.

    Those that adapters leave frozen are never updated, so they are kept in the precision of their
    products alone, as NeMo keeps them; embedding and output layer stay in bf16.

    Examples
    --------
    >>> layer_weight_bytes(ParallelPlan(precision="fp8", lora_rank=16))
    1.0
    """
    return ELEMENT_BYTES[plan.precision] if plan.lora_rank else WEIGHT_BYTES


class Share(NamedTuple):
    """Parameters of a rank: those that dp and cp replicate, and routed experts."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts


def total(shares: Sequence[Share]) -> Share:
    """Sum of shares.

    Examples
    --------
    >>> total([Share(1, 2), Share(3, 4)])
    Share(dense=4, experts=6)
    """
    return Share(sum(share.dense for share in shares), sum(share.experts for share in shares))


def layer_share(model: Model, plan: ParallelPlan, *, moe: bool = False) -> Share:
    """Parameters of one layer on one rank.

    Norms, routers and the down-projections of latent attention are on every rank of a
    tensor-parallel group, and so are key-value heads where tp exceeds them.
    """
    return _layer_share(model, plan.tp, plan.ep * plan.expert_tp, moe=moe)


def _layer_share(model: Model, tp: int, parts: int, *, moe: bool) -> Share:
    """Parameters of one layer on one of ``tp`` ranks, with experts in so many parts."""
    experts = model.experts.count * expert_parameters(model) if moe and model.experts else 0
    whole = _whole(model, moe=moe)
    split = part(layer_parameters(model, moe=moe) - experts - whole, tp)
    replicated = 0
    if model.mixer == "attention" and not model.latent:
        copies = max(0, tp - model.kv_heads)
        replicated = 2 * copies * model.head_dim * model.hidden // tp
    return Share(split + whole + replicated, part(experts, parts))


def _whole(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that tensor parallelism does not divide."""
    whole = layer_norms(model, moe=moe) * model.norm_parameters
    if model.latent and model.mixer == "attention":
        mla = model.latent
        whole += mla.query_rank * (model.hidden + 1) + mla.kv_rank
        whole += model.hidden * (mla.kv_rank + mla.rope_dim)
    if moe and model.experts:
        some = model.experts
        whole += some.count * (model.hidden + some.router_bias) + model.hidden * some.shared_gate
    return whole


def edge_share(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters outside of layers on a rank of a stage: embedding, final norm, output layer."""
    edges, (first, last) = 0, end_stages(plan)
    if stage == first:
        edges += part(model.embedding_parameters, plan.tp)
    if stage == last:
        untied = not model.tied_embeddings
        copied = model.tied_embeddings and first != last
        edges += model.norm_parameters
        edges += part(model.vocab * model.hidden, plan.tp) * (untied or copied)
    return edges


def stage_share(model: Model, plan: ParallelPlan, stage: int) -> Share:
    """Parameters that a rank of a stage holds."""
    shares = [
        Share(count * weights.dense, count * weights.experts)
        for count, weights in zip(
            stage_kinds(model, plan, stage), kind_shares(model, plan), strict=True
        )
    ]
    return total([*shares, Share(edge_share(model, plan, stage), 0)])


def kind_shares(model: Model, plan: ParallelPlan) -> tuple[Share, ...]:
    """Parameters of a layer of each kind on one rank."""
    return _kind_shares(model, plan.tp, plan.ep * plan.expert_tp)


@lru_cache(maxsize=1024)
def _kind_shares(model: Model, tp: int, parts: int) -> tuple[Share, ...]:
    return tuple(
        _layer_share(model.of_kind(kind), tp, parts, moe=kind.experts) for kind in model.kinds
    )


def part(size: int, parts: int) -> int:
    """Larger part of a size that is divided."""
    return -(-size // parts)
