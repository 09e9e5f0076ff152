"""Fitted constants that carry over to a framework, and those that do not.

``python -m tools.carry_over`` prints them.

Each constant that was fitted to training steps is fitted once more, alone, to the rows of all
frameworks but one, and the rows of that one are predicted with the result. A constant of a machine
carries over: its value hardly moves, whoever is left out. One that stands for habits of a framework
does not. About four minutes of processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from experiments.validation.comparison import compare_row
from experiments.validation.predictions.training import Steps
from experiments.validation.reading.rows import TRAINING, Row, table
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.arrays import FloatArray
from workloads.kernels.chip_share import KERNELS

TABLES = (
    "megatron_sc21", "megatron_more", "moe_folding", "simumax", "vtrain_multi", "vtrain_single",
    "mlperf", "mlperf_lora", "nemo", "nemo_more", "nemo_experts", "fsdp_more", "torchtitan",
    "mosaic", "megatron_deepspeed",
)  # fmt: skip
"""Steps on NVIDIA's chips; research code, which has constants of its own, is left out."""
CONSTANTS = (
    ("kernels.a100", "gemm_sustained"),
    ("kernels.h100", "gemm_sustained"),
    ("kernels.h100", "gemm_sustained_fp8"),
    ("kernels.b200", "gemm_sustained"),
    ("kernels.b200", "gemm_sustained_fp8"),
    ("kernels.a100", "host_dispatch"),
    ("kernels.h100", "host_dispatch"),
    ("kernels.b200", "host_dispatch"),
    ("training", "expert_issue"),
    ("training", "sharded_start"),
    ("training", "sharded_copy_bytes"),
)
"""Constants that were fitted to steps, by part and quantity."""
FACTORS = (0.7, 1.0, 1.4)
"""Multiples of a constant with which rows are predicted; between them times are interpolated."""
TRIED = np.exp(np.linspace(np.log(FACTORS[0]), np.log(FACTORS[-1]), 141))
"""Multiples of which the best is taken."""
MOST_ROWS = 16  # rows of a table, evenly spread
LEAST_EFFECT = 0.003
"""Change of a logarithm of a time over all factors below which a row says nothing of a constant."""
LEAST_ROWS = 3  # rows of a framework from which it is left out, or fitted to

HEADER = (
    "| constant | framework left out | rows | value by the others | by itself "
    "| error with the shipped value | with that of the others | with its own |"
)

Logs = Mapping[str, FloatArray]
"""ln(predicted / measured) of each framework's rows, by factor: (rows, factors)."""


class LeftOut(NamedTuple):
    """One constant without one framework."""

    framework: str
    rows: int  # rows of the framework that depend on the constant
    factor: float  # multiple of the shipped value that suits the other frameworks
    best: float  # multiple that suits the framework itself
    # shipped_error, error, best_error: median absolute logarithm of the framework's rows with each
    # of the three values
    shipped_error: float
    error: float
    best_error: float


def best_factor(logs: Sequence[FloatArray]) -> float:
    """Multiple of a constant with the least mean absolute error, frameworks weighted alike.

    >>> rows = np.array([[0.3, 0.0, -0.3]])  # right with the shipped value
    >>> round(best_factor([rows]), 3)
    1.0
    """
    errors = np.mean([np.abs(_between(rows, TRIED)).mean(0) for rows in logs], axis=0)
    return float(TRIED[int(np.argmin(errors))])


def without_each(logs: Logs) -> list[LeftOut]:
    """Fit a constant without each framework in turn, and predict that framework."""
    if len(logs) < 2:
        return []
    results = []
    for framework, rows in logs.items():
        others = best_factor([more for name, more in logs.items() if name != framework])
        best = best_factor([rows])
        errors = (float(np.median(np.abs(_between(rows, [at])))) for at in (1.0, others, best))
        results.append(LeftOut(framework, len(rows), others, best, *errors))
    return results


def _between(rows: FloatArray, factors: Sequence[float] | FloatArray) -> FloatArray:
    """Logarithms at any factors, linear in the logarithm between those that were predicted."""
    at = np.log(np.asarray(factors, float))
    return np.array([np.interp(at, np.log(FACTORS), row) for row in rows])


def dependent_logs(part: str, quantity: str, rows: Sequence[tuple[str, Row]]) -> Logs:
    """Predict rows with multiples of a constant; keep those that depend on it."""
    chip = part.partition("kernels.")[2]
    suited = [pair for pair in rows if not chip or family_of(pair[1]) == chip]
    if quantity.startswith("sharded"):
        suited = [pair for pair in suited if pair[1].values["zero"] == 3]
    if quantity.startswith("expert"):
        suited = [pair for pair in suited if pair[1].values.get("experts")]
    catalogues = [scaled(part, quantity, factor) for factor in FACTORS]
    columns = [[_log(row, catalogue) for _, row in suited] for catalogue in catalogues]
    every = np.array(columns).T.reshape(len(suited), len(FACTORS))
    depends = np.ptp(every, axis=1) > LEAST_EFFECT
    names = np.array([name for name, _ in suited])
    of_each = {name: every[depends & (names == name)] for name in dict.fromkeys(names.tolist())}
    return {name: logs for name, logs in of_each.items() if len(logs) >= LEAST_ROWS}


def scaled(part: str, quantity: str, factor: float) -> Catalogue:
    """Return the catalogue with a multiple of a constant, and of all of its alternatives."""
    shipped, exact = shipped_catalogue(), Fraction(factor).limit_denominator(1000)
    if exact == 1:
        return shipped
    return shipped.with_rows(
        row._replace(exact=row.exact * exact, low=None, high=None)
        for row in shipped.variants(part, quantity)
    )


def family_of(row: Row) -> str:
    """Return the family of kernels of a row's chip."""
    machine = cluster(str(row.values["cluster"]))
    return chip_family(machine.chip, machine.catalogue).kernels.removeprefix(KERNELS)


@lru_cache(None)
def _steps(catalogue: Catalogue) -> Steps:
    """Steps that were simulated with a catalogue; those of the shipped one serve all constants."""
    return Steps()


def _log(row: Row, catalogue: Catalogue) -> float:
    """ln(predicted / measured) of a row, NaN where it is not predicted."""
    predict = partial(_steps(catalogue).predict, catalogue=catalogue)
    error = compare_row(TRAINING, predict, row)["error"]
    return float("nan") if error is None else float(np.log1p(error))


def spread_rows(names: Sequence[str] = TABLES) -> Iterator[tuple[str, Row]]:
    """Rows of tables with their frameworks, at most :data:`MOST_ROWS` of each table."""
    for name in names:
        rows = table(name).rows().rows
        step = max(1, len(rows) // MOST_ROWS)
        for row in rows[::step]:
            yield str(row.values["framework"]).partition(":")[0], row


def main(say: Callable[[str], None] = print) -> None:
    """Print each constant without each framework as a table in Markdown."""
    rows = list(spread_rows())
    say(HEADER)
    say("|---|---|---|---|---|---|---|---|")
    for part, quantity in CONSTANTS:
        for result in without_each(dependent_logs(part, quantity, rows)):
            say(
                f"| `{part}.{quantity}` | {result.framework} | {result.rows} "
                f"| × {result.factor:.2f} | × {result.best:.2f} | {100 * result.shipped_error:.1f} "
                f"| {100 * result.error:.1f} | {100 * result.best_error:.1f} |"
            )


if __name__ == "__main__":
    main()
