"""Power and price of a chip, from the catalogue's rows of its machine, and the cost of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from topologies.catalogue.catalogue import Catalogue, chip_family, is_invented
from topologies.catalogue.reader import GRADES, Entry
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.clusters.names import machine as named_machine
from topologies.support.errors import InputError, check_choice
from topologies.support.options import in_words

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
    # Ends of the range of the price in its row, over the price
    price_ends: tuple[float, float] = (1.0, 1.0)
    machine_chips: int = 1  # chips of what is rented as a whole: a machine, of a TPU pod a host

    @classmethod
    def of(cls, cluster: Cluster, *, carbon_g_per_kwh: float = 0.0) -> Economics:
        """Return power and price of a cluster's chips."""
        # A machine without a row of its power counts with the power of its chips alone.
        catalogue = cluster.numbers
        machine, chip = machine_of(cluster), cluster.chip
        chips = cluster.chips_per_domain
        tdp = catalogue.value(chip, "tdp", 0.0)
        share = catalogue.value(chip, "idle_power_share", 1.0)
        busy = catalogue.value(machine, "power") / chips if catalogue.has(machine, "power") else tdp
        kernels = chip_family(chip, catalogue).kernels
        limited_w = tdp * (1 - catalogue.value(kernels, "power_share", 1.0))
        price = catalogue.value(machine, "price", 0.0) / chips
        drawn = (machine, "power") if catalogue.has(machine, "power") else (chip, "tdp")
        return cls(
            busy_w=busy - limited_w,
            idle_w=min(busy - limited_w, max(0.0, busy - tdp * (1 - share))),
            pue=catalogue.value("rainier", "pue"),
            usd_per_chip_s=price,
            carbon_kg_per_j=carbon_g_per_kwh / 1000 / 3.6e6,
            price_basis=_basis(catalogue, machine, "price"),
            power_basis=_basis(catalogue, *drawn),
            batch_discount=catalogue.value("fleet.batch", "discount"),
            price_ends=_price_ends(catalogue, machine),
            machine_chips=catalogue.integer(machine, "rented_chips", chips),
        )


def _price_ends(catalogue: Catalogue, machine: str) -> tuple[float, float]:
    """Ends of the range of a machine's price over the price; 1 where its row has none."""
    if not catalogue.value(machine, "price", 0.0):
        return 1.0, 1.0
    row = catalogue.entry(machine, "price")
    low, high = (row.value if end is None else end for end in (row.low, row.high))
    return low / row.value, high / row.value


def _basis(catalogue: Catalogue, part: str, quantity: str) -> str:
    """Row of the catalogue as text, such as ``trn2.48xlarge price 35.76 USD/h (stated)``."""
    if not catalogue.has(part, quantity):
        return ""
    row = catalogue.entry(part, quantity)
    note = f": {row.note}" if row.note else ""
    return f"{part} {quantity} {row.written} ({row.grade}{note})"


PRICES = {
    "on-demand": "on demand",
    "capacity-block": "by Capacity Block",
    "reserved": "reserved",
    "spot": "spot",
    "owned": "of owning",
}
"""Ways to pay for a machine, the one that compares best first, each in words."""
OWNED = "fleet.owned"  # part of the catalogue with the terms of owning
YEAR_S = 365.25 * 86400


def kind_of_price(catalogue: Catalogue, machine: str) -> str:
    """Return the way to pay that the price of a machine is about; empty if it says none."""
    variant = catalogue.entry(machine, "price").variant
    return variant or catalogue.name(machine, "price_basis", "")


def kind_in_words(kind: str) -> str:
    """Return a way to pay in words.

    >>> kind_in_words("capacity-block"), kind_in_words("")
    ('by Capacity Block', 'of no stated kind')
    """
    return PRICES.get(kind, kind or "of no stated kind")


def compared_machine(catalogue: Catalogue, name: str, price_basis: str = "") -> tuple[str, str]:
    """Return the kind of a machine's price in words, and its chip if all rates of it are assumed.

    ``name``: of a cluster. ``price_basis``: kind of the price in place of the catalogue's.
    """
    cluster = named_machine(name, catalogue=catalogue)
    place, chip = machine_of(cluster), cluster.chip
    kind = price_basis or (kind_of_price(catalogue, place) if catalogue.has(place, "price") else "")
    return kind_in_words(kind), chip if chip and is_invented(chip, catalogue) else ""


