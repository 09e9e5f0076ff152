"""Predicted and published values: errors, residuals, intervals, and whether a machine is normal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.collectives.duration.expert_library import LIBRARIES
from cluster_sim.collectives.results import bus_factor
from experiments.validation.predictions.training import filled, question
from experiments.validation.reading.rows import (
    Kind,
    Outcome,
    Row,
    Rows,
    Value,
    machines_for,
    model_for,
    servers_reach,
    unsupported,
)
from experiments.validation.reading.tool_outputs import Measured, MeasuredSteps
from topologies.catalogue.catalogue import Catalogue
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from topologies.support.units import format_bytes
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
from workloads.confidence.split_conformal import (
    LEAST,
    interval,
    margin,
    rank_correlation,
    ratio_ends,
)
from workloads.training.iteration import Iteration
from workloads.training.usual_plan import training_features

if TYPE_CHECKING:
    import pandas as pd


FAULTS = (ArithmeticError, LookupError, MemoryError, ValueError)
"""Faults of the model in one row, which must not hide the results of the others."""
Predict = Callable[[Mapping[str, Value]], Outcome]


def compare(rows: Rows, predict: Predict) -> list[dict[str, Any]]:
    """Predict every row, unsupported where it has a mistake, beside what was published."""
    return [compare_row(rows.kind, predict, row) for row in rows.rows]


def compare_row(kind: Kind, predict: Predict, row: Row) -> dict[str, Any]:
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
    as_read = {
        # A cell of a bad row stays as it stands; otherwise None is a 0 that means not stated.
        name: cell
        if kind.column(name) is None or (row.values[name] is None and row.mistakes)
        else row.values[name]
        for name, cell in row.cells.items()
    }
    return {**as_read, **_beside(kind, row, outcome)}


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
    """Count the rows and condense their errors, those of further quantities, and what ``fits``."""
    # ``oversized`` rows ran although the memory model refuses their plan; ``bias`` is the mean
    # error, ``kendall_tau`` the rank correlation. None where there are too few rows.
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
    """Count runs predicted to fit or not by what they did; ``unstated`` is 1 where all ran."""
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
    """Errors of a constant predictor: model FLOPs over chips, or bytes on the wire; else None."""
    # One constant makes the median right.
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
    """Model FLOPs of an iteration per chip: 6 per parameter and token, and the attention scores."""

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
    # Narayanan et al. (2021), equation 3, without recomputation.
    return 6 * count("global_batch", 1) * seq * (weights + scores) / count("chips", 1)


def wire_bytes(values: Mapping[str, Value]) -> float:
    """Bytes that each rank sends in a bandwidth-optimal collective."""
    ranks = values.get("ranks") or values.get("chips") or 1
    size = values.get("size_bytes") or 0
    rounds = 2 if values.get("collective") == "all-reduce" else 1
    return rounds * float(size) * (1 - 1 / float(ranks))


def check_same(measured: Measured, op: str, ranks: int, name: str) -> None:
    """Refuse to compare with an operation or a number of ranks other than the measured one."""
    operation = op.removesuffix("-v")
    if measured.collective not in (None, operation):
        raise InputError(
            f"--compare {name} measures {measured.collective}, the command simulates {op}; "
            f"ask for {measured.collective}"
        )
    if measured.ranks not in (None, ranks):
        raise InputError(
            f"--compare {name} was measured on {measured.ranks} ranks, the command simulates "
            f"{ranks}; add --ranks {measured.ranks}, and --ranks-per-chip if they share chips"
        )


def beside(frame: pd.DataFrame, measured: Measured, name: str) -> pd.DataFrame:
    """Add measured times, busbw from these, and whether they are usual, to rows of their sizes."""
    import pandas as pd

    series = pd.Series(measured.time_s, index=measured.size_bytes.astype(np.int64))
    times = frame.size_bytes.map(series.groupby(level=0).median())
    if times.isna().all():
        raise InputError(
            f"--compare {name} measures none of the sizes asked for, but {len(measured)} from "
            f"{int(measured.size_bytes.min())} to {int(measured.size_bytes.max())} B; "
            "leave out --size to simulate those"
        )
    first = frame.iloc[0]
    factor = bus_factor(str(first.collective).removesuffix("-v"), int(first.ranks))
    ends = zip(times, frame.low, frame.high, strict=True)
    words: list[Any] = [None if math.isnan(each[0]) else normal(*each) for each in ends]
    return frame.assign(
        measured_time_s=times,
        measured_busbw_bytes_per_s=factor * frame.size_bytes / times,
        error=frame.time_s / times - 1,
        normal=words,
    )


USUAL, SLOWER, FASTER = "usual", "slower", "faster"
"""A measured time within the 80 % interval of such machines, beyond it, and below it."""
BY_BANDWIDTH = 0.25
"""Share of a simulated time from which its lower bound, set by links and memory, counts as most."""


def normal(measured: float, low: float, high: float, *, is_rate: bool = False) -> str:
    """Return whether a measured value is usual for such machines, or slower or faster."""
    if low <= measured <= high:
        return USUAL
    return FASTER if (measured > high) == is_rate else SLOWER


def compared_step(measured: MeasuredSteps, step: Iteration) -> dict[str, Any]:
    """Return measured times, their error, and whether they are usual: the key ``compared``."""
    times_s = measured.times_s(step)
    low_s, measured_s, high_s = map(float, np.quantile(times_s, (0.1, 0.5, 0.9)))
    return {
        "source": measured.source or None,
        "tool": measured.form.tool or None,
        "steps": len(times_s),
        "measured_s": measured_s,
        "p10_s": low_s,
        "p90_s": high_s,
        "error": step.iteration_s / measured_s - 1,
        "normal": normal(measured_s, step.interval.low, step.interval.high),
    }


def compared_steps(measured: Sequence[MeasuredSteps], step: Iteration) -> dict[str, Any]:
    """Return the comparison of the last of one or two runs, with that of the one ``before`` it.

    ``change`` is the last time over the first, ``usual_change`` the factor by which two runs of one
    configuration differ, and ``change_normal`` whether it is within that.
    """
    # Published repeats agree with the factor: of 16 pairs in tables of MLPerf, NVIDIA and
    # BigScience 13 differ by less.
    *earlier, last = (compared_step(each, step) for each in measured)
    for before in earlier:
        change = last["measured_s"] / before["measured_s"]
        usual = math.exp(LEAST)
        word = normal(change, 1 / usual, usual)
        last |= {"before": before, "change": change, "usual_change": usual, "change_normal": word}
    return last


def carried_over(compared: Mapping[str, Any], there: Iteration, here: Iteration) -> dict[str, Any]:
    """Return the time of a step here that a measured one there stands for, with its 80 % ends [s].

    Two steps on chips of one kind share most of their errors, so that the end of the interval is
    that of a ratio of two such predictions; elsewhere both are as uncertain as alone.
    """
    value = compared["measured_s"] * here.iteration_s / there.iteration_s
    if there.cluster.measured_chip == here.cluster.measured_chip:
        then, now = (training_features(s.model, s.plan, s.cluster) for s in (there, here))
        half = margin(then, now)
        low, high = (value * math.exp(sign * half) for sign in (-1, 1))
    else:
        alone = ((s.interval.low, s.iteration_s, s.interval.high) for s in (here, there))
        least, ratio, most = ratio_ends(*alone)
        low, high = value * least / ratio, value * most / ratio
    return {"measured_on": there.joined.name, "iteration_s": value, "low": low, "high": high}


def verdict(compared: pd.DataFrame, *, crosses: bool) -> str:
    """Return a sentence on whether measured times are normal, and where to look if they are not."""
    # One machine in ten is slower than the end of its interval.
    measured = compared[compared.normal.notna()]
    slower, faster = (measured[measured.normal == word] for word in (SLOWER, FASTER))
    if slower.empty and faster.empty:
        return f"All {len(measured)} times are usual for such machines (80 % intervals)."
    if slower.empty:
        return (
            f"{len(faster)} of {len(measured)} times are shorter than nine of ten such machines "
            "take. Check that machine, ranks and operation are those that were measured."
        )
    by_bandwidth = slower.lower_bound_s > BY_BANDWIDTH * slower.time_s
    where = "cables, adapters and routes between servers" if crosses else "links and their lanes"
    looks = [
        f"{_sizes(measured, slower[which])} look at {cause}."
        for which, cause in (
            (~by_bandwidth, "what sets latency: the host, launches and the algorithm"),
            (by_bandwidth, f"what sets bandwidth: {where}"),
        )
        if which.any()
    ]
    counted = f"{len(slower)} of {len(measured)} times are longer"
    if len(measured) == 1:
        counted = "The time is longer"
    return " ".join([f"{counted} than nine of ten such machines take.", *looks])


def _sizes(measured: pd.DataFrame, slower: pd.DataFrame) -> str:
    """Name sizes that are slower: as a range where all measured ones between its ends are."""
    ends = [format_bytes(int(size)) for size in (slower.size_bytes.min(), slower.size_bytes.max())]
    between = measured.size_bytes.between(slower.size_bytes.min(), slower.size_bytes.max())
    if len(slower) > 2 and between.sum() == len(slower):
        return f"From {ends[0]} to {ends[1]}"
    return f"At {', '.join(format_bytes(int(size)) for size in slower.size_bytes)}"


MIXED_NODES = "nic_bandwidth=research"
"""Variant that rows state whose cluster mixed healthy and slow nodes."""
SEPARATE_KERNELS = "unfused"  # attention of frameworks before fused kernels, as plans name it
MIXED_ABOVE_CHIPS = 128
"""Chips above which such a cluster's runs met a mixture of healthy and slow nodes."""

