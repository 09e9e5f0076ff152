"""Fit of NCCL's constants to measured rows of one machine, in logarithms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl import Load, Nccl, load_of, seconds
from cluster_sim.collectives.group import Group
from experiments.validation.reading.rows import Row, machines_for
from tools.fit_rows import Fitted
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.support.arrays import FloatArray
from workloads.confidence.answers import COLLECTIVES, WAITED

SIDES = tuple(field.name for field in fields(Load) if field.name != "way")
"""Fields of a load that hold numbers, which are arrays in the loads of many rows."""
START = {
    "launch": 7e-6,
    "step": 8e-7,
    "ll_efficiency": 0.4,
    "ll128_step": 2e-6,
    "ll128_efficiency": 0.7,
    "simple_step": 4e-6,
    "simple_second_step": 2e-6,
    "efficiency": 0.85,
    "slice": 4e-6,
    "copy_rate": 8e11,
    "exchange": 2e-6,
    "exchange_efficiency": 0.75,
    "exchange_copy_rate": 8e11,
    "in_switch_efficiency": 0.65,
    "in_switch_latency": 2e-5,
    "in_switch_slice": 4e-6,
}
"""Constants of a chip from which its fit starts, in the units of the catalogue."""
FABRIC_START = {
    "efficiency": 0.85,
    "step": 1.8e-5,
    "ll128_step": 3e-5,
    "slice": 2e-5,
    "message": 5e-6,
    "tree_step": 6e-5,
    "tree_efficiency": 0.45,
}
"""Constants of a fabric from which its fit starts."""
SOFT = 0.1  # residual from which a row counts less than its square
MOST = 0.98  # largest efficiency of a port, below 1 because of headers
PRIOR = 0.02  # weight that keeps a constant without evidence at its start


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured rows of one machine: the load of each on the ports, and its time."""

    # Loads whose fields are arrays, one for each way (``Load.way``) in which NCCL runs a row
    loads: tuple[Load, ...]
    # size, time_s: (rows,): bytes [B] and time [s] of each row, in the order of ``loads``
    size: FloatArray
    time_s: FloatArray

    def __len__(self) -> int:
        return len(self.time_s)


def measured(rows: Sequence[Row]) -> Measured:
    """Group rows of a collective table by the way in which NCCL runs them."""
    by_way = sorted(((_load(row), row) for row in rows), key=lambda pair: pair[0].way)
    loads = []
    for way, same in itertools.groupby((load for load, _ in by_way), key=lambda load: load.way):
        listed = list(same)
        columns = [np.array([getattr(load, name) for load in listed], float) for name in SIDES]
        loads.append(Load(way, *columns))
    size = np.concatenate([np.asarray(load.size) for load in loads])
    return Measured(tuple(loads), size, np.array([_nccl_s(row) for _, row in by_way], float))


def _nccl_s(row: Row) -> float:
    """Measured time without the time that PyTorch adds where it waits for each call [s]."""
    waits = row.values.get("tool") == WAITED
    return float(str(row.values["time_s"])) - waits * shipped_catalogue().value(
        COLLECTIVES, "waited"
    )


def _load(row: Row) -> Load:
    """Return the load of a measured collective on the ports."""
    values: Mapping[str, Any] = row.values
    whole = machines_for(values["cluster"], values["chips"])
    group = Group(whole, np.arange(values["chips"]))
    return load_of(CollectiveCall(values["collective"], group, values["size_bytes"]))


def modelled(costs: Nccl, rows: Measured) -> FloatArray:
    """Modelled time of each row [s]; (rows,)."""
    return np.concatenate([np.asarray(seconds(load, costs)) for load in rows.loads])


def fit(
    rows: Measured,
    names: Sequence[str],
    costs_at_start: Nccl,
    *,
    fabric: bool = False,
    prior: float = PRIOR,
) -> Fitted:
    """Fit constants of a chip, or of its fabric, to measured rows, in logarithms."""
    # ``prior``: weight that draws each constant to its start; a row has weight 1.
    start = (
        {**FABRIC_START, **costs_at_start.fabric} if fabric else {**START, **costs_at_start.chip}
    )
    first = np.log([start[name] for name in names])

    def residuals(logs: FloatArray) -> FloatArray:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        costs = with_fitted(costs_at_start, values, fabric=fabric)
        return np.concatenate([np.log(modelled(costs, rows) / rows.time_s), prior * (logs - first)])

    highest = np.log([MOST if "efficiency" in name else np.inf for name in names])
    best = least_squares(residuals, first, bounds=(-np.inf, highest), loss="soft_l1", f_scale=SOFT)
    freedom = max(1, len(rows) - len(names))
    slope = np.asarray(best.jac, float)
    covariance = np.linalg.pinv(slope.T @ slope) * 2 * best.cost / freedom
    spread = np.sqrt(np.diag(covariance))
    values = dict(zip(names, np.exp(best.x).tolist(), strict=True))
    return Fitted(values, dict(zip(names, spread.tolist(), strict=True)))


def with_fitted(start: Nccl, values: Mapping[str, float], *, fabric: bool = False) -> Nccl:
    """Return the constants with some of the fabric, or else of the chip, replaced."""
    if fabric:
        return replace(start, fabric={**start.fabric, **values})
    return replace(start, chip={**start.chip, **values})


def quality(
    start: Nccl, values: Mapping[str, float], rows: Measured, *, fabric: bool = False
) -> str:
    """Text with median and 90th percentile of the absolute errors, by size of the messages."""
    error = np.abs(modelled(with_fitted(start, values, fabric=fabric), rows) / rows.time_s - 1)
    parts = []
    for name, keep in (
        ("< 64 KiB", rows.size < 2**16),
        ("between", (rows.size >= 2**16) & (rows.size < 2**22)),
        (">= 4 MiB", rows.size >= 2**22),
    ):
        if keep.any():
            median, high = np.quantile(error[keep], [0.5, 0.9])
            parts.append(f"{name}: {median:.1%}, p90 {high:.1%} ({keep.sum()} rows)")
    return "; ".join(parts)
