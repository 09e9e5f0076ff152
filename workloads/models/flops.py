"""How many floating-point operations a model needs: the numerator of MFU.

Only matrix products count, a multiply and an add as two. Attention scores are *causal* by default:
what lies above the diagonal is needed by nobody, so a kernel that skips it gets no credit for it
and one that computes it none either. ``causal=False`` counts the whole square, as the definition
of MFU in arXiv 2204.02311 (appendix B) does; it gives a larger MFU for the same time.
"""

from __future__ import annotations

from workloads.models.model import Model, attention_parameters, mlp_parameters

BACKWARD = 2
"""Products of the backward pass for each one of the forward pass: two gradients."""


def keys_seen(model: Model, seq: int, *, causal: bool = True) -> float:
    """Keys that a query of a sequence looks at, in the mean over its positions.

    Examples
    --------
    >>> from workloads.models.huggingface import named
    >>> keys_seen(named("llama-3.1-8b"), 8192)
    4096.5
    """
    window = min(seq, model.window or seq)
    if not causal:
        return float(window)
    return (window * (window + 1) / 2 + (seq - window) * window) / seq


def attention_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """Of the scores and the weighted sums of one layer, forward, one token."""
    widths = model.query_width + model.value_width
    return 2 * widths * keys_seen(model, seq, causal=causal)


def layer_flops(model: Model, seq: int, *, moe: bool, causal: bool = True) -> float:
    """Of one layer, forward, one token: two for each weight that it passes, and attention.

    Parameters
    ----------
    model : Model
    seq : int
        Tokens of a sequence.
    moe : bool
        Whether the layer has experts.
    causal : bool
        Whether scores above the diagonal are left out.
    """
    norms = 2 * model.head_dim * model.qk_norm
    biases = _biases(model, moe=moe)
    weights = attention_parameters(model) + mlp_parameters(model, moe=moe) - norms - biases
    if moe and model.experts:
        matrices = 3 if model.gated_mlp else 2
        idle = model.experts.count - model.experts.per_token
        weights -= idle * matrices * model.hidden * model.experts.ffn
    return 2 * weights + attention_flops(model, seq, causal=causal)


def _biases(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that no product multiplies, norms over the hidden width left out."""
    h = model.hidden
    if model.latent:
        attention = model.latent.query_rank + model.latent.kv_rank
    else:
        kv = model.kv_heads * model.head_dim
        attention = (model.query_width + 2 * kv) * model.qkv_bias + h * model.output_bias
    if moe and model.experts:
        return attention + model.experts.count * model.experts.router_bias
    return attention + (model.ffn * (2 if model.gated_mlp else 1) + h) * model.mlp_bias


def forward_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """Of the whole model, forward, one token, output layer included.

    Examples
    --------
    About two for each parameter, and attention on top:

    >>> from workloads.models.huggingface import named
    >>> big = named("llama-3.1-405b")
    >>> round(forward_flops(big, 8192) / big.parameters, 2)
    2.07
    """
    dense = (model.layers - model.moe_layers) * layer_flops(model, seq, moe=False, causal=causal)
    sparse = model.moe_layers * layer_flops(model, seq, moe=True, causal=causal)
    return dense + sparse + 2 * model.vocab * model.hidden


def training_flops(model: Model, seq: int, tokens: int, *, causal: bool = True) -> float:
    """Of one optimizer step over so many tokens, without recomputation.

    Returns
    -------
    float
        Three times the forward pass (arXiv 2001.08361, section 2.1).
    """
    return (1 + BACKWARD) * forward_flops(model, seq, causal=causal) * tokens
