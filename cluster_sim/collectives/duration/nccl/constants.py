"""Constants of NCCL's measured behaviour on each chip and fabric, read from the catalogue."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.duration.nccl.load import Load, Number
from cluster_sim.collectives.duration.nccl.tuner import PART, Tuner, tuner
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Switch
from topologies.shapes.scale_out import ScaleOut

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
STEPS = ("step", "ll128_step", "simple_step", "simple_second_step", "in_switch_latency")
"""Constants of a chip that hold the latency of its links."""
FAR_STEPS = ("step", "ll128_step", "tree_step")  # constants of a fabric that hold its latency
HOPS = 2  # links between two chips of a switch
BESIDE = ("nccl-beside", "efficiency")
"""Catalogue part and quantity of the share of its adapter's rate that a rank of a small group keeps
while other groups of its server use theirs."""
TREE = ("tree_step", "tree_efficiency")
"""Constants of a fabric whose network plugin picks trees in protocol LL128."""


@dataclass(frozen=True)
class Nccl:
    """Constants of one chip on one machine, by the names of ``CHIP``, ``SWITCH``, ``FABRIC``, …"""

    port: float  # rate of a chip's NVLinks, one direction [B/s]
    adapter: float  # rate of its network adapter, one direction [B/s]
    chip: Mapping[str, float]
    fabric: Mapping[str, float]  # empty where there is none
    tuner: Tuner  # NCCL's own estimates for the machine
    # Share of an adapter's rate that a rank of a small group keeps while other groups use theirs.
    beside: float = 1.0

    def far_s(self, load: Load, payload: float = 1.0) -> Number:
        """Time of a rank's bytes over its adapter, of which ``payload`` is data, not flags [s]."""
        share = np.where(np.asarray(load.beside) > 0, self.beside, 1.0)
        rate = self.fabric["efficiency"] * payload * self.adapter * share
        adapter_s: Number = load.outside / rate
        return adapter_s


class Machine(NamedTuple):
    """Facts on which a cluster's constants depend."""

    catalogue: Catalogue
    chip: str
    fabric: str  # empty where the cluster is a single domain
    adapter_bytes_per_s: int  # of a chip, 0 without a fabric
    port_bytes_per_s: int = 0  # of a chip, 0 for the catalogue's
    # Excess of latencies over those of the catalogue, with which the constants were measured.
    later_ps: int = 0
    far_later_ps: int = 0


def has_constants(cluster: Cluster) -> bool:
    """Return whether the catalogue has constants of NCCL that hold on a cluster.

    They were measured on chips around one switch and on fabrics that do not block.
    """
    catalogue, fabric = cluster.catalogue, _fabric(cluster)
    if cluster.plain or catalogue is None or not isinstance(cluster.shape, Switch):
        return False
    if fabric is not None and fabric.oversubscription != 1:
        return False
    parts = catalogue.parts()
    names = (cluster.chip, *(() if fabric is None else (fabric.name,)))
    return all(f"{kind}.{part}" in parts for kind in ("nccl", PART) for part in names)


def constants(cluster: Cluster) -> Nccl:
    """Look up the constants of a covered cluster."""
    return constants_of(machine(cluster))


def machine(cluster: Cluster) -> Machine:
    """Return the facts on which a covered cluster's constants depend."""
    if cluster.catalogue is None or not isinstance(cluster.shape, Switch):
        raise LookupError(f"{cluster.name} has no constants of NCCL")
    return _machine_of(cluster.catalogue, cluster.chip, cluster.shape, _fabric(cluster))


@functools.lru_cache(maxsize=256)
def _machine_of(catalogue: Catalogue, chip: str, shape: Switch, fabric: ScaleOut | None) -> Machine:
    rate = catalogue.integer(chip, "links") * catalogue.integer(chip, "link_bandwidth")
    port = 0 if shape.bandwidth_bytes_per_s == rate else shape.bandwidth_bytes_per_s
    later_ps = shape.latency_ps - catalogue.ps(chip, "link_latency")
    if fabric is None:
        return Machine(catalogue, chip, "", 0, port, later_ps)
    far_later_ps = fabric.latency_ps - catalogue.ps(fabric.name, "step_latency")
    rates = fabric.bandwidth_bytes_per_s, port
    return Machine(catalogue, chip, fabric.name, *rates, later_ps, far_later_ps)


def _fabric(cluster: Cluster) -> ScaleOut | None:
    """Return the fabric between the domains of a cluster; None where there is only one domain."""
    return cluster.scale_out if cluster.domains > 1 else None


@functools.cache
def constants_of(facts: Machine) -> Nccl:
    """Look up the constants of a machine."""
    catalogue, chip, fabric = facts[:3]
    chip_part, fabric_part = f"nccl.{chip}", f"nccl.{fabric}"
    of_chip = (*CHIP, *SWITCH) if catalogue.has(chip_part, SWITCH[0]) else CHIP
    of_fabric: tuple[str, ...] = ()
    if fabric:
        of_fabric = (*FABRIC, *TREE) if catalogue.has(fabric_part, TREE[0]) else FABRIC
    return Nccl(
        port=float(facts.port_bytes_per_s) or catalogue.value(chip, "scale_up_bandwidth"),
        adapter=float(facts.adapter_bytes_per_s),
        chip=_later(catalogue, chip_part, of_chip, STEPS, HOPS * facts.later_ps),
        fabric=_later(catalogue, fabric_part, of_fabric, FAR_STEPS, facts.far_later_ps),
        tuner=tuner(catalogue, chip, fabric, facts.adapter_bytes_per_s),
        beside=catalogue.value(*BESIDE),
    )


def _later(
    catalogue: Catalogue, part: str, names: Sequence[str], steps: Sequence[str], later_ps: int
) -> dict[str, float]:
    """Look up constants of a part, of which some take so much longer, but no less than nothing."""
    values = {name: catalogue.value(part, name) for name in names}
    if later_ps:
        late = {
            name: max(0.0, values[name] + later_ps / PS_PER_S) for name in steps if name in values
        }
        values |= late
    return values
