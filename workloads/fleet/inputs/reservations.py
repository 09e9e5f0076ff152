"""Units that a fleet reserves for some days, by the rules of EC2 Capacity Blocks for ML.

A block lasts 1 to 14 days, or whole weeks up to 182 days, and ends at 11:30 UTC; from 30 minutes
before its end on its instances are terminated. It begins at most eight weeks after it is bought,
has at most 64 instances, 256 with all others, and is paid in advance as a whole (user guide of EC2,
pages ec2-capacity-blocks and capacity-blocks-using; DescribeCapacityBlockOfferings and
CapacityBlockOffering of its API). A block may begin at another time, as soon as half an hour after
it is bought; here it begins at 11:30 UTC as well, and all are bought when the run begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.support.errors import InputError, shown
from workloads.demand.trace import Demand
from workloads.demand.what_if import PLACE, minute_at
from workloads.economics import PRICES, Economics, kind_in_words, kind_of_price, with_prices

CLOCK = "11:30"
BEFORE_END_S = 1800.0  # time before the end at which instances are terminated [s]
DAY_S = 86_400.0
MOST_DAILY, MOST_WEEKLY = 14, 182  # longest blocks by the day, and by the week [days]
MOST_AHEAD_DAYS = 56
MOST_INSTANCES, MOST_TOGETHER = 64, 256
FORM = "2d+3d=8: eight units from 11:30 UTC of day 2 of the run, for 3 days"
PATTERN = re.compile(r"(\d{1,5}d)\+(\d{1,5})d(?:ays?)?=(?:([\w.@-]+):)?(\d{1,7})")


@dataclass(frozen=True)
class Block:
    """Units of one kind that are there for some days."""

    text: str  # as it was stated
    begin_s: float  # time from the start of the run at which the units come [s]
    length_s: float  # paid time [s]
    units: int
    usd: float = 0.0  # price, paid in advance; 0 if unknown
    basis: str = ""  # kind of price, in words

    @property
    def end_s(self) -> float:
        """Time from the start of the run at which the units are gone [s]."""
        return self.begin_s + self.length_s - BEFORE_END_S

    def note(self, run_s: float) -> str:
        """Return what a reader of the price should know; empty where there is nothing."""
        facts = []
        if self.begin_s + self.length_s > run_s:
            days = f"{self.length_s / DAY_S:g} days, paid in advance"
            facts.append(f"the run ends before it does, and its price is that of all {days}")
        if self.basis != PRICES["capacity-block"]:
            paid = f"{self.basis}, not by Capacity Block" if self.basis else "unknown"
            facts.append(f"the catalogue's price is {paid}")
        return f"reservation {self.text}: {'; '.join(facts)}." if facts else ""

    def document(self, kind: str) -> dict[str, Any]:
        """Return the keys of the command line's JSON."""
        return {
            "kind": kind,
            "units": self.units,
            "begin_h": self.begin_s / 3600,
            "end_h": self.end_s / 3600,
            "paid_h": self.length_s / 3600,
            "cost_usd": self.usd or None,
            "price_basis": self.basis,
        }


def blocks_from(
    texts: Sequence[str], kinds: Mapping[str, Cluster], demand: Demand
) -> dict[str, tuple[Block, ...]]:
    """Read the reservations of each kind, ``kinds`` being clusters by name."""
    blocks: dict[str, list[Block]] = {name: [] for name in kinds}
    together = 0
    for text in texts:
        name, block = _block(text, kinds, demand)
        cluster = kinds[name]
        instances = block.units * cluster.chips_per_domain // cluster.chips_per_server
        together += instances
        what = f"--capacity-block {shown(text)}"
        if instances > MOST_INSTANCES or together > MOST_TOGETHER:
            most = f"{MOST_INSTANCES} in a Capacity Block, {MOST_TOGETHER} in all"
            with_others = f", {together:,} with those before" if together > instances else ""
            raise InputError(
                f"{what}: {instances:,} instances{with_others}; there are at most {most}. Reserve "
                "fewer units."
            )
        for other in blocks[name]:
            if block.begin_s < other.begin_s + other.length_s and (
                other.begin_s < block.begin_s + block.length_s
            ):
                raise InputError(
                    f"{what} overlaps {other.text} of the same kind; join them, or let one begin "
                    f"when the other ends."
                )
        blocks[name].append(_priced(block, cluster))
    ordered = {name: sorted(each, key=lambda block: block.begin_s) for name, each in blocks.items()}
    return {name: tuple(each) for name, each in ordered.items()}


def _block(text: str, kinds: Mapping[str, Cluster], demand: Demand) -> tuple[str, Block]:
    """Return the kind of units and the reservation that a text states."""
    what = f"--capacity-block {shown(text)}"
    match = PATTERN.fullmatch(text.strip())
    if match is None or int(match[4]) < 1:
        raise InputError(f"{what} cannot be read; write {FORM}.")
    name = match[3] or next(iter(kinds))
    if name not in kinds or (not match[3] and len(kinds) > 1):
        listed = ", ".join(f"={each}:{match[4]}" for each in kinds)
        raise InputError(f"{what} names no kind of the fleet; end with {listed}.")
    days = int(match[2])
    lengths = [*range(1, MOST_DAILY + 1), *range(MOST_DAILY + 7, MOST_WEEKLY + 1, 7)]
    if days not in lengths:
        raise InputError(
            f"{what}: a Capacity Block lasts 1 to {MOST_DAILY} days, or whole weeks up to "
            f"{MOST_WEEKLY} days, not {days}; take "
            f"{min(lengths, key=lambda length: abs(length - days))}."
        )
    place = PLACE.fullmatch(f"@{match[1]}{CLOCK}")
    begin_s = minute_at(demand, place, 0, what) * 60.0 if place else 0.0
    if begin_s > MOST_AHEAD_DAYS * DAY_S:
        raise InputError(
            f"{what} begins {begin_s / DAY_S:.4g} days after the run; a Capacity Block is bought "
            f"at most {MOST_AHEAD_DAYS} days ahead. Let it begin earlier."
        )
    return name, Block(text, begin_s, days * DAY_S, int(match[4]))


def _priced(block: Block, cluster: Cluster) -> Block:
    """Return a block with its price: by Capacity Block, or the machine's own."""
    machine = machine_of(cluster)
    try:
        catalogue = with_prices(cluster.numbers, "capacity-block", [cluster])
    except InputError:
        catalogue = cluster.numbers
    price = Economics.of(replace(cluster, catalogue=catalogue)).usd_per_chip_s
    basis = kind_in_words(kind_of_price(catalogue, machine)) if price else ""
    chips = block.units * cluster.chips_per_domain
    return replace(block, usd=price * chips * block.length_s, basis=basis)
