"""Floating-point operations that a model needs: the numerator of MFU.

Only matrix products count, with two operations for a multiplication and an addition. Attention
scores are *causal* by default: scores above the diagonal are not needed, so they are not counted,
whether a kernel skips or computes them. ``causal=False`` counts the whole square, as the definition
of MFU in arXiv 2204.02311 (appendix B) does; it gives a larger MFU for the same time.
"""

from __future__ import annotations

from workloads.models.model import (
    Model,
    attention_parameters,
    attention_vectors,
    expert_parameters,
    mlp_parameters,
)

BACKWARD = 2  # matrix products of the backward pass for each one of the forward pass: two gradients


def keys_seen(model: Model, seq: int, *, causal: bool = True) -> float:
    """Return the number of keys that a query sees, in the mean over the positions of a sequence."""
    window = min(seq, model.window or seq)
    if not causal:
        return float(window)
    return (window * (window + 1) / 2 + (seq - window) * window) / seq


def attention_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """FLOPs of the scores and weighted sums of one layer, for the forward pass of one token."""
    # A recurrent mixer updates each element of its state and reads it: a product and a sum each.
    if model.mixer == "none":
        return 0.0
    if model.mixer == "recurrence" and model.recurrence:
        return 4.0 * model.recurrence.state
    widths = model.query_width + model.value_width
    return 2 * widths * keys_seen(model, seq, causal=causal)


def all_attention_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """FLOPs of the scores and weighted sums of all layers, for the forward pass of one token."""
    return sum(
        model.each_layer.count(kind) * attention_flops(model.of_kind(kind), seq, causal=causal)
        for kind in model.kinds
    )


def layer_flops(model: Model, seq: int, *, moe: bool, causal: bool = True) -> float:
    """FLOPs of one layer for the forward pass of one token: two for each weight, and attention."""
    weights = attention_parameters(model) + mlp_parameters(model, moe=moe)
    weights -= attention_vectors(model) + _mlp_vectors(model, moe=moe)
    # Of the experts only those count that a token visits, without their biases.
    if moe and model.experts:
        biases = expert_parameters(model) - (3 if model.gated_mlp else 2) * (
            model.hidden * model.experts.ffn
        )
        idle = model.experts.count - model.experts.per_token
        weights -= idle * expert_parameters(model) + model.experts.per_token * biases
    return 2 * weights + attention_flops(model, seq, causal=causal)


def _mlp_vectors(model: Model, *, moe: bool) -> int:
    """Parameters of a feed-forward part that no product multiplies, without those of experts."""
    if moe and model.experts:
        return model.experts.count * model.experts.router_bias
    if not model.ffn:
        return 0
    return (model.ffn * (2 if model.gated_mlp else 1) + model.hidden) * model.mlp_bias


def forward_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """FLOPs of the whole model for the forward pass of one token, with the output layer."""
    # There are about two for each parameter, and attention besides:
    layers = sum(
        model.each_layer.count(kind)
        * layer_flops(model.of_kind(kind), seq, moe=kind.experts, causal=causal)
        for kind in model.kinds
    )
    return layers + output_flops(model)


def output_flops(model: Model) -> float:
    """FLOPs of a token outside of layers: the output layer, for each prediction head again."""
    # A head also projects its input and an embedding to the hidden width.
    heads, hidden = model.prediction_heads, model.hidden
    return 2 * (1 + heads) * model.vocab * hidden + 4 * heads * hidden * hidden


def training_flops(model: Model, seq: int, tokens: int, *, causal: bool = True) -> float:
    """FLOPs of one optimizer step over ``tokens``, without recomputation."""
    # Returns three times the forward pass (arXiv 2001.08361, section 2.1).
    return (1 + BACKWARD) * forward_flops(model, seq, causal=causal) * tokens