def _variant(catalogue: Catalogue, machine: str, kind: str) -> str | None:
    """Return the alternative of a machine's price that is of one kind; None without one."""
    if not catalogue.has(machine, "price"):
        return None
    rows = {row.variant for row in catalogue.variants(machine, "price")}
    default = catalogue.name(machine, "price_basis", "")
    return "" if default == kind else kind if kind in rows else None


def with_prices(catalogue: Catalogue, kind: str, clusters: Iterable[Cluster]) -> Catalogue:
    """Return a catalogue in which machines have prices of one kind; those without are refused."""
    check_choice("--price-basis", kind, PRICES)
    for cluster in clusters:
        machine = machine_of(cluster)
        terms, lacking = _terms(cluster)
        if kind == "owned" and not lacking:
            owned = _owned(machine, cluster.chips_per_domain, terms)
            default = [] if catalogue.has(machine, "price") else [owned._replace(variant="")]
            catalogue = catalogue.with_rows([*default, owned])
        name = _variant(catalogue, machine, kind)
        if name is None:
            offered = [each for each in PRICES if _variant(catalogue, machine, each) is not None]
            offered += [] if lacking else ["owned"]
            price = f"{'such ' if offered else ''}price of {machine}"
            missing = lacking if kind == "owned" else price
            others = f"state {in_words(tuple(offered))}, or " if offered else ""
            raise InputError(
                f"--price-basis {kind}: the catalogue has no {missing}; {others}give a --catalogue "
                "with it."
            )
        catalogue = catalogue.with_variants({f"{machine}.price": name})
    return catalogue


def _terms(cluster: Cluster) -> tuple[list[Entry], str]:
    """Return the terms of owning a machine, and what the catalogue lacks of them, if anything."""
    catalogue, machine, chip = cluster.numbers, machine_of(cluster), cluster.chip
    rows, lacking = [], []
    for part, quantity in (
        (chip, "capital"),
        (machine, "power") if catalogue.has(machine, "power") else (chip, "tdp"),
        ("rainier", "pue"),
        *((OWNED, name) for name in ("life", "interest", "upkeep", "electricity")),
    ):
        row = catalogue.entry(part, quantity) if catalogue.has(part, quantity) else None
        # A chip like another one is bought at a price of its own.
        if row is None or (quantity == "capital" and row.part != chip):
            lacking.append(f"{quantity} of {part}")
        else:
            rows.append(row)
    return rows, " and ".join(lacking)


def _owned(machine: str, chips: int, terms: Sequence[Entry]) -> Entry:
    """Return the price of owning a machine: its capital, staff and electricity at full power."""
    # A machine without a row of its power counts with the power of its chips alone.
    usual = {row.quantity: row.value for row in terms}
    alone = "tdp" in usual
    price = _usd_per_s(usual, chips)
    # Each number at either end of its range, the others as they are; deviations are independent.
    moved = [
        _usd_per_s({**usual, row.quantity: end}, chips) - price
        for row in terms
        for end in (row.low, row.high)
        if end is not None
    ]
    low = price - math.hypot(*(min(each, 0.0) for each in moved))
    high = price + math.hypot(*(max(each, 0.0) for each in moved))
    sources = [*(key for row in terms for key in row.source.split("; ")), "D"]
    return Entry(
        part=machine,
        quantity="price",
        variant="owned",
        unit="USD/s",
        grade=max((row.grade for row in terms), key=GRADES.index),
        source="; ".join(dict.fromkeys(sources)),
        note="of owning, capital, staff and electricity at full power"
        f"{' of the chips alone' * alone}, with the PUE of Rainier ({usual['pue']:g}) and the "
        f"capital of a watt of the site; {low * 3600:.4g} to {high * 3600:.4g}",
        low=low,
        high=high,
        written=f"{price * 3600:.4g} USD/h",
        exact=Fraction(price),
    )