FIRST, LATER = (FIRST_TOKEN, FIRST_TOKEN_EXPERTS), (SERVING, SERVING_EXPERTS)
"""Kinds of residuals of first and of later tokens: dense models, mixtures of experts."""
PRODUCT = KERNELS[0]

Compared = Mapping[str, Any]  # one row of :func:`compare`


def residuals(tables: Mapping[str, Sequence[Compared]]) -> list[Residual]:
    """Residuals of the compared rows of tables, in their order."""
    # Pipelined and large runs on a cluster that mixed healthy and slow nodes are left out: their
    # residuals say how often a node was slow rather than how far a prediction is off.
    return [residual for name, rows in tables.items() for residual in _of_table(name, rows)]


def _of_table(name: str, rows: Sequence[Compared]) -> Iterator[Residual]:
    for row in rows:
        error = row.get("error")
        if error is None or error <= -1 or is_mixed(row):
            continue
        pairs = [(row, error)]
        first = row.get("error_ttft_s")
        if first is not None and first > -1 and row["quantity"] != "ttft_s":
            pairs.append(({**row, "quantity": "ttft_s"}, float(first)))
        for each, off in pairs:
            prediction = prediction_of(each)
            if prediction is None:
                continue
            residual, features = -math.log1p(off), vars(prediction)
            yield Residual(table=name, group=group_of(row), log_residual=residual, **features)


