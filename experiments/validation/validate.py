"""Validation of a file or a shipped table: compare the rows, summarise the errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster_sim.processes import process_pool
from cluster_sim.progress import Watch, unwatched
from experiments.validation.comparison import (
    baseline,
    compare,
    compare_row,
    coverage,
    summary,
    told,
    with_intervals,
)
from experiments.validation.predictions import collectives, jobs, kernels, serving, training
from experiments.validation.predictions.training import STATED
from experiments.validation.reading.rows import TRAINING, Kind, Outcome, Row, Rows, read_file, table
from topologies.catalogue.catalogue import Catalogue
from topologies.support import display
from topologies.support.arguments import checked
from workloads.confidence.kinds import BARE, FRAMEWORK, PLAN
from workloads.confidence.residuals import shipped_residuals
from workloads.training.frameworks.conditions import CONDITIONS

if TYPE_CHECKING:
    import pandas as pd


LONG = ("training", "serving")
"""Kinds whose rows take long to predict; rows of all others take a millisecond or two."""
ROWS_OF_A_WORKER = 100
"""Rows for each further process, such that it saves more time than it takes to start."""
AT_ONCE = 16
"""Rows given to a process at once: neighbours in a file share collectives, which are cached."""


@display.by_facts("Validation")
@dataclass(frozen=True)
class Result:
    """Predictions beside one set of measurements, and their errors.

    Attributes
    ----------
    name : str
        Name of the table or file.
    kind : str
        Kind of its rows.
    rows : list of dict
        As :func:`experiments.validation.comparison.compare`.
    summary : dict
        As :func:`experiments.validation.comparison.summary`.
    baseline : dict
        Errors of the constant predictor fitted to the table.
    """

    name: str
    kind: str
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    baseline: Mapping[str, float | None]

    def frame(self) -> pd.DataFrame:
        """Rows as a table: published, predicted, error, status."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def _facts(self) -> dict[str, object]:
        errors = {
            name.replace("_", " "): f"{self.summary[name]:.1%}"
            for name in ("median_abs_error", "p90_abs_error", "bias")
            if self.summary[name] is not None
        }
        return {"table": self.name, "rows": len(self.rows), "ok": self.summary["ok"], **errors}


@checked()
def validate(table_or_file: str | Path, *, workers: int = 1) -> Result:
    """Compare predictions with measurements.

    The intervals of a shipped table come from the residuals of all other tables.

    Parameters
    ----------
    table_or_file : str or path
        Name of a shipped table such as ``"mlperf"``, or a CSV file of your own rows, or JSON of a
        load generator that states model, cluster and degree.
    workers : int, default 1
        Processes at most.

    Returns
    -------
    Result
        ``summary`` with the median and 90th percentile of the errors (predicted over measured
        time, less one), ``frame()`` row by row.

    Raises
    ------
    InputError
        For an unknown table or a file that cannot be read.

    Examples
    --------
    >>> validate("korthikanti_layers").summary["rows"]
    10
    """
    if str(table_or_file).endswith((".csv", ".json", ".jsonl")):
        measured = read_file(table_or_file), Path(table_or_file).name
    else:
        shipped = table(str(table_or_file))
        measured = shipped.rows(), shipped.name
    return validate_each([measured], workers=workers)[0]


def validate_each(
    measured: Sequence[tuple[Rows, str]],
    *,
    watch: Watch = unwatched,
    workers: int = 1,
    catalogue: Catalogue | None = None,
) -> list[Result]:
    """Compare the rows of several tables with their predictions, and give each an interval."""
    # Long tables share their processes, which begin once and remember from one to the next.
    worth = sum(len(rows) for rows, _ in measured if _is_long(rows)) // ROWS_OF_A_WORKER
    count = min(workers, worth)
    with process_pool(count) if count > 1 else nullcontext() as pool:
        return [
            _result(rows, name, pool if _is_long(rows) else None, watch, catalogue)
            for rows, name in measured
        ]


def validate_as_user(
    measured: Sequence[tuple[Rows, str]], **shared: Any
) -> dict[str, list[Result]]:
    """Compare tables of training steps as a user of ``train`` would ask about them, by level."""
    # Rows are stripped to what a user tells at each level; of a long table some are judged.
    steps = [(rows, name) for rows, name in measured if rows.kind is TRAINING]
    at_levels = [(as_told(rows, level), name) for level in LEVELS for rows, name in steps]
    results, count = validate_each(at_levels, **shared), len(steps)
    return {
        level: results[place * count : (place + 1) * count] for place, level in enumerate(LEVELS)
    }


def macro(results: Sequence[Result]) -> dict[str, float]:
    """Return the means over tables of their errors, coverage and width; bias without its sign."""
    judged = [result.summary for result in results if result.summary["median_abs_error"]]
    keys = ("median_abs_error", "p90_abs_error", "bias", "coverage", "median_half_width")
    means = {
        key: sum(abs(summary[key]) for summary in judged) / max(1, len(judged)) for key in keys
    }
    rows = sum(summary["rows"] for summary in judged)
    refused = sum(summary["oversized"] + summary["infeasible"] for summary in judged)
    return {**means, "refused": refused / max(1, rows)}


