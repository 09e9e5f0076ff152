"""Baseline predictor: one constant efficiency, fitted to the table itself by its median."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.validation.comparison.compare import condensed
from experiments.validation.reading.columns import Value
from experiments.validation.reading.rows import Rows


def baseline(rows: Rows, compared: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Errors of the constant predictor on the rows that were predicted.

    Training rows: model FLOPs over chips; collective rows: bytes on the wire. Both are divided by
    one constant, which makes the median right. Other kinds have no such predictor and get None.
    Returns ``median_abs_error, mean_abs_error, p90_abs_error, bias``.
    """
    work = {"training": training_work, "collective": wire_bytes}.get(rows.kind.name)
    pairs = [
        (work(row.values), result["published"])
        for row, result in zip(rows.rows, compared, strict=True)
        if work is not None and result["error"] is not None
    ]
    if not pairs:
        return condensed(np.empty(0))
    amount, published = np.array(pairs, float).T
    cost = published / np.maximum(amount, 1.0)
    return condensed(amount * np.median(cost) / published - 1)


def training_work(values: Mapping[str, Value]) -> float:
    """Model FLOPs of an iteration per chip: 6 per parameter and token, and the attention scores.

    After Narayanan et al. (2021), equation 3, without recomputation.
    """

    def count(name: str, default: float) -> float:
        value = values.get(name)
        return float(value) if isinstance(value, int | float) else default

    hidden, layers, seq = count("hidden", 0), count("layers", 0), count("seq", 0)
    heads = count("heads", 1)
    width = count("head_dim", hidden / max(heads, 1))
    attention = hidden * width * (2 * heads + 2 * count("kv_heads", heads))
    matrices = 3 if values.get("gated_mlp") else 2
    dense = matrices * hidden * count("ffn", 4 * hidden)
    active = count("experts_per_token", 0) + count("shared_experts", 0)
    routed = matrices * hidden * count("moe_ffn", count("ffn", 4 * hidden)) * active
    plain = count("dense_layers", 0) if active else layers
    weights = layers * attention + plain * dense + (layers - plain) * routed
    weights += hidden * count("vocab", 0)
    scores = 2 * layers * heads * width * seq
    return 6 * count("global_batch", 1) * seq * (weights + scores) / count("chips", 1)


def wire_bytes(values: Mapping[str, Value]) -> float:
    """Bytes that each rank sends in a bandwidth-optimal collective."""
    ranks = values.get("ranks") or values.get("chips") or 1
    size = values.get("size_bytes") or 0
    rounds = 2 if values.get("collective") == "all-reduce" else 1
    return rounds * float(size) * (1 - 1 / float(ranks))
