"""Fit the constants of NCCL to published measurements, with hold-outs and uncertainty.

``python -m experiments.calibration.collectives [FILE.csv]`` prints the fitted constants and their
errors on rows that were left out, and writes the catalogue rows (``collective_fits.csv``).

Chips are fitted first, on groups inside one NVLink domain: launch, the step and rate of each
protocol, slice, copy rate, exchanges, and reduction in the switch. Fabrics follow, on groups that
span domains, with the constants of the chips held fixed. The modelled time is that of
:mod:`cluster_sim.collectives.duration.nccl`. Residuals are logarithms, with a soft loss because
several tools and releases are mixed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl.constants import CHIP, FABRIC, SWITCH, TREE, Nccl
from cluster_sim.collectives.duration.nccl.load import Load, load_of
from cluster_sim.collectives.duration.nccl.times import seconds
from cluster_sim.collectives.duration.nccl.tuner import PROTOCOLS, tuner
from cluster_sim.collectives.group import Group
from experiments.calibration.fit_rows import FABRICS, LL128, MACHINES, FitRow, Fitted, write
from experiments.validation.machines import machines_for
from experiments.validation.recipes import recipe
from experiments.validation.rows import Row
from experiments.validation.tables import table
from experiments.validation.timing_tool import COLLECTIVES, WAITED
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster

SIDES = tuple(field.name for field in fields(Load) if field.name != "way")

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
FABRIC_START = {
    "efficiency": 0.85,
    "step": 1.8e-5,
    "ll128_step": 3e-5,
    "slice": 2e-5,
    "message": 5e-6,
    "tree_step": 6e-5,
    "tree_efficiency": 0.45,
}
TWINS = {"dgx-h100": ("p5.48xlarge",)}
"""Other machines with the same chips in a domain, measured by nccl-tests."""
B200_PRIOR = 1.0
"""Weight of the H100's constants of reduction in the switch in the fit of the B200, whose rows from
4 to 64 MiB scatter by 10 to 40 us, as PyTorch measured them."""
LIKE = {"efa-v4": "efa-v2"}
"""Fabrics with few rows, and the similar fabric whose constants their fit starts from."""
LIKE_PRIOR = 0.15
"""Weight of the similar fabric's constants."""
SOFT = 0.1
"""Residual from which a row counts less than its square."""
MOST = 0.98
"""Largest efficiency of a port, below 1 because of headers."""
STATED_STEP = "NCCL's own 4 us, times 1.6 by which steps inside a server are slower than it states"
PRIOR = 0.02
"""Weight that keeps a constant without evidence at its start."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured rows of one machine: the load of each on the ports, and its time.

    Attributes
    ----------
    loads : tuple of Load
        Loads whose fields are arrays, one for each way (``Load.way``) in which NCCL runs a row.
    size, time_s : float array (rows,)
        Bytes [B] and time [s] of each row, in the order of ``loads``.
    """

    loads: tuple[Load, ...]
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
    waits = recipe(row.values).collectives == WAITED
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
    """Fit constants to measured rows, in logarithms.

    Parameters
    ----------
    rows : Measured
    names : sequence of str
        Constants to fit.
    costs_at_start : Nccl
        Constants from which the fit starts.
    fabric : bool
        Whether the constants are those of the fabric, else those of the chip.
    prior : float
        Weight that draws each constant to its start; a row has weight 1.
    """
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


def quality(time_s: FloatArray, rows: Measured) -> str:
    """Text with median and 90th percentile of the absolute errors, by size of the messages."""
    error = np.abs(time_s / rows.time_s - 1)
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


def held_out(rows: Sequence[Row], names: Sequence[str], start: Nccl) -> list[str]:
    """Lines with the quality on rows that a fit left out.

    Left out are, in turn, a number of ranks, two operations, and every third size.
    """
    sizes = sorted({int(str(row.values["size_bytes"])) for row in rows})
    folds: dict[str, Callable[[Row], bool]] = {
        "4 ranks left out": lambda row: row.values["chips"] == 4,
        "fitted to all-reduce and all-to-all alone": lambda row: (
            row.values["collective"] in ("all-gather", "reduce-scatter")
        ),
        "every third size left out": lambda row: (
            sizes.index(int(str(row.values["size_bytes"]))) % 3 == 1
        ),
    }
    lines = []
    for name, out in folds.items():
        values = fit(measured([row for row in rows if not out(row)]), names, start).value
        unseen = measured([row for row in rows if out(row)])
        lines.append(f"  {name}: {quality(modelled(with_fitted(start, values), unseen), unseen)}")
    return lines


