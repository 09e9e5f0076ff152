"""Predicted and published values: the error of each row and a summary of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.validation.predictions.outcome import Outcome, unsupported
from experiments.validation.reading.rows import Row, Rows
from experiments.validation.reading.schema import Kind, Value
from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.confidence.split_conformal import rank_correlation

FAULTS = (ArithmeticError, LookupError, MemoryError, ValueError)
"""Faults of the model in one row, which must not hide the results of the others."""
Predict = Callable[[Mapping[str, Value]], Outcome]


def compare(rows: Rows, predict: Predict) -> list[dict[str, Any]]:
    """Predict every row and set the result beside what was published, in the order of the file.

    ``predict``: a mistake of the row (:class:`InputError`) makes it unsupported; nothing is left
    out.

    Returns the cells as read, then ``predicted, published, error, status, why, provenance``; where
    the tool that timed a row adds an uncertain time, also ``predicted_least, predicted_most``.
    """
    return [compare_row(rows.kind, row, predict) for row in rows.rows]


def compare_row(kind: Kind, row: Row, predict: Predict) -> dict[str, Any]:
    """One row of :func:`compare`."""
    if row.mistakes:
        outcome = unsupported(f"line {row.line}: {' '.join(row.mistakes)}")
    else:
        try:
            outcome = predict(row.values)
        except InputError as mistake:
            outcome = unsupported(f"line {row.line}: {mistake}")
        except FAULTS as fault:
            outcome = unsupported(f"line {row.line}: internal fault, {fault!r}. Please report it.")
    return {**_as_read(kind, row), **_beside(kind, row, outcome)}


def _as_read(kind: Kind, row: Row) -> dict[str, Any]:
    """Cells of our columns as numbers where they are, all others unchanged."""
    return {
        name: cell if kind.column(name) is None else _own(row, name, cell)
        for name, cell in row.cells.items()
    }


def _own(row: Row, name: str, cell: str) -> Value:
    """Value of a cell: of a bad row as it stands, otherwise None where 0 means not stated."""
    value = row.values[name]
    return cell if value is None and row.mistakes else value


def _beside(kind: Kind, row: Row, outcome: Outcome) -> dict[str, Any]:
    """Predicted and published value and error: of the first quantity stated, then of the others."""
    stated = [name for name in kind.published if _number(row.values.get(name)) is not None]
    first = stated[0] if stated else next(iter(outcome.predicted), kind.published[0])
    predicted = outcome.predicted.get(first)
    published = _number(row.values.get(first))
    answer: dict[str, Any] = {
        "quantity": first,
        "predicted": predicted,
        "published": published,
        "error": error(predicted, published) if outcome.status == "ok" else None,
        "status": outcome.status,
        "why": outcome.why,
        "provenance": dict(outcome.provenance),
    }
    if outcome.ends is not None:
        answer["predicted_least"], answer["predicted_most"] = outcome.ends
    for name, value in outcome.predicted.items():
        if name != first:
            answer[f"predicted_{name}"] = value
            if name in kind.published:
                answer[f"error_{name}"] = error(value, _number(row.values.get(name)))
    return answer


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def error(predicted: float | None, published: float | None) -> float | None:
    """Return predicted / published − 1, or None where one is missing."""
    if predicted is None or not published or not math.isfinite(predicted):
        return None
    return predicted / published - 1


def summary(compared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the rows and condense their errors.

    Returns ``rows, ok, unsupported, infeasible``, and ``oversized``, rows that ran although the
    memory model refuses their plan; over the rows with an error ``median_abs_error, mean_abs_error,
    p90_abs_error``, ``bias`` (mean error) and ``kendall_tau`` (rank correlation of predicted and
    published); None where there are too few rows. Where rows state further quantities, such as
    memory beside the time: ``quantities``, the same errors of each. Where they state whether a plan
    ``fits``: ``fits``, counts of right and wrong predictions.
    """
    statuses = [row["status"] for row in compared]
    good = [row for row in compared if row["error"] is not None]
    errors = np.array([row["error"] for row in good], float)
    answer = {
        "rows": len(statuses),
        "ok": statuses.count("ok"),
        "unsupported": statuses.count("unsupported"),
        "infeasible": statuses.count("infeasible"),
        "oversized": sum("memory" in row["provenance"] for row in compared),
        **condensed(errors),
        "kendall_tau": rank_correlation(
            [row["predicted"] for row in good], [row["published"] for row in good]
        ),
    }
    others, fits = _quantities(compared), told(compared)
    return answer | ({"quantities": others} if others else {}) | ({"fits": fits} if fits else {})


def _quantities(compared: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Errors of the quantities that rows state besides their first, by name."""
    errors: dict[str, list[float]] = {}
    for row in compared:
        for name, value in row.items():
            if name.startswith("error_") and value is not None:
                errors.setdefault(name.removeprefix("error_"), []).append(value)
    return {name: {"rows": len(of), **condensed(np.array(of))} for name, of in errors.items()}


def told(compared: Sequence[Mapping[str, Any]], *, unstated: str = "") -> dict[str, int]:
    """Count runs predicted to fit or not, separately for those that ran and that failed.

    ``unstated`` takes the place of ``fits`` in rows that have no such column: 1 where they ran.
    """
    counts: dict[str, int] = {}
    for row in compared:
        predicted = row.get("predicted_fits")
        stated = str(row.get("fits", unstated))
        if predicted is not None and stated in ("0", "1"):
            ran = "ran" if stated == "1" else "failed"
            key = f"{ran}_told_{'to_fit' if predicted else 'too_large'}"
            counts[key] = counts.get(key, 0) + 1
    return counts


def condensed(errors: FloatArray) -> dict[str, float | None]:
    """Median, mean and 90th percentile of the absolute errors, and the mean error."""
    if not len(errors):
        return dict.fromkeys(("median_abs_error", "mean_abs_error", "p90_abs_error", "bias"), None)
    size = np.abs(errors)
    return {
        "median_abs_error": float(np.median(size)),
        "mean_abs_error": float(size.mean()),
        "p90_abs_error": float(np.quantile(size, 0.9)),
        "bias": float(errors.mean()),
    }


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
