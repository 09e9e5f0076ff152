"""Catalogue rows of fitted collective constants: units, ranges, sources, and who inherits."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cluster_sim.files import whole_file

if TYPE_CHECKING:
    from experiments.calibration.collectives import Fitted

SWITCHED = ("h100", "gb200")
"""Chips of which measured groups were reduced in the switch."""
FABRICS = {
    "efa-v1": (["p4de.24xlarge"], "a100-80gb"),
    "efa-v2": (["p5.48xlarge"], "h100"),
    "infiniband-ndr": (["dgx-h100"], "h100"),
}
"""Fabrics that were measured, on which machines, with which chip."""
SOURCES = {"a100-80gb": "AIC", "h100": "AIC", "gb200": "AIC", "b200": "AIC; NT"}
HEIRS = {
    "a100-40gb": ("a100-80gb", "the same NVLinks"),
    "h200": ("h100", "the same NVLinks"),
    "efa-v3": ("efa-v2", "no measurement of its own in the fit"),
    "efa-v4": ("efa-v2", "no measurement of its own in the fit"),
    "infiniband-hdr": ("infiniband-ndr", "no measurement of its own in the fit"),
}
MEANS = {
    "launch": "Before the first byte moves, on an idle device",
    "step": "One step of a ring or tree",
    "efficiency": "Share of the port's rate that long messages reach",
    "slice": "Fixed cost of one slice of a pipeline; filling it takes 2 sqrt(slice x wire time)",
    "copy_rate": "At which a rank moves its own shard",
    "in_switch_efficiency": "Share of the port's rate with reduction in the switch",
    "in_switch_latency": "More than a ring's start, with reduction in the switch",
    "message": "One of the messages to other domains that a rank sends at once",
}
UNITS = {"ratio": 1.0, "us": 1e6, "GB/s": 1e-9}


@dataclass(frozen=True)
class FitRow:
    """One row of a catalogue file."""

    part: str
    quantity: str
    variant: str
    value: str
    unit: str
    grade: str
    source: str
    note: str
    low: str
    high: str


def write(
    path: str | Path, chips: Mapping[str, Fitted], fabrics: Mapping[str, Fitted]
) -> list[FitRow]:
    """Write the rows of all fits and of those that inherit them."""
    fitted = {**chips, **fabrics}
    rows = [row for name, one in fitted.items() for row in _rows(name, one, "")]
    for heir, (source, why) in HEIRS.items():
        if source in fitted:
            rows += _rows(heir, fitted[source], f"taken from {source}: {why}")
    with whole_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([item.name for item in fields(FitRow)])
        writer.writerows(astuple(row) for row in rows)
    return rows


def _rows(name: str, fitted: Fitted, inherited: str) -> list[FitRow]:
    return [
        _row(name, quantity, value, fitted.spread.get(quantity, 0.1), inherited)
        for quantity, value in fitted.value.items()
    ]


def _row(name: str, quantity: str, value: float, spread: float, inherited: str) -> FitRow:
    """One constant; the range is two standard errors, twice that where it is inherited."""
    unit = "ratio" if "efficiency" in quantity else "GB/s" if quantity == "copy_rate" else "us"
    scale = UNITS[unit]
    factor = (1 + spread) ** (4 if inherited else 2)
    high = value * factor
    if unit == "ratio":
        high = max(min(1.0, high), value)
    return FitRow(
        part=f"nccl.{name}",
        quantity=quantity,
        variant="",
        value=f"{value * scale:.4g}",
        unit=unit,
        grade="assumed" if inherited else "derived",
        source="A" if inherited else SOURCES.get(name, "NT"),
        note=f"{MEANS[quantity]}; {inherited or 'experiments.calibration.collectives'}",
        low=f"{value / factor * scale:.3g}",
        high=f"{max(high * scale, value * scale) * 1.0005:.4g}",
    )