def rows_of(*names: str) -> list[Row]:
    """Rows of NCCL itself from shipped tables; other libraries are left out."""
    listed = [row for name in names for row in table(name).rows().rows]
    return [row for row in listed if "nvshmem" not in row.cells.get("source", "").lower()]


def of(rows: Sequence[Row], machines: Sequence[str], *, far: bool) -> list[Row]:
    """Rows of some machines, either over several domains or inside one."""

    def spans(row: Row) -> bool:
        domain = cluster(str(row.values["cluster"])).chips_per_domain
        return int(str(row.values["chips"])) > domain

    return [row for row in rows if row.values["cluster"] in machines and spans(row) == far]


def start_of(machine: str) -> Nccl:
    """Rates and tuner of a machine of two domains, with the constants that fits start from."""
    two = cluster(f"{machine}:2")
    fabric = two.scale_out
    if two.catalogue is None or fabric is None:
        raise LookupError(f"{machine} has no catalogue or no fabric")
    rate = fabric.bandwidth_bytes_per_s
    return Nccl(
        port=two.catalogue.value(two.chip, "scale_up_bandwidth"),
        adapter=float(rate),
        chip={name: START[name] for name in CHIP},
        fabric=FABRIC_START,
        tuner=tuner(two.catalogue, two.chip, fabric.name, rate),
    )


def fit_chips(aic: Sequence[Row], others: Sequence[Row]) -> dict[str, Fitted]:
    """Fit the constants of the chips, on groups inside one domain, and print their quality."""
    chips: dict[str, Fitted] = {}
    for chip, machine in MACHINES.items():
        more = of(others, TWINS.get(machine, ()), far=False)
        rows, start = measured([*of(aic, [machine], far=False), *more]), start_of(machine)
        chips[chip] = result = fit(rows, shown(chip), start)
        _say(chip, result, quality(modelled(with_fitted(start, result.value), rows), rows))
    rows = measured(of(others, ["dgx-b200"], far=False))
    like = chips["h100"].value
    start = with_fitted(start_of("dgx-b200"), {**like, **chips["gb200"].value})
    slower = chips["gb200"].value["launch"] / like["launch"]
    start = with_fitted(start, {"in_switch_latency": slower * like["in_switch_latency"]})
    chips["b200"] = result = fit(rows, SWITCH[:2], start, prior=B200_PRIOR)
    _say("b200", result, quality(modelled(with_fitted(start, result.value), rows), rows))
    return chips


def shown(chip: str) -> list[str]:
    """Constants that the rows of a chip determine.

    Only the H100's rows show reduction in the switch, and GB200's release did not use LL128.
    """
    names = (*CHIP, *SWITCH) if chip == "h100" else CHIP
    return [name for name in names if chip != "gb200" or name not in LL128]


@dataclass(frozen=True, eq=False)
class FabricRows:
    """Rows of a fabric, and what its fit starts from.

    Attributes
    ----------
    rows : sequence of Row
    start : Nccl
        Constants of its chip, and those of the fabric that the fit starts from.
    names : tuple of str
        Constants that the rows determine.
    weight : float
        Weight of the start; one row weighs 1.
    """

    rows: Sequence[Row]
    start: Nccl
    names: tuple[str, ...]
    weight: float

    def fitted_to(self, rows: Sequence[Row]) -> Fitted:
        """Constants by rows of the fabric."""
        return fit(measured(rows), self.names, self.start, fabric=True, prior=self.weight)

    def quality(self, result: Fitted, rows: Sequence[Row]) -> str:
        """Quality of constants on rows of the fabric."""
        judged = measured(rows)
        costs = with_fitted(self.start, result.value, fabric=True)
        return quality(modelled(costs, judged), judged)


