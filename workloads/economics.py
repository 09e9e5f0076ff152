"""Power and price of a chip, from the catalogue's rows of its machine, and the cost of a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.reader import Entry
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of

BUSY = ("compute", "optimizer")
"""Parts of a step in which a chip draws its full power; in other parts it waits or communicates."""
TOKENS = 10**6  # number of tokens that a price is stated for


@dataclass(frozen=True)
class Economics:
    """Power and price of a chip."""

    # busy_w, idle_w: power of one chip that works and of one that is idle, each with the chip's
    # share of host, network and fans [W]
    busy_w: float
    idle_w: float
    pue: float = 1.0  # power usage effectiveness: power of the site over the power of its machines
    usd_per_chip_s: float = 0.0  # price of a chip [USD/s]; 0 if unknown
    carbon_kg_per_j: float = 0.0  # carbon intensity of the grid [kg/J]; 0 if not stated
    # price_basis, power_basis: rows of the catalogue behind price and power, with their grades;
    # empty without a row
    price_basis: str = ""
    power_basis: str = ""
    # Price at which served tokens are sold, of prompts and outputs alike; 0 if not stated
    usd_per_million_tokens: float = 0.0
    batch_discount: float = 0.0  # share of the price that requests of a batch tier do not pay

    @classmethod
    def of(cls, cluster: Cluster, *, carbon_g_per_kwh: float = 0.0) -> Economics:
        """Return power and price of a cluster's chips."""
        # A machine without a row of its power counts with the power of its chips alone.
        catalogue: Catalogue = cluster.catalogue or shipped_catalogue()
        machine, chip = machine_of(cluster), cluster.chip
        chips = cluster.chips_per_domain
        tdp = catalogue.value(chip, "tdp", 0.0)
        share = catalogue.value(chip, "idle_power_share", 1.0)
        busy = catalogue.value(machine, "power") / chips if catalogue.has(machine, "power") else tdp
        price = catalogue.value(machine, "price", 0.0) / chips
        drawn = (machine, "power") if catalogue.has(machine, "power") else (chip, "tdp")
        return cls(
            busy_w=busy,
            idle_w=max(0.0, busy - tdp * (1 - share)),
            pue=catalogue.value("rainier", "pue"),
            usd_per_chip_s=price,
            carbon_kg_per_j=carbon_g_per_kwh / 1000 / 3.6e6,
            price_basis=_basis(catalogue, machine, "price"),
            power_basis=_basis(catalogue, *drawn),
            batch_discount=catalogue.value("fleet.batch", "discount"),
        )


def _basis(catalogue: Catalogue, part: str, quantity: str) -> str:
    """Row of the catalogue as text, such as ``trn2.48xlarge price 35.76 USD/h (stated)``."""
    if not catalogue.has(part, quantity):
        return ""
    row = catalogue.entry(part, quantity)
    note = f": {row.note}" if row.note else ""
    return f"{part} {quantity} {row.written} ({row.grade}{note})"


KINDS_OF_PRICE = {
    "on demand": r"on.demand",
    "Capacity Block": r"capacity.block",
    "reserved": r"reserved",
    "spot": r"spot",
}
"""Ways to pay for a machine, the one that compares best first, each with what its rows say."""


def kind_of_price(row: Entry) -> str:
    """Return the way to pay that a row of the catalogue is about; empty if it says none."""
    row_text = f"{row.variant} {row.note}"
    kinds = (kind for kind, words in KINDS_OF_PRICE.items() if re.search(words, row_text, re.I))
    return next(kinds, "")


def one_kind_of_price(catalogue: Catalogue, machines: Iterable[str]) -> tuple[Catalogue, str]:
    """Return a catalogue in which machines have prices of one kind, and a sentence on it."""
    # Machines without a price are left out. Where no kind of price is known of all, the catalogue
    # is the same and the sentence says so; it is empty where all prices are of one kind already.
    priced = [name for name in machines if catalogue.has(name, "price")]
    rows = {name: catalogue.entry(name, "price") for name in priced}
    kinds = {name: kind_of_price(row) for name, row in rows.items()}
    if len(set(kinds.values())) <= 1:
        return catalogue, ""
    for kind in KINDS_OF_PRICE:
        others = [name for name in rows if kinds[name] != kind]
        variants = {
            name: row.variant
            for name in others
            for row in catalogue.variants(name, "price")
            if kind_of_price(row) == kind
        }
        if len(variants) == len(others):
            changes = {f"{name}.price": variant for name, variant in variants.items()}
            changed = catalogue.with_variants(changes)
            listed = "; ".join(_basis(changed, name, "price") for name in priced)
            return changed, f"All prices are {_by(kind)}: {listed}."
    listed = ", ".join(f"{name} {_by(kind)}" for name, kind in kinds.items())
    return catalogue, f"Ratios of prices are in part those of different kinds of price: {listed}."


def _by(kind: str) -> str:
    return f"by {kind}" if kind == "Capacity Block" else kind or "of no stated kind"


@dataclass(frozen=True)
class StepCost:
    """Cost of one optimizer step."""

    cost_usd: float | None  # price of the chips for the time of the step [USD]; None if unknown.
    energy_joules: float | None  # energy from the grid [J]; None if the power is unknown.
    # Price of a million trained tokens [USD]; None if unknown.
    usd_per_million_tokens: float | None
    # price_basis, power_basis: rows of the catalogue behind price and power
    price_basis: str
    power_basis: str


def step_cost(
    cluster: Cluster, chips: int, tokens: int, breakdown_s: Mapping[str, float]
) -> StepCost:
    """Return the price and the energy of a step."""
    # A chip draws its full power while it computes, and its idle power in all other parts of the
    # step.
    # ``breakdown_s``: parts of the step, mean over ranks [s].
    chip = Economics.of(cluster)
    step_s = sum(breakdown_s.values())
    busy_s = sum(breakdown_s.get(part, 0.0) for part in BUSY)
    joules = chips * chip.pue * (busy_s * chip.busy_w + (step_s - busy_s) * chip.idle_w)
    usd = chips * step_s * chip.usd_per_chip_s if chip.usd_per_chip_s else None
    return StepCost(
        cost_usd=usd,
        energy_joules=joules if chip.busy_w else None,
        usd_per_million_tokens=None if usd is None else usd * TOKENS / tokens,
        price_basis=chip.price_basis,
        power_basis=chip.power_basis,
    )


def sum_of_costs(parts: Sequence[StepCost], tokens: int) -> StepCost:
    """Return the cost of a step whose stages are on several clusters, from the parts of each."""
    if len(parts) == 1:
        return parts[0]
    prices, energies = [each.cost_usd for each in parts], [each.energy_joules for each in parts]
    usd = None if None in prices else sum(filter(None, prices))
    return StepCost(
        cost_usd=usd,
        energy_joules=None if None in energies else sum(filter(None, energies)),
        usd_per_million_tokens=None if usd is None else usd * TOKENS / tokens,
        price_basis=" and ".join(each.price_basis for each in parts),
        power_basis=" and ".join(each.power_basis for each in parts),
    )
