"""Residuals of validation: the data of intervals from compared rows, and intervals of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from experiments.validation.conditions.row_defaults import filled
from experiments.validation.conditions.torch_neuron import PYTORCH
from experiments.validation.predictions.training import question
from experiments.validation.reading.machines import machines_for, servers_reach
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from workloads.confidence.features import crosses_servers, kernels_assumed
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import (
    EXCHANGE,
    FIRST_TOKEN,
    FIRST_TOKEN_EXPERTS,
    RESEARCH,
    SERVING,
    SERVING_EXPERTS,
    Prediction,
    collective_kind,
    kernel_kind,
    training_kind,
)
from workloads.confidence.mixture import NEVER, slowing
from workloads.confidence.residuals import Residual, Residuals
from workloads.confidence.split_conformal import interval
from workloads.models.huggingface import model as read_model

EXCHANGES = "expert_exchange"
"""Table of exchanges of experts, which are collectives of uneven sizes."""
MIXED_NODES = "nic_bandwidth=research"
"""Variant that rows state whose cluster mixed healthy and slow nodes."""
SEPARATE_KERNELS = "unfused"
"""Attention of frameworks before fused kernels, as plans name it."""
MIXED_ABOVE_CHIPS = 128
"""Chips above which the nanotron sweep ran on a mixture of healthy and slow nodes."""

FIRST = (FIRST_TOKEN, FIRST_TOKEN_EXPERTS)
"""Kinds of residuals of first tokens: dense models, mixtures of experts."""

Row = Mapping[str, Any]


def residuals(tables: Mapping[str, Sequence[Row]]) -> list[Residual]:
    """Residuals of the compared rows of tables, in their order.

    Rows without a prediction or a time are left out, as are the pipelined and the largest runs of
    the nanotron sweep: they mix healthy and slow machines, so their residuals say how often a node
    was slow rather than how far a prediction is off.
    """
    return [residual for name, rows in tables.items() for residual in _of_table(name, rows)]


def _of_table(name: str, rows: Sequence[Row]) -> Iterator[Residual]:
    for row in rows:
        error = row.get("error")
        if error is None or error <= -1 or is_mixed(name, row):
            continue
        for each, off in ((row, error), *_first_tokens(row)):
            prediction = prediction_of(each, name)
            if prediction is None:
                continue
            yield Residual(
                table=name,
                kind=prediction.kind,
                chip=prediction.chip,
                group=group_of(row),
                tp=prediction.tp,
                cp=prediction.cp,
                ranks=prediction.ranks,
                assumed=prediction.assumed,
                log_residual=-math.log1p(off),
                crosses=prediction.crosses,
            )


def group_of(row: Row) -> str:
    """Machine, and model or operation."""
    subject = row.get("name") or row.get("model") or row.get("collective") or ""
    return f"{row.get('cluster')}|{subject}"


def _first_tokens(row: Row) -> Iterator[tuple[Row, float]]:
    """Time to first token and its error, of a serving row whose first quantity is another."""
    error = row.get("error_ttft_s")
    if error is not None and error > -1 and row["quantity"] != "ttft_s":
        yield {**row, "quantity": "ttft_s"}, float(error)


def is_mixed(name: str, row: Row) -> bool:
    """Return whether a row of the nanotron sweep may have met a slow node."""
    if name != "nanotron_h100":
        return False
    return (row.get("pp") or 1) > 1 or (row.get("chips") or 1) > MIXED_ABOVE_CHIPS


def prediction_of(
    row: Row, table: str = "", catalogue: Catalogue | None = None
) -> Prediction | None:
    """Features of a compared row for its interval; None for memory and other non-times."""
    quantity = row["quantity"]
    grades: Mapping[str, str] = row["provenance"]
    chip = _chip(str(row.get("cluster") or row.get("chip") or ""))
    ranks = int(row.get("ranks") or row.get("chips") or 1)
    if quantity == "iteration_s":
        zero = int(row.get("zero") or 0)
        plan = question(filled(row).values)[2]
        unfused = plan.attention == SEPARATE_KERNELS
        kind = training_kind(experts=bool(row.get("experts")), zero=zero, unfused=unfused)
        slow = NEVER
        if MIXED_NODES in str(row.get("variant")):
            kind = RESEARCH
            slow = slowing(ranks, plan.microbatches, pipelined=plan.pp > 1)
        tp, cp = int(row.get("tp") or 1), int(row.get("cp") or 1)
        return Prediction(kind, chip, tp, cp, ranks, kernels_assumed(chip, catalogue), slow)
    if "collective" in row:
        kind = EXCHANGE if table == EXCHANGES else collective_kind(int(row["size_bytes"] or 0))
        links = grades.get("efficiency", grades.get("collective_efficiency", ""))
        reach = servers_reach(int(row.get("chips") or 1), str(row.get("group") or ""))
        crosses = _crosses(str(row.get("cluster")), reach)
        assumed = links.startswith("assumed") or row.get("runtime") == PYTORCH
        return Prediction(kind, chip, ranks=ranks, assumed=assumed, crosses=crosses)
    if "concurrency" in row or quantity in ("ttft_s", "tpot_s", "tokens_per_s"):
        first = quantity == "ttft_s"
        dense, sparse = FIRST if first else (SERVING, SERVING_EXPERTS)
        kind = sparse if _has_experts(str(row.get("model"))) else dense
        return Prediction(kind, chip, ranks=ranks, assumed=kernels_assumed(chip, catalogue))
    if quantity in ("kernel_s", "forward_s", "backward_s"):
        kind = kernel_kind(str(row.get("kernel") or ""))
        return Prediction(kind, chip, assumed=kernels_assumed(chip, catalogue))
    return None


@cache
def _chip(cluster: str) -> str:
    """Catalogue name of the chip of a machine; the text itself where it names no machine."""
    try:
        return machines_for(cluster, 1).chip or cluster
    except InputError:
        return cluster


@cache
def _crosses(cluster: str, chips: int) -> bool:
    """Return whether a collective on so many chips crosses servers by the Neuron runtime."""
    try:
        return crosses_servers(machines_for(cluster, chips))
    except InputError:
        return False


@cache
def _has_experts(model: str) -> bool:
    try:
        return read_model(model).experts is not None
    except InputError:
        return False


def row_interval(
    row: Row, table: str, measured: Residuals, catalogue: Catalogue | None = None
) -> Interval | None:
    """Interval of one compared row's prediction; None where there is no predicted time."""
    predicted = row.get("predicted")
    if not predicted or row["status"] == "unsupported":
        return None
    prediction = prediction_of(row, table, catalogue)
    if prediction is None:
        return None
    ends = interval(predicted, prediction, measured)
    if row.get("predicted_least") is not None:
        return _with_tool(ends, row)
    if row["quantity"] != "tokens_per_s":
        return ends
    return Interval(**ends.scaled(predicted), level=ends.level, basis=ends.basis)