def _usd_per_s(terms: Mapping[str, float], chips: int) -> float:
    """Price of owning: an annuity of the capital, upkeep, and electricity [USD/s]."""
    years, interest = terms["life"] / YEAR_S, terms["interest"]
    paid = interest / (1 - (1 + interest) ** -years) if interest else 1 / years
    a_year = terms["capital"] * (paid + terms["upkeep"])
    watts = terms["power"] if "power" in terms else chips * terms["tdp"]
    return watts * terms["pue"] * (a_year / YEAR_S + terms["electricity"])


def one_kind_of_price(catalogue: Catalogue, machines: Iterable[str]) -> tuple[Catalogue, str]:
    """Return a catalogue in which machines have prices of one kind, and a sentence on it."""
    # Machines without a price are left out. Where no kind of price is known of all, the catalogue
    # is the same and the sentence says so; it is empty where all prices are of one kind already.
    priced = [name for name in machines if catalogue.has(name, "price")]
    kinds = {name: kind_of_price(catalogue, name) for name in priced}
    if len(set(kinds.values())) <= 1:
        return catalogue, ""
    for kind in PRICES:
        others = [name for name in priced if kinds[name] != kind]
        names = {name: _variant(catalogue, name, kind) for name in others}
        if None not in names.values():
            changed = catalogue.with_variants(
                {f"{each}.price": names[each] or "" for each in others}
            )
            listed = "; ".join(_basis(changed, name, "price") for name in priced)
            return changed, f"All prices are {PRICES[kind]}: {listed}."
    listed = ", ".join(f"{name} {kind_in_words(kind)}" for name, kind in kinds.items())
    return catalogue, f"Ratios of prices are in part those of different kinds of price: {listed}."


def bought_s(usd: int, cluster: Cluster, chips: int) -> float:
    """Time for which a sum of money buys chips of a cluster [s]."""
    if not (each := Economics.of(cluster).usd_per_chip_s):
        raise InputError(
            f"budget is {usd:,} USD, and {cluster.name} has no price. State one in --catalogue."
        )
    return usd / (chips * each)


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
    price_ends: tuple[float, float] = (1.0, 1.0)  # ends of the price's range, over the price

    def document(self) -> dict[str, Any]:
        """Return the keys of the command line's JSON."""
        return {name: value for name, value in asdict(self).items() if name != "price_ends"}


def ends_of_prices(costs: Iterable[tuple[float, Economics | StepCost]]) -> tuple[float, float]:
    """Return the ends of a sum of costs over the sum, as prices are low or high together.

    >>> one, other = Economics(750.0, 400.0, price_ends=(0.5, 1.5)), Economics(700.0, 100.0)
    >>> ends_of_prices([(3.0, one), (1.0, other)]), ends_of_prices([])
    ((0.625, 1.375), (1.0, 1.0))
    """
    low = high = whole = 0.0
    for usd, each in costs:
        low, high = low + usd * each.price_ends[0], high + usd * each.price_ends[1]
        whole += usd
    return (low / whole, high / whole) if whole else (1.0, 1.0)


def step_cost(
    cluster: Cluster, chips: int, tokens: int, breakdown_s: Mapping[str, float], used: float = 1.0
) -> StepCost:
    """Return the price and the energy of a step."""
    # A chip draws its full power while it computes, and its idle power in all other parts of the
    # step.
    # ``breakdown_s``: parts of the step, mean over ranks [s]. ``used``: share of ranks with work.
    chip = Economics.of(cluster)
    step_s = sum(breakdown_s.values())
    busy_s = used * sum(breakdown_s.get(part, 0.0) for part in BUSY)
    joules = chips * chip.pue * (busy_s * chip.busy_w + (step_s - busy_s) * chip.idle_w)
    usd = chips * step_s * chip.usd_per_chip_s if chip.usd_per_chip_s else None
    return StepCost(
        cost_usd=usd,
        energy_joules=joules if chip.busy_w else None,
        usd_per_million_tokens=None if usd is None else usd * TOKENS / tokens,
        price_basis=chip.price_basis,
        power_basis=chip.power_basis,
        price_ends=chip.price_ends,
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
        price_ends=ends_of_prices([(each.cost_usd or 0.0, each) for each in parts]),
    )
