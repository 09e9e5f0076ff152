"""Power and price of a chip in the fleet, from the catalogue's row of its machine."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, catalogue
from topologies.clusters.cluster import Cluster

UNIT_OF = {"rainier": "trn2-ultraserver"}


@dataclass(frozen=True)
class Economics:
    """What a chip draws and costs.

    Attributes
    ----------
    busy_w, idle_w : float
        Draw of one chip with its share of host, network and fans [W].
    pue : float
        Power of the site over that of the machines.
    usd_per_chip_s : float
        Price; 0 where none is known [USD/s].
    carbon_kg_per_j : float
        Emission of the grid; 0 where it is not given [kg/J].
    """

    busy_w: float
    idle_w: float
    pue: float = 1.0
    usd_per_chip_s: float = 0.0
    carbon_kg_per_j: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster, *, carbon_g_per_kwh: float = 0.0) -> Economics:
        """Read a cluster's machine; where it has no power of its own, the chips' alone counts."""
        book: Catalogue = cluster.catalogue or catalogue()
        stem = cluster.name.partition(":")[0]
        machine = UNIT_OF.get(stem, stem)
        chips = cluster.chips_per_domain
        tdp = book.value(cluster.chip, "tdp") if book.has(cluster.chip, "tdp") else 0.0
        share = (
            book.value(cluster.chip, "idle_power_share")
            if book.has(cluster.chip, "idle_power_share")
            else 1.0
        )
        busy = book.value(machine, "power") / chips if book.has(machine, "power") else tdp
        price = book.value(machine, "price") / chips if book.has(machine, "price") else 0.0
        return cls(
            busy_w=busy,
            idle_w=max(0.0, busy - tdp * (1 - share)),
            pue=book.value("rainier", "pue"),
            usd_per_chip_s=price,
            carbon_kg_per_j=carbon_g_per_kwh / 1000 / 3.6e6,
        )
