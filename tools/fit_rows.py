"""Catalogue rows of the fitted constants of collectives: units, ranges, sources, inheritance."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster_sim.collectives.duration.nccl import CHIP, FABRIC, SWITCH, TREE
from topologies.catalogue.reader import COLUMNS
from topologies.support.files.writing import whole_file

MACHINES = {"a100-80gb": "dgx-a100", "h100": "dgx-h100", "gb200": "gb200-nvl72"}
"""Chips that were measured inside a domain, with their machine."""
FABRICS = {
    "efa-v1": ("p4de.24xlarge", "a100-80gb"),
    "efa-v2": ("p5.48xlarge", "h100"),
    "efa-v4": ("p6-b200.48xlarge", "b200"),
    "infiniband-ndr": ("dgx-h100", "h100"),
}
"""Fabrics that were measured, with their machine and chip."""
LL128 = ("ll128_step", "ll128_efficiency")
SOURCES = {"a100-80gb": "AIC", "h100": "AIC", "gb200": "AIC"}  # NT for all others
HEIRS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("gb200", "h100", LL128, "the release that was measured does not use it there"),
    ("gb200", "b200", SWITCH[:2], "no group was measured that reduces in the switch"),
    ("gb200", "h100", SWITCH[2:], "no group was measured that reduces in the switch"),
    ("b200", "gb200", tuple(name for name in CHIP if name not in LL128), "the same NVLinks"),
    ("b200", "h100", (*LL128, *SWITCH[2:]), "no measurement of its own"),
    ("gb300", "gb200", tuple(name for name in CHIP if name not in LL128), "the same NVLinks"),
    ("gb300", "h100", (*LL128, *SWITCH[2:]), "no measurement of its own"),
    ("gb300", "b200", SWITCH[:2], "the same NVLinks"),
    ("a100-40gb", "a100-80gb", CHIP, "the same NVLinks"),
    ("h200", "h100", (*CHIP, *SWITCH), "the same NVLinks"),
    (
        *("mi300x", "h100", tuple(name for name in CHIP if name.startswith("exchange"))),
        "only all-reduces were measured",
    ),
    ("efa-v3", "efa-v2", (*FABRIC, *TREE), "no measurement of its own"),
    ("infiniband-hdr", "infiniband-ndr", FABRIC, "no measurement of its own"),
    ("infiniband-xdr", "infiniband-ndr", FABRIC, "no measurement of its own"),
)
"""Constants without measurements: heir, part whose fit it takes, names, and the reason."""
MEANS = {
    "launch": "Before the first byte moves, on an idle device",
    "step": "One step of a ring in LL or Simple, of a tree or exchange",
    "ll_efficiency": "Share of the port's rate that LL reaches",
    "ll128_step": "One step of a ring in LL128",
    "ll128_efficiency": "Share of the port's rate that LL128 reaches",
    "simple_step": "One step of a ring in Simple",
    "simple_second_step": "One step of the gathering half of an all-reduce in Simple",
    "efficiency": "Share of the port's rate that long messages reach",
    "slice": "Fixed cost of one slice of a pipeline; filling it takes 2 sqrt(slice x wire time)",
    "copy_rate": "At which a rank moves its own shard",
    "exchange": "Longer start of point-to-point messages in Simple than in LL",
    "exchange_efficiency": "Share of the port's rate that long point-to-point messages reach",
    "exchange_copy_rate": "At which a rank moves its own part beside point-to-point messages",
    "in_switch_efficiency": "Share of the port's rate with reduction in the switch",
    "in_switch_latency": "More than the launch, with reduction in the switch",
    "in_switch_slice": "Fixed cost of one slice of a reduction in the switch",
    "tree_step": "A level beyond the first of a tree in LL128, one way",
    "tree_efficiency": "Share of the port's rate that a tree in LL128 reaches inside a server",
    "message": "One of the messages to other domains that a rank sends at once",
}
WIDEST = 10.0  # largest factor between a constant and the ends of its range
UNITS = {"ratio": 1.0, "us": 1e6, "GB/s": 1e-9}


@dataclass(frozen=True)
class Fitted:
    """Constants of one part with their relative standard errors, by quantity.

    ``reasons`` states the origin of constants that no row determines.
    """

    value: dict[str, float]
    spread: dict[str, float]
    reasons: dict[str, str] = field(default_factory=dict)


def write(
    path: str | Path, chips: Mapping[str, Fitted], fabrics: Mapping[str, Fitted]
) -> list[dict[str, str]]:
    """Write the rows of all fits, and of the parts that inherit from them."""
    fitted = {**chips, **fabrics}
    rows = [_row(name, each, result) for name, result in fitted.items() for each in result.value]
    for heir, source, names, why in HEIRS:
        inherited = f"taken from {source}: {why}"
        rows += [_row(heir, name, fitted[source], inherited) for name in names]
    with whole_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def _row(name: str, quantity: str, fitted: Fitted, inherited: str = "") -> dict[str, str]:
    """Return the row of one constant, with a range of two standard errors, or four if inherited."""
    value, spread = fitted.value[quantity], fitted.spread[quantity]
    inherited = inherited or fitted.reasons.get(quantity, "")
    unit = (
        "ratio" if "efficiency" in quantity else "GB/s" if quantity.endswith("copy_rate") else "us"
    )
    scale = UNITS[unit]
    factor = min(WIDEST, (1 + spread) ** (4 if inherited else 2))
    high = value * factor
    if unit == "ratio":
        high = max(min(1.0, high), value)
    return {
        "part": f"nccl.{name}",
        "quantity": quantity,
        "variant": "",
        "value": f"{value * scale:.4g}",
        "unit": unit,
        "grade": "assumed" if inherited else "derived",
        "source": "A" if inherited else SOURCES.get(name, "NT"),
        "note": f"{MEANS[quantity]}; {inherited or 'tools.fit_collectives'}",
        "low": f"{value / factor * scale:.3g}",
        "high": f"{max(high * scale, value * scale) * 1.0005:.4g}",
    }
