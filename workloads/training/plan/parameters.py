"""Parameters of a model that one rank holds, with routed experts counted apart from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import Model, expert_parameters, layer_norms, layer_parameters
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import end_stages, stage_kinds

WEIGHT_BYTES = 2  # bytes of a parameter in bf16, in mixed precision (arXiv 1710.03740)
GRADIENT_BYTES = 4  # bytes of a gradient, accumulated in fp32
OPTIMIZER_BYTES = {"adamw": 12, "muon": 8, "adafactor": 4, "sgd": 8}
"""Bytes of a parameter's master copy and state in fp32: mean and variance of Adam (arXiv
1910.02054, section 3.1), the momentum of Muon and SGD; Adafactor keeps a number for each row and
column, which is left out (arXiv 1804.04235)."""


def optimizer_bytes(plan: ParallelPlan, parameters: int, edges: int) -> int:
    """Bytes of master copy and optimizer state of parameters, of which ``edges`` are of ends."""
    of_edges = OPTIMIZER_BYTES["adamw" if plan.optimizer == "muon" else plan.optimizer]
    return OPTIMIZER_BYTES[plan.optimizer] * (parameters - edges) + of_edges * edges


def layer_weight_bytes(plan: ParallelPlan) -> float:
    """Bytes of a parameter of a layer in a rank's memory [B]."""
    # Parameters that adapters leave frozen are never updated, so they are stored only in the
    # precision of their products, as NeMo does; embedding and output layer stay in bf16.
    return ELEMENT_BYTES[plan.precision] if plan.lora_rank else WEIGHT_BYTES


class Share(NamedTuple):
    """Parameters that a rank holds of a layer, a stage or a model."""

    dense: int  # parameters that dp and cp replicate
    experts: int  # parameters of routed experts, which expert parallelism divides

    @property
    def total(self) -> int:
        """Dense parameters and parameters of experts."""
        return self.dense + self.experts


def total(shares: Sequence[Share]) -> Share:
    """Sum of several shares."""
    return Share(sum(share.dense for share in shares), sum(share.experts for share in shares))


def layer_share(model: Model, plan: ParallelPlan, *, moe: bool = False) -> Share:
    """Parameters of one layer on one rank."""
    # Norms, routers and the down-projections of latent attention are on every rank of a
    # tensor-parallel group, and so are key-value heads where tp exceeds them.
    return _layer_share(model, plan.tp, plan.ep * plan.expert_tp, moe=moe)


def _layer_share(model: Model, tp: int, parts: int, *, moe: bool) -> Share:
    """Parameters of one layer on one of ``tp`` ranks, with its experts divided into ``parts``."""
    experts = model.experts.count * expert_parameters(model) if moe and model.experts else 0
    whole = _undivided(model, moe=moe)
    split = part(layer_parameters(model, moe=moe) - experts - whole, tp)
    replicated = 0  # parameters of key-value heads beyond an equal part
    if model.mixer == "attention" and not model.latent:
        copies = max(0, tp - model.kv_heads)
        replicated = 2 * copies * model.head_dim * model.hidden // tp
    return Share(split + whole + replicated, part(experts, parts))


def _undivided(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that tensor parallelism does not divide."""
    whole = layer_norms(model, moe=moe) * model.norm_parameters
    if model.latent and model.mixer == "attention":
        latent = model.latent
        # The down-projections of queries, and of keys and values, each with the norm behind it.
        whole += latent.query_rank * (model.hidden + 1) + latent.kv_rank
        whole += model.hidden * (latent.kv_rank + latent.rope_dim)
    if moe and model.experts:
        experts = model.experts
        router = experts.count * (model.hidden + experts.router_bias)
        whole += router + model.hidden * experts.shared_gate
    return whole


def edge_share(model: Model, plan: ParallelPlan, stage: int) -> int:
    """Parameters outside of layers on a rank of a stage: embedding, final norm, output layer."""
    # Tied embeddings are one table; where the model's first and last chunk lie on different stages,
    # each of the two has a copy.
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
    """Parameters of a layer of each of ``model.kinds`` on one rank."""
    return _kind_shares(model, plan.tp, plan.ep * plan.expert_tp)


@lru_cache(maxsize=1024)
def _kind_shares(model: Model, tp: int, parts: int) -> tuple[Share, ...]:
    return tuple(
        _layer_share(model.of_kind(kind), tp, parts, moe=kind.experts) for kind in model.kinds
    )


def part(size: int, parts: int) -> int:
    """Size of the largest part when a size is divided as evenly as possible."""
    return -(-size // parts)
