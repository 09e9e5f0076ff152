"""Residuals of validation: the data of intervals from compared rows, and intervals of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from experiments.validation.comparison.compare_collectives import FASTER, SLOWER, USUAL
from experiments.validation.predictions.training import filled, question
from experiments.validation.reading.machines import machines_for, model_for, servers_reach
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError
from workloads.confidence.answers import kernels_assumed, model_family, weight_width
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import (
    EXCHANGE,
    FIRST_TOKEN,
    FIRST_TOKEN_EXPERTS,
    KERNELS,
    NEVER,
    RESEARCH,
    SERVING,
    SERVING_EXPERTS,
    Prediction,
    collective_kind,
    kernel_kind,
    slowing,
    training_kind,
)
from workloads.confidence.residuals import Residual, Residuals
from workloads.confidence.split_conformal import interval
from workloads.training.frameworks.framework import framework_of

EXCHANGES = "expert_exchange"
"""Table of exchanges of experts, which are collectives of uneven sizes."""
MIXED_NODES = "nic_bandwidth=research"
"""Variant that rows state whose cluster mixed healthy and slow nodes."""
SEPARATE_KERNELS = "unfused"
"""Attention of frameworks before fused kernels, as plans name it."""
MIXED_ABOVE_CHIPS = 128
"""Chips above which the nanotron sweep ran on a mixture of healthy and slow nodes."""

FIRST, LATER = (FIRST_TOKEN, FIRST_TOKEN_EXPERTS), (SERVING, SERVING_EXPERTS)
"""Kinds of residuals of first and of later tokens: dense models, mixtures of experts."""
PRODUCT = KERNELS[0]

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
                tool=prediction.tool,
                family=prediction.family,
                crosses=prediction.crosses,
                framework=prediction.framework,
                stated=prediction.stated,
                below=prediction.below,
                above=prediction.above,
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
    chip = _chip(str(row.get("cluster") or row.get("chip") or ""))
    ranks = int(row.get("ranks") or row.get("chips") or 1)
    if quantity == "iteration_s":
        zero = int(row.get("zero") or 0)
        _, machine, plan = question(filled(row).values)
        unfused = plan.attention == SEPARATE_KERNELS
        kind = training_kind(
            experts=bool(row.get("experts")),
            zero=zero,
            unfused=unfused,
            adapters=plan.lora_rank > 0,
        )
        slow = NEVER
        if MIXED_NODES in str(row.get("variant")):
            kind = RESEARCH
            slow = slowing(ranks, plan.microbatches, pipelined=plan.pp > 1)
        below, above = (
            math.log(row.get(f"predicted_{end}", row["predicted"]) / row["predicted"])
            for end in ("least", "most")
        )
        return Prediction(
            *(kind, chip, plan.tp, plan.cp, ranks, kernels_assumed(chip, catalogue), slow),
            framework=framework_of(plan, machine).name,
            stated=str(row.get("stated") or ""),
            below=below,
            above=above,
        )
    if "collective" in row:
        kind = EXCHANGE if table == EXCHANGES else collective_kind(int(row["size_bytes"] or 0))
        reach = servers_reach(int(row.get("chips") or 1), str(row.get("group") or ""))
        below, above = (
            math.log(float(row.get(f"predicted_{end}") or row["predicted"]) / row["predicted"])
            for end in ("least", "most")
        )
        return Prediction(
            *(kind, chip),
            ranks=ranks,
            tool=_tool(row),
            crosses=_crosses(str(row.get("cluster")), reach),
            below=below,
            above=above,
        )
    if "concurrency" in row or quantity in ("ttft_s", "tpot_s", "tokens_per_s"):
        kinds = FIRST if quantity == "ttft_s" else LATER
        precision = str(row.get("precision") or "bf16").lower().removeprefix("nv")
        experts, family = _model(str(row.get("model")), precision)
        engine = str(row.get("scheduler") or "")
        return Prediction(kinds[experts], chip, ranks=ranks, tool=engine, family=family)
    if quantity in ("kernel_s", "forward_s", "backward_s"):
        kind = kernel_kind(str(row.get("kernel") or ""))
        family = weight_width(str(row.get("precision") or "bf16")) if kind == PRODUCT else ""
        return Prediction(kind, chip, tool=_tool(row), family=family)
    return None


def _tool(row: Row) -> str:
    """Tool that timed a collective or kernel, or the library or runtime that ran it."""
    stated = (row.get(name) for name in ("tool", "library", "runtime"))
    return next((str(name) for name in stated if name), "")


@cache
def _chip(cluster: str) -> str:
    """Catalogue name of the chip of a machine; the text itself where it names no machine."""
    try:
        return machines_for(cluster, 1).chip or cluster
    except InputError:
        return cluster


@cache
def _crosses(cluster: str, chips: int) -> bool:
    try:
        return machines_for(cluster, chips).domains > 1
    except InputError:
        return False


@cache
def _model(name: str, precision: str) -> tuple[bool, str]:
    try:
        model = model_for(name)
        return model.experts is not None, model_family(model, precision)
    except InputError:
        return False, ""


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
    if row["quantity"] != "tokens_per_s":
        return ends
    return Interval(**ends.scaled(predicted, rate=True), level=ends.level, basis=ends.basis)


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


def marked(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows with ``normal``: usual, slower or faster than 80 % intervals; None without one."""
    return [{**row, "normal": _normal(row)} for row in rows]


def _normal(row: Row) -> str | None:
    if row.get("low") is None or row["error"] is None:
        return None
    if row["low"] <= row["published"] <= row["high"]:
        return USUAL
    above = row["published"] > row["high"]
    return FASTER if above == (row["quantity"] in RATES) else SLOWER


RATES = ("tokens_per_s", "goodput", "mtbf_s")
"""Quantities of which more is better."""


def coverage(rows: Sequence[Row]) -> dict[str, float | None]:
    """Share of published values inside their intervals, and the intervals' median half-width.

    Returns ``coverage`` and ``median_half_width``; the latter is half of (high − low) / predicted.
    None where no row has both.
    """
    judged = [row for row in rows if row.get("low") is not None and row["error"] is not None]
    if not judged:
        return {"coverage": None, "median_half_width": None}
    inside = [row["low"] <= row["published"] <= row["high"] for row in judged]
    widths = [(row["high"] - row["low"]) / 2 / row["predicted"] for row in judged]
    return {"coverage": float(np.mean(inside)), "median_half_width": float(np.median(widths))}