def group_of(row: Compared) -> str:
    """Machine, and model or operation."""
    subject = row.get("name") or row.get("model") or row.get("collective") or ""
    return f"{row.get('cluster')}|{subject}"


def is_mixed(row: Compared) -> bool:
    """Return whether a run may have met a slow node of a cluster that mixed them with others."""
    if MIXED_NODES not in str(row.get("variant")):
        return False
    return (row.get("pp") or 1) > 1 or (row.get("chips") or 1) > MIXED_ABOVE_CHIPS


def prediction_of(row: Compared, catalogue: Catalogue | None = None) -> Prediction | None:
    """Features of a compared row for its interval; None for memory and other non-times."""
    quantity = row["quantity"]
    chip = _chip(str(row.get("cluster") or row.get("chip") or ""))
    ranks = int(row.get("ranks") or row.get("chips") or 1)
    if quantity == "iteration_s":
        model, machine, plan = question(filled(row).values)
        kind = training_kind(
            experts=bool(row.get("experts")),
            zero=int(row.get("zero") or 0),
            unfused=plan.attention == SEPARATE_KERNELS,
            adapters=plan.lora_rank > 0,
        )
        slow = NEVER
        if MIXED_NODES in str(row.get("variant")):
            kind = RESEARCH
            slow = slowing(ranks, plan.microbatches, pipelined=plan.pp > 1)
        return replace(
            training_features(model, plan, machine),
            **dict[str, Any](kind=kind, chip=chip, ranks=ranks, slow=slow),
            assumed=kernels_assumed(chip, catalogue),
            stated=str(row.get("stated") or ""),
            **_logs_of_ends(row),
        )
    if "collective" in row:
        by_kernels = (row.get("library") or row.get("tool")) in LIBRARIES
        kind = EXCHANGE if by_kernels else collective_kind(int(row["size_bytes"] or 0))
        reach = servers_reach(int(row.get("chips") or 1), str(row.get("group") or ""))
        return Prediction(
            *(kind, chip),
            ranks=ranks,
            tool=_tool(row),
            crosses=_crosses(str(row.get("cluster")), reach),
            **_logs_of_ends(row),
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


def _logs_of_ends(row: Compared) -> dict[str, Any]:
    """Logarithms of both ends of a prediction over the prediction; 0 where there are none."""
    ends = {"below": "predicted_least", "above": "predicted_most"}
    middle = row["predicted"]
    return {side: math.log(float(row.get(end) or middle) / middle) for side, end in ends.items()}


def _tool(row: Compared) -> str:
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
    row: Compared, measured: Residuals, catalogue: Catalogue | None = None
) -> Interval | None:
    """Interval of one compared row's prediction; None where there is no predicted time."""
    predicted = row.get("predicted")
    if not predicted or row["status"] == "unsupported":
        return None
    prediction = prediction_of(row, catalogue)
    if prediction is None:
        return None
    ends = interval(predicted, prediction, measured)
    if row["quantity"] != "tokens_per_s":
        return ends
    return Interval(**ends.scaled(predicted, rate=True), level=ends.level, basis=ends.basis)