def _is_long(rows: Rows) -> bool:
    """Return whether the rows of a table are worth handing to several processes."""
    return rows.kind.name in LONG and len(rows) > AT_ONCE


def _result(
    rows: Rows, name: str, pool: Executor | None, watch: Watch, catalogue: Catalogue | None
) -> Result:
    predict = partial(predictor(rows.kind), catalogue=catalogue)
    compared_row = partial(compare_row, rows.kind, predict)
    spread: Any = map if pool is None else partial(pool.map, chunksize=AT_ONCE)
    done = spread(compared_row, rows.rows)
    compared = [row for _, row in zip(watch(rows.rows, name), done, strict=True)]
    residuals = shipped_residuals().without(name)
    with_ends = with_intervals(compared, residuals, catalogue)
    errors = summary(compared) | coverage(with_ends)
    if rows.kind is TRAINING:
        plans = compare(rows, lambda values: training.predict_memory(values, catalogue))
        errors["fits"] = told(plans, unstated="1")
    return Result(name, rows.kind.name, with_ends, errors, baseline(rows, compared))


Predictor = Callable[..., Outcome]  # of values, and of the catalogue by its name


def predictor(kind: Kind) -> Predictor:
    """Return the predictor of a kind of rows, which keeps steps: take a new one for each table."""
    return training.Steps().predict if kind is TRAINING else PREDICTORS[kind.name]


PREDICTORS: Mapping[str, Predictor] = {
    "collective": collectives.predict,
    "job": jobs.predict,
    "kernel": kernels.predict,
    "layer": training.predict_layer,
    "memory": training.predict_memory,
    "serving": serving.predict,
}
"""Predictors of kinds whose rows share no steps."""


LEVELS = (FRAMEWORK, PLAN, BARE)  # levels from what tells most to what tells least
TABLE_ROWS = 30
"""Rows of a table that are judged as a user would see them, evenly spaced over the table."""
ALWAYS = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "microbatch", "global_batch", "seq", "precision"),
    *("lora_rank", "lora_on", "train_only", "optimizer"),
)
"""Columns of a plan that are told at every level: what is trained, by which degrees."""

UNTOLD = (
    *("chunk_tokens", "overlapped", "mixed_chunk", "poll_passes", "gather", "cache_precision"),
    *("memory_share", "graph_tokens", "block_scaled", "routing_skew"),
)
"""Columns that a user hardly states: those of a server, and how even a router is."""


def stripped(values: Mapping[str, Any], level: str) -> dict[str, Any]:
    """Return the cells of a row that a user tells at a level; the others are empty.

    >>> row = {"tp": 8, "recompute": "full", "framework": "megatron-core:graphs", "date": "2024"}
    >>> stripped(row, "framework")
    {'tp': 8, 'recompute': 'full', 'framework': 'megatron-core', 'date': None}
    >>> stripped(row, "bare")
    {'tp': 8, 'recompute': None, 'framework': None, 'date': None}
    >>> stripped({"cluster": "a", "variant": "a.nic_bandwidth=slow;nccl.step=slow"}, "plan")
    {'cluster': 'a', 'variant': 'a.nic_bandwidth=slow'}
    """
    framework = str(values.get("framework") or "").partition(":")[0] or None
    # The power limit of a machine is known to who owns it, as its chips are.
    hidden = {"variant", "source", "name", *CONDITIONS, *UNTOLD} - {"power_limit_w"}
    if "prompt_tokens" in values:  # who serves knows the release of the engine
        hidden.discard("date")
    if level != FRAMEWORK:
        hidden.add("framework")
    if level == BARE:
        hidden |= {*STATED} - {*ALWAYS}
    kept = {**values, "framework": framework} if "framework" in values else dict(values)
    shown = {name: None if name in hidden else value for name, value in kept.items()}
    # So are its adapters: of numbers that a row names, those of its machine are told.
    variants = str(values.get("variant") or "").split(";")
    of_machine = [each for each in variants if each.startswith(f"{values.get('cluster')}.")]
    return {**shown, "variant": ";".join(of_machine)} if of_machine else shown


def as_told(rows: Rows, level: str) -> Rows:
    """Return rows of a table as a user tells them, of training at most :data:`TABLE_ROWS`."""
    most = TABLE_ROWS if rows.kind is TRAINING else len(rows)
    kept = rows.rows[:: max(1, -(-len(rows) // most))]
    return replace(rows, rows=tuple(_as_told(row, level) for row in kept))


def _as_told(row: Row, level: str) -> Row:
    values = stripped(row.values, level)
    # A name stays as a label of the row; a framework stays without its settings.
    shown = {name: "" for name in row.cells if name != "name" and values.get(name, 0) is None}
    stated = {name: str(values[name]) for name in ("framework", "variant") if values.get(name)}
    return replace(row, values=values, cells={**row.cells, **shown, **stated, "stated": level})