def fabric_rows(fabric: str, others: Sequence[Row], fitted: Mapping[str, Fitted]) -> FabricRows:
    """Rows of a fabric and the start of its fit, from the fits of chips and of fabrics before."""
    machine, chip = FABRICS[fabric]
    rows = of(others, [machine], far=True)
    inherited = {**fitted["h100"].value, **fitted["gb200"].value} if chip == "b200" else {}
    start = with_fitted(start_of(machine), {**inherited, **fitted[chip].value})
    trees = TREE if start.tuner.tree_bytes else ()
    if fabric in LIKE:
        start = with_fitted(start, fitted[LIKE[fabric]].value, fabric=True)
        return FabricRows(rows, start, (*FABRIC, *trees), LIKE_PRIOR)
    rings = any(load.way == "ring" for load in measured(rows).loads)
    names = tuple(name for name in (*FABRIC, *trees) if rings or name != "ll128_step")
    return FabricRows(rows, start, names, PRIOR)


def fit_fabrics(others: Sequence[Row], chips: Mapping[str, Fitted]) -> dict[str, Fitted]:
    """Fit the constants of the fabrics, on groups that span domains, and print their quality.

    The constants of the chips are held fixed. Where no ring over servers was measured, the ratio of
    a step in LL128 to other steps is that of EFA. On InfiniBand, a step in LL128 is the value that
    NCCL states for InfiniBand, times the measured over the stated time of a step inside a server.
    """
    fabrics: dict[str, Fitted] = {}
    for fabric in FABRICS:
        task = fabric_rows(fabric, others, {**chips, **fabrics})
        fabrics[fabric] = result = task.fitted_to(task.rows)
        _say(fabric, result, task.quality(result, task.rows))
    seen = fabrics["efa-v2"]
    longer = seen.value["ll128_step"] / seen.value["step"]
    for fabric, result in fabrics.items():
        if fabric.startswith("infiniband") and "ll128_step" not in result.value:
            machine, chip = FABRICS[fabric]
            stated = start_of(machine).tuner.protocols[PROTOCOLS.index("ll128")]
            slower = chips[chip].value["ll128_step"] / stated.step_s
            result.value["ll128_step"] = slower * stated.far_step_s
            result.spread["ll128_step"] = chips[chip].spread["ll128_step"]
            result.reasons["ll128_step"] = STATED_STEP
        result.value.setdefault("ll128_step", longer * result.value["step"])
        result.spread.setdefault("ll128_step", result.spread["step"] + seen.spread["ll128_step"])
    return fabrics


def fabric_held_out(task: FabricRows) -> list[str]:
    """Quality on rows that were left out: each number of ranks and each operation in turn."""
    lines = []
    for column, unit in (("chips", " ranks"), ("collective", "")):
        values = sorted({str(row.values[column]) for row in task.rows})
        for value in values if len(values) > 1 else ():
            unseen = [row for row in task.rows if str(row.values[column]) == value]
            result = task.fitted_to([row for row in task.rows if row not in unseen])
            lines.append(f"  {value}{unit} left out: {task.quality(result, unseen)}")
    return lines


def main(path: str | None) -> None:
    """Fit all constants, print their quality, and write the rows if a path is given."""
    aic, others = rows_of("nccl_aic"), rows_of("nccl_tests", "nccl_more")
    chips = fit_chips(aic, others)
    fabrics = fit_fabrics(others, chips)
    for chip, machine in MACHINES.items():
        rows = of(aic, [machine], far=False)
        print("\n".join([f"{chip}, held out", *held_out(rows, shown(chip), start_of(machine))]))
    for fabric in ("efa-v2", "infiniband-ndr"):
        task = fabric_rows(fabric, others, {**chips, **fabrics})
        print("\n".join([f"{fabric}, held out", *fabric_held_out(task)]))
    if path:
        written: list[FitRow] = write(path, chips, fabrics)
        print(f"{len(written)} rows written to {path}")


def _say(name: str, fitted: Fitted, met: str) -> None:
    """Print constants and how well they meet their rows."""
    constants = ", ".join(
        f"{key} {value:.4g} ± {fitted.spread[key]:.0%}" for key, value in fitted.value.items()
    )
    print(f"{name}: {constants}\n  {met}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
