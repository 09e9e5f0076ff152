"""Fit the constants of NCCL to published measurements, with hold-outs and uncertainty.

``python -m experiments.calibration.collectives [FILE.csv]`` prints what was fitted and how well it
meets rows that were left out, and writes the catalogue rows (``collective_fits.csv``).

Chips first, on groups inside one NVLink domain: launch, step, efficiency, slice, copy rate, and
reduction in the switch. Then fabrics, on groups that span domains, with the chips' constants as
they are: efficiency, step, slice, message. The time is that of :mod:`cluster_sim.collectives.nccl`;
residuals are logarithms, with a soft loss because several tools and releases are mixed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from cluster_sim.collectives.group import Group
from cluster_sim.collectives.nccl import load_of
from experiments.calibration.fit_rows import FABRICS, SWITCHED, FitRow, write
from experiments.validation.rows import Row
from experiments.validation.tables import table
from topologies.machines import cluster

Array = npt.NDArray[np.float64]

CHIP = ("launch", "step", "efficiency", "slice", "copy_rate")
SWITCH = ("in_switch_efficiency", "in_switch_latency")
FABRIC = ("efficiency", "step", "slice", "message")
START = {
    "launch": 7e-6,
    "step": 8e-7,
    "efficiency": 0.85,
    "slice": 4e-6,
    "copy_rate": 8e11,
    "in_switch_efficiency": 0.65,
    "in_switch_latency": 5e-5,
}
FABRIC_START = {"efficiency": 0.85, "step": 1.8e-5, "slice": 2e-5, "message": 5e-6}
SOFT = 0.1
"""Residual from which a row counts less than its square."""
MOST = 0.98
"""Largest efficiency of a port: headers take their part."""
PRIOR = 0.02
"""Weight that keeps a constant without evidence at its start."""


@dataclass(frozen=True, eq=False)
class Loads:
    """Measured rows as arrays: what each asks of the ports, and its time [s]."""

    inside: Array
    outside: Array
    shard: Array
    in_switch: Array
    steps: Array
    far_steps: Array
    messages: Array
    size: Array
    ranks: Array
    port: Array
    adapter: Array
    time_s: Array

    def __len__(self) -> int:
        return len(self.time_s)

    def where(self, keep: npt.NDArray[np.bool_]) -> Loads:
        """Rows that are kept."""
        return Loads(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def loads(rows: Sequence[Row]) -> Loads:
    """Turn rows of a collective table into loads."""
    found: list[list[float]] = []
    for row in rows:
        values: Mapping[str, Any] = row.values
        machine = cluster(values["cluster"])
        domains = -(-values["chips"] // machine.chips_per_domain)
        whole = cluster(f"{values['cluster']}:{domains}")
        group = Group(whole, np.arange(values["chips"]))
        load = load_of(values["collective"], group, values["size_bytes"])
        port = whole.catalogue.value(whole.chip, "scale_up_bandwidth") if whole.catalogue else 1.0
        adapter = whole.scale_out.bandwidth_bytes_per_s if whole.scale_out else 1.0
        asked = (load.inside, load.outside, load.shard, load.in_switch)
        counted = (load.steps, load.far_steps, load.messages, values["size_bytes"], group.ranks)
        found.append([*asked, *counted, port, adapter, values["time_s"]])
    return Loads(*np.array(found, float).T)


def modelled(chip: Mapping[str, float], fabric: Mapping[str, float], rows: Loads) -> Array:
    """Time of each row [s], as :func:`cluster_sim.collectives.nccl.nccl_ps` in floats."""
    wire = rows.inside / (chip["efficiency"] * rows.port)
    near = wire + 2 * np.sqrt(chip["slice"] * wire) + rows.shard / chip["copy_rate"]
    if chip.get("in_switch_efficiency"):
        direct = rows.in_switch / (chip["in_switch_efficiency"] * rows.port)
        direct = np.where(rows.in_switch > 0, direct + chip["in_switch_latency"], np.inf)
        near = np.minimum(near, direct)
    start = chip["launch"] + rows.steps * chip["step"]
    if not fabric:
        return np.asarray(start + near)
    far = np.where(rows.far_steps > 0, rows.outside / (fabric["efficiency"] * rows.adapter), 0.0)
    start = start + rows.far_steps * fabric["step"] + rows.messages * fabric["message"]
    return np.asarray(start + 2 * np.sqrt(fabric["slice"] * far) + np.maximum(near, far))


@dataclass(frozen=True)
class Fitted:
    """Constants with their standard errors, relative."""

    value: dict[str, float]
    spread: dict[str, float]


def fit(rows: Loads, names: Sequence[str], chip: Mapping[str, float], fabric: bool) -> Fitted:
    """Fit the named constants to rows, in logarithms, from the documented start."""
    start = FABRIC_START if fabric else START
    first = np.log([start[name] for name in names])

    def residuals(logs: Array) -> Array:
        own = dict(zip(names, np.exp(logs), strict=True))
        time_s = modelled(chip, own, rows) if fabric else modelled({**chip, **own}, {}, rows)
        return np.concatenate([np.log(time_s / rows.time_s), PRIOR * (logs - first)])

    highest = np.log([MOST if "efficiency" in name else np.inf for name in names])
    best = least_squares(residuals, first, bounds=(-np.inf, highest), loss="soft_l1", f_scale=SOFT)
    freedom = max(1, len(rows) - len(names))
    slope = np.asarray(best.jac, float)
    covariance = np.linalg.pinv(slope.T @ slope) * 2 * best.cost / freedom
    spread = np.sqrt(np.diag(covariance))
    values = dict(zip(names, np.exp(best.x).tolist(), strict=True))
    return Fitted(values, dict(zip(names, spread.tolist(), strict=True)))


def quality(time_s: Array, rows: Loads) -> str:
    """Median and 90th percentile of the absolute errors, small and large messages apart."""
    error = np.abs(time_s / rows.time_s - 1)
    parts = []
    for name, keep in (("< 64 KiB", rows.size < 2**16), (">= 4 MiB", rows.size >= 2**22)):
        if keep.any():
            median, high = np.quantile(error[keep], [0.5, 0.9])
            parts.append(f"{name}: median {median:.1%}, p90 {high:.1%} ({keep.sum()} rows)")
    return "; ".join(parts)


def held_out(rows: Loads, names: Sequence[str]) -> list[str]:
    """Quality on rows that were left out: a number of ranks, an operation, every third size."""
    order = np.unique(rows.size, return_inverse=True)[1]
    folds = {
        "4 ranks left out": rows.ranks == 4,
        "fitted to all-reduce alone": rows.steps == rows.ranks - 1,
        "every third size left out": order % 3 == 1,
    }
    lines = []
    for name, out in folds.items():
        chip = fit(rows.where(~out), names, {}, fabric=False).value
        lines.append(f"  {name}: {quality(modelled(chip, {}, rows.where(out)), rows.where(out))}")
    return lines


def rows_of(*names: str) -> list[Row]:
    """Rows of NCCL itself from shipped tables; other libraries are left out."""
    found = [row for name in names for row in table(name).rows().rows]
    return [row for row in found if "nvshmem" not in row.cells.get("source", "").lower()]


def _of(rows: Sequence[Row], clusters: Sequence[str], *, far: bool) -> Loads:
    def spans(row: Row) -> bool:
        domain = cluster(str(row.values["cluster"])).chips_per_domain
        return int(str(row.values["chips"])) > domain

    return loads([row for row in rows if row.values["cluster"] in clusters and spans(row) == far])


def main(path: str | None) -> None:
    """Fit everything, report, and write the rows if a path is given."""
    aic, others = rows_of("nccl_aic"), rows_of("nccl_tests", "nccl_more")
    chips: dict[str, Fitted] = {}
    for chip, machine in (
        ("a100-80gb", "dgx-a100"),
        ("h100", "dgx-h100"),
        ("gb200", "gb200-nvl72"),
    ):
        rows = _of(aic, [machine], far=False)
        names = (*CHIP, *SWITCH) if chip in SWITCHED else CHIP
        chips[chip] = fit(rows, names, {}, fabric=False)
        _say(chip, chips[chip], quality(modelled(chips[chip].value, {}, rows), rows))
        print("\n".join(held_out(rows, names)))
    rows = _of(others, ["dgx-b200"], far=False)
    switch = fit(rows, SWITCH, chips["gb200"].value, fabric=False)
    b200 = replace(
        switch,
        value={**chips["gb200"].value, **switch.value},
        spread={**chips["gb200"].spread, **switch.spread},
    )
    chips["b200"] = b200
    _say("b200, in the switch", switch, quality(modelled(b200.value, {}, rows), rows))
    fabrics: dict[str, Fitted] = {}
    for fabric, (machines, chip) in FABRICS.items():
        rows = _of(others, machines, far=True)
        fabrics[fabric] = fit(rows, FABRIC, chips[chip].value, fabric=True)
        good = modelled(chips[chip].value, fabrics[fabric].value, rows)
        _say(fabric, fabrics[fabric], quality(good, rows))
    if path:
        made: list[FitRow] = write(path, chips, fabrics)
        print(f"{len(made)} rows written to {path}")


def _say(name: str, fitted: Fitted, how_well: str) -> None:
    shown = ", ".join(
        f"{key} {value:.4g} ± {fitted.spread[key]:.0%}"
        for key, value in fitted.value.items()
        if key in fitted.spread
    )
    print(f"{name}: {shown}\n  {how_well}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
