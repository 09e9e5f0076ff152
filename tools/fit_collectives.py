"""Fit the constants of NCCL to published measurements, with hold-outs and uncertainty.

``python -m tools.fit_collectives [FILE.csv]`` prints the fitted constants and their
errors on rows that were left out, and writes the catalogue rows (``collective_fits.csv``).

Chips are fitted first, on groups inside one NVLink domain: launch, the step and rate of each
protocol, slice, copy rate, exchanges, and reduction in the switch. Fabrics follow, on groups that
span domains, with the constants of the chips held fixed. The fit itself is in :mod:`~.nccl_fit`,
its times are those of :mod:`cluster_sim.collectives.duration.nccl`. Residuals are logarithms, with
a soft loss because several tools and releases are mixed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_sim.collectives.duration.nccl import CHIP, FABRIC, PROTOCOLS, SWITCH, TREE, Nccl, tuner
from experiments.validation.reading.rows import Row, table
from tools.fit_rows import FABRICS, LL128, MACHINES, Fitted, write
from tools.nccl_fit import FABRIC_START, PRIOR, START, fit, measured, quality, with_fitted
from topologies.clusters.names import cluster

TWINS = {"dgx-h100": ("p5.48xlarge",)}
"""Other machines with the same chips in a domain, measured by nccl-tests."""
B200_PRIOR = 1.0
"""Weight of the H100's constants of reduction in the switch in the fit of the B200, whose rows from
4 to 64 MiB scatter by 10 to 40 us, as PyTorch measured them."""
IN_ALL_REDUCES = tuple(name for name in CHIP if not name.startswith("exchange"))
"""Constants on which an all-reduce inside a domain depends."""
LIKE = {"efa-v4": "efa-v2"}
"""Fabrics with few rows, and the similar fabric whose constants their fit starts from."""
LIKE_PRIOR = 0.15  # weight of the constants of a similar fabric or chip
STATED_STEP = "NCCL's own 4 us, times 1.6 by which steps inside a server are slower than it states"


@dataclass(frozen=True, eq=False)
class Task:
    """Rows of a chip or of a fabric, and the constants from which its fit starts."""

    rows: Sequence[Row]
    start: Nccl  # constants that the fit starts from, and those that it holds fixed
    names: Sequence[str]  # constants that the rows determine
    weight: float = PRIOR  # weight of the start; one row weighs 1
    fabric: bool = False  # whether the constants are those of a fabric, not of a chip

    def held_out(self, name: str, column: str, values: Iterable[object]) -> str:
        """Return a line with the quality on rows of some values, which a fit left out."""
        texts = {str(value) for value in values}
        unseen = [row for row in self.rows if str(row.values[column]) in texts]
        seen = replace(self, rows=[row for row in self.rows if row not in unseen])
        return f"  {name} left out: {self.quality(seen.fitted(), unseen)}"

    def fitted(self) -> Fitted:
        """Fit the constants to the rows."""
        rows = measured(self.rows)
        return fit(rows, self.names, self.start, fabric=self.fabric, prior=self.weight)

    def quality(self, result: Fitted, rows: Sequence[Row]) -> str:
        """Return the quality of fitted constants on rows."""
        return quality(self.start, result.value, measured(rows), fabric=self.fabric)

    def fitted_and_printed(self, name: str) -> Fitted:
        """Fit the constants to the rows, and print them with their errors."""
        result = self.fitted()
        constants = ", ".join(
            f"{key} {value:.4g} ± {result.spread[key]:.0%}" for key, value in result.value.items()
        )
        print(f"{name}: {constants}\n  {self.quality(result, self.rows)}")
        return result


def chip_held_out(task: Task) -> list[str]:
    """Quality on rows that were left out: a number of ranks, two operations, every third size."""
    sizes = sorted({int(str(row.values["size_bytes"])) for row in task.rows})
    moved = ("all-gather", "reduce-scatter")
    return [
        task.held_out("4 ranks", "chips", [4]),
        task.held_out(" and ".join(moved), "collective", moved),
        task.held_out("every third size", "size_bytes", sizes[1::3]),
    ]


def nccl_rows(*names: str) -> list[Row]:
    """Return the rows of shipped tables that measure NCCL itself, not another library."""
    listed = [row for name in names for row in table(name).rows().rows]
    return [row for row in listed if row.cells.get("tool") != "nvshmem"]


def rows_on(rows: Sequence[Row], machines: Sequence[str], *, far: bool) -> list[Row]:
    """Return the rows of some machines, either over several domains (``far``) or inside one."""

    def spans(row: Row) -> bool:
        domain = cluster(str(row.values["cluster"])).chips_per_domain
        return int(str(row.values["chips"])) > domain

    return [row for row in rows if row.values["cluster"] in machines and spans(row) == far]


def start_for(machine: str) -> Nccl:
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
        more = rows_on(others, TWINS.get(machine, ()), far=False)
        rows = [*rows_on(aic, [machine], far=False), *more]
        task = Task(rows, start_for(machine), determined(chip))
        chips[chip] = task.fitted_and_printed(chip)
    like = chips["h100"].value
    start = with_fitted(start_for("dgx-b200"), {**like, **chips["gb200"].value})
    slower = chips["gb200"].value["launch"] / like["launch"]
    start = with_fitted(start, {"in_switch_latency": slower * like["in_switch_latency"]})
    rows = rows_on(others, ["dgx-b200"], far=False)
    chips["b200"] = Task(rows, start, SWITCH[:2], B200_PRIOR).fitted_and_printed("b200")
    rows = rows_on(nccl_rows("rccl_servers"), ["mi300x-platform"], far=False)
    start = with_fitted(start_for("mi300x-platform"), like)
    task = Task(rows, start, IN_ALL_REDUCES, LIKE_PRIOR)
    chips["mi300x"] = task.fitted_and_printed("mi300x")
    return chips


def determined(chip: str) -> list[str]:
    """Return the constants that the rows of a chip determine.

    Only the H100's rows show reduction in the switch, and GB200's release did not use LL128.
    """
    names = (*CHIP, *SWITCH) if chip == "h100" else CHIP
    return [name for name in names if chip != "gb200" or name not in LL128]


def fabric_task(fabric: str, others: Sequence[Row], fitted: Mapping[str, Fitted]) -> Task:
    """Rows of a fabric and the start of its fit, from the fits of chips and of fabrics before."""
    machine, chip = FABRICS[fabric]
    rows = rows_on(others, [machine], far=True)
    inherited = {**fitted["h100"].value, **fitted["gb200"].value} if chip == "b200" else {}
    start = with_fitted(start_for(machine), {**inherited, **fitted[chip].value})
    trees = TREE if start.tuner.tree_bytes else ()
    if fabric in LIKE:
        start = with_fitted(start, fitted[LIKE[fabric]].value, fabric=True)
        return Task(rows, start, (*FABRIC, *trees), LIKE_PRIOR, fabric=True)
    rings = any(load.way == "ring" for load in measured(rows).loads)
    names = tuple(name for name in (*FABRIC, *trees) if rings or name != "ll128_step")
    return Task(rows, start, names, fabric=True)


def fit_fabrics(others: Sequence[Row], chips: Mapping[str, Fitted]) -> dict[str, Fitted]:
    """Fit the constants of the fabrics, on groups that span domains, and print their quality.

    The constants of the chips are held fixed. Where no ring over servers was measured, the ratio of
    a step in LL128 to other steps is that of EFA. On InfiniBand, a step in LL128 is the value that
    NCCL states for InfiniBand, times the measured over the stated time of a step inside a server.
    """
    fabrics: dict[str, Fitted] = {}
    for fabric in FABRICS:
        task = fabric_task(fabric, others, {**chips, **fabrics})
        fabrics[fabric] = task.fitted_and_printed(fabric)
    seen = fabrics["efa-v2"]
    longer = seen.value["ll128_step"] / seen.value["step"]
    for fabric, result in fabrics.items():
        if fabric.startswith("infiniband") and "ll128_step" not in result.value:
            machine, chip = FABRICS[fabric]
            stated = start_for(machine).tuner.protocols[PROTOCOLS.index("ll128")]
            slower = chips[chip].value["ll128_step"] / stated.step_s
            result.value["ll128_step"] = slower * stated.far_step_s
            result.spread["ll128_step"] = chips[chip].spread["ll128_step"]
            result.reasons["ll128_step"] = STATED_STEP
        result.value.setdefault("ll128_step", longer * result.value["step"])
        result.spread.setdefault("ll128_step", result.spread["step"] + seen.spread["ll128_step"])
    return fabrics


def fabric_held_out(task: Task) -> list[str]:
    """Quality on rows that were left out: each number of ranks and each operation in turn."""
    lines = []
    for column, unit in (("chips", " ranks"), ("collective", "")):
        values = sorted({str(row.values[column]) for row in task.rows})
        if len(values) > 1:
            lines += [task.held_out(f"{value}{unit}", column, [value]) for value in values]
    return lines


def main(path: str | None) -> None:
    """Fit all constants, print their quality, and write the rows if a path is given."""
    aic, others = nccl_rows("nccl_aic"), nccl_rows("nccl_tests", "nccl_more", "nccl_efa_more")
    chips = fit_chips(aic, others)
    fabrics = fit_fabrics(others, chips)
    for chip, machine in MACHINES.items():
        task = Task(rows_on(aic, [machine], far=False), start_for(machine), determined(chip))
        print("\n".join([f"{chip}, held out", *chip_held_out(task)]))
    for fabric in ("efa-v2", "infiniband-ndr"):
        task = fabric_task(fabric, others, {**chips, **fabrics})
        print("\n".join([f"{fabric}, held out", *fabric_held_out(task)]))
    if path:
        print(f"{len(write(path, chips, fabrics))} rows written to {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