def _with_tool(ends: Interval, row: Row) -> Interval:
    """Interval whose ends include what the tool that timed the row may add."""
    predicted, least, most = (row[f"predicted{end}"] for end in ("", "_least", "_most"))
    more = f"the tool that timed it shows {least * 1e6:,.3g} to {most * 1e6:,.3g} us"
    return replace(
        ends,
        low=ends.low * least / predicted,
        high=ends.high * most / predicted,
        basis=f"{ends.basis}; {more}",
    )


def with_intervals(
    rows: Sequence[Row], table: str, measured: Residuals, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """Rows with the ends ``low`` and ``high`` of their predictions, None where there are none.

    The catalogue, by default the shipped one, says which chips have measured kernels.
    """
    complete = []
    for row in rows:
        ends = row_interval(row, table, measured, catalogue)
        low, high = (ends.low, ends.high) if ends else (None, None)
        complete.append({**row, "low": low, "high": high})
    return complete


def coverage(rows: Sequence[Row]) -> dict[str, float | None]:
    """Share of published values inside their intervals, and the intervals' median half-width.

    Returns
    -------
    dict
        ``coverage`` and ``median_half_width``; the latter is half of (high − low) / predicted. None
        where no row has both.
    """
    judged = [row for row in rows if row.get("low") is not None and row["error"] is not None]
    if not judged:
        return {"coverage": None, "median_half_width": None}
    inside = [row["low"] <= row["published"] <= row["high"] for row in judged]
    widths = [(row["high"] - row["low"]) / 2 / row["predicted"] for row in judged]
    return {"coverage": float(np.mean(inside)), "median_half_width": float(np.median(widths))}