def with_intervals(
    rows: Sequence[Compared], measured: Residuals, catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """Rows with the ends of their predictions, None for none; a catalogue says what is measured."""
    complete = []
    for row in rows:
        ends = row_interval(row, measured, catalogue)
        low, high = (ends.low, ends.high) if ends else (None, None)
        complete.append({**row, "low": low, "high": high})
    return complete


def marked(rows: Sequence[Compared]) -> list[dict[str, Any]]:
    """Rows with ``normal``: usual, slower or faster than 80 % intervals; None without one."""
    return [{**row, "normal": _normal(row)} for row in rows]


def _normal(row: Compared) -> str | None:
    if not _is_judged(row):
        return None
    return normal(row["published"], row["low"], row["high"], is_rate=row["quantity"] in RATES)


def _is_judged(row: Compared) -> bool:
    return row.get("low") is not None and row["error"] is not None


RATES = ("tokens_per_s", "goodput", "mtbf_s")  # quantities of which more is better


def coverage(rows: Sequence[Compared]) -> dict[str, float | None]:
    """Share of values inside their intervals, and median of (high − low) / 2 predicted."""
    judged = [row for row in rows if _is_judged(row)]
    if not judged:
        return {"coverage": None, "median_half_width": None}
    inside = [row["low"] <= row["published"] <= row["high"] for row in judged]
    widths = [(row["high"] - row["low"]) / 2 / row["predicted"] for row in judged]
    return {"coverage": float(np.mean(inside)), "median_half_width": float(np.median(widths))}
