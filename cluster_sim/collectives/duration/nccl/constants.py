"""Constants of NCCL's measured behaviour on each chip and fabric, read from the catalogue."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.duration.nccl.load import Load, Number
from cluster_sim.collectives.duration.nccl.tuner import PART, Tuner, tuner
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster

CHIP = (
    "launch",
    "step",
    "ll_efficiency",
    "ll128_step",
    "ll128_efficiency",
    "simple_step",
    "simple_second_step",
    "efficiency",
    "slice",
    "copy_rate",
    "exchange",
    "exchange_efficiency",
    "exchange_copy_rate",
)
"""Constants of every chip; durations [s], shares of the port's rate, and a rate [B/s]."""
SWITCH = ("in_switch_efficiency", "in_switch_latency", "in_switch_slice")
"""Constants of a chip whose NVLink switches can reduce (NVLS)."""
FABRIC = ("efficiency", "step", "ll128_step", "slice", "message")
"""Constants of every fabric between domains."""
BESIDE = ("nccl-beside", "efficiency")
"""Catalogue part and quantity of the share of its adapter's rate that a rank of a small group keeps
while other groups of its server use theirs."""
TREE = ("tree_step", "tree_efficiency")
"""Constants of a fabric whose network plugin picks trees in protocol LL128."""


@dataclass(frozen=True)
class Nccl:
    """Constants of one chip on one machine.

    Attributes
    ----------
    port, adapter : float
        Rates of a chip's NVLinks and of its network adapter, one direction [B/s].
    chip, fabric : mapping
        Constants by name, see ``CHIP``, ``SWITCH``, ``FABRIC`` and ``TREE``. The mapping of the
        fabric is empty where there is none.
    tuner : Tuner
        NCCL's own estimates for the machine.
    beside : float
        Share of an adapter's rate that a rank of a small group keeps while the other groups of its
        servers communicate too.
    """

    port: float
    adapter: float
    chip: Mapping[str, float]
    fabric: Mapping[str, float]
    tuner: Tuner
    beside: float = 1.0

    def far_s(self, load: Load, payload: float = 1.0) -> Number:
        """Time of a rank's bytes over its network adapter [s].

        ``payload`` is the share of the sent bytes that is data; the rest are the protocol's flags.
        """
        share = np.where(np.asarray(load.beside) > 0, self.beside, 1.0)
        rate = self.fabric["efficiency"] * payload * self.adapter * share
        adapter_s: Number = load.outside / rate
        return adapter_s


def has_constants(cluster: Cluster) -> bool:
    """Return whether the cluster's catalogue has constants of NCCL for its chip and fabric."""
    catalogue = cluster.catalogue
    if cluster.plain or catalogue is None or not cluster.chip:
        return False
    _, chip, fabric, _ = machine(cluster)
    parts = catalogue.parts()
    return all(
        f"{kind}.{part}" in parts for kind in ("nccl", PART) for part in (chip, fabric) if part
    )


def constants(cluster: Cluster) -> Nccl:
    """Look up the constants of a covered cluster."""
    return constants_of(*machine(cluster))


def machine(cluster: Cluster) -> tuple[Catalogue, str, str, int]:
    """Return the facts on which a cluster's constants depend.

    Returns
    -------
    catalogue : Catalogue
    chip, fabric : str
        Catalogue names; the fabric's is empty where the cluster is a single domain.
    adapter_bytes_per_s : int
        Rate of a chip's network adapter, 0 without a fabric [B/s].
    """
    catalogue, fabric = cluster.catalogue, cluster.scale_out
    if catalogue is None:
        raise LookupError(f"{cluster.name} has no catalogue")
    if fabric is None or cluster.domains == 1:
        return catalogue, cluster.chip, "", 0
    return catalogue, cluster.chip, fabric.name, fabric.bandwidth_bytes_per_s


@functools.cache
def constants_of(catalogue: Catalogue, chip: str, fabric: str, adapter_bytes_per_s: int) -> Nccl:
    """Look up the constants of a machine by what :func:`machine` returns for its cluster."""
    chip_part, fabric_part = f"nccl.{chip}", f"nccl.{fabric}"
    of_chip = (*CHIP, *SWITCH) if catalogue.has(chip_part, SWITCH[0]) else CHIP
    of_fabric: tuple[str, ...] = ()
    if fabric:
        of_fabric = (*FABRIC, *TREE) if catalogue.has(fabric_part, TREE[0]) else FABRIC
    return Nccl(
        port=catalogue.value(chip, "scale_up_bandwidth"),
        adapter=float(adapter_bytes_per_s),
        chip={name: catalogue.value(chip_part, name) for name in of_chip},
        fabric={name: catalogue.value(fabric_part, name) for name in of_fabric},
        tuner=tuner(catalogue, chip, fabric, adapter_bytes_per_s),
        beside=catalogue.value(*BESIDE),
    )
