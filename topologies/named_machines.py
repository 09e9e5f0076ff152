"""The named machines: chip, shape and fabric of each, with all numbers from the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topologies.catalogue import Catalogue
from topologies.scale_out import ScaleOut
from topologies.shapes import Axis, Shape, Torus


@dataclass(frozen=True)
class Machine:
    """One scale-up domain that can be bought.

    Attributes
    ----------
    chip : str
        Catalogue part of its chips.
    fabric : str
        Catalogue part of the scale-out fabric that joins several of them.
    shape : function of catalogue, machine and chip
        Makes the shape of the domain.
    """

    chip: str
    fabric: str
    shape: Callable[[Catalogue, str, str], Shape]


def neuron_torus(catalogue: Catalogue, machine: str, chip: str) -> Torus:
    """Rows and columns of chips, and on an UltraServer layers, which thinner Z links join."""
    axes = [("Z", "layers", "z_link_bandwidth"), ("Y", "rows", "link_bandwidth")]
    axes.append(("X", "columns", "link_bandwidth"))
    return Torus(
        tuple(
            Axis(
                name,
                catalogue.integer(machine, count),
                catalogue.integer(chip, rate),
                catalogue.ps(chip, "link_latency"),
            )
            for name, count, rate in axes
            if catalogue.has(machine, count)
        )
    )


MACHINES = {
    "trn2.48xlarge": Machine("trn2", "efa-v3", neuron_torus),
    "trn2-ultraserver": Machine("trn2", "efa-v3", neuron_torus),
}


def chips_per_server(catalogue: Catalogue, machine: str) -> int:
    """Chips that share one host and its network adapters."""
    return catalogue.integer(machine, "chips") // catalogue.integer(machine, "servers")


def fabric_of(catalogue: Catalogue, machine: str) -> ScaleOut:
    """Scale-out fabric that joins machines of this name."""
    chip, fabric = MACHINES[machine].chip, MACHINES[machine].fabric
    climbs = ("same_tor", "same_pod", "same_building", "same_campus")
    return ScaleOut(
        name=fabric,
        bandwidth_bytes_per_s=catalogue.integer(chip, "nic_bandwidth"),
        latency_ps=catalogue.ps(fabric, "step_latency"),
        radix=catalogue.integer(fabric, "radix"),
        port_bytes_per_s=catalogue.integer(fabric, "port_bandwidth"),
        oversubscription=catalogue.entry(fabric, "oversubscription").exact,
        climb_ps=tuple(catalogue.ps(fabric, f"{climb}_latency") for climb in climbs),
        adapters_per_server=catalogue.integer(machine, "nics")
        // catalogue.integer(machine, "servers"),
    )
