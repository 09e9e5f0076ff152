"""The named machines: chip, shape and fabric of each, with all numbers from the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue
from topologies.shapes.basic import Axis, Shape, Switch, Torus
from topologies.shapes.scale_out import ScaleOut
from topologies.shapes.tiered import Tier, Tiered


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


def neuron_switched(catalogue: Catalogue, machine: str, chip: str) -> Tiered:
    """Boards or sleds, racks of switch planes, and links between equal positions of two racks.

    Every chip of a board stands in another plane of its rack. A message through a switch takes
    the time of a direct hop and of the switch, half of it on either link.
    """
    racks, board = (catalogue.integer(machine, name) for name in ("racks", "board_chips"))
    direct_ps = catalogue.ps(chip, "link_latency")
    switched_ps = (direct_ps + catalogue.ps(chip, "switch_latency")) // 2
    in_rack = catalogue.integer(machine, "chips") // (racks * board)
    on_sled = (
        catalogue.integer(machine, "sled_switches")
        if catalogue.has(machine, "sled_switches")
        else 0
    )
    return Tiered(
        (
            Tier("cross-rack", racks, catalogue.integer(chip, "cross_rack_bandwidth"), direct_ps),
            Tier(
                "rack",
                in_rack,
                catalogue.integer(chip, "backplane_bandwidth"),
                switched_ps,
                catalogue.integer(machine, "switches_per_plane"),
            ),
            Tier(
                "sled" if on_sled else "board",
                board,
                catalogue.integer(chip, "board_bandwidth"),
                switched_ps if on_sled else direct_ps,
                on_sled,
            ),
        )
    )


def nvswitch(catalogue: Catalogue, machine: str, chip: str) -> Switch:
    """All NVLinks of every chip into the NVSwitches, which act as one."""
    links = catalogue.integer(chip, "links")
    return Switch(
        catalogue.integer(machine, "chips"),
        links * catalogue.integer(chip, "link_bandwidth"),
        catalogue.ps(chip, "link_latency"),
        links,
    )


MACHINES = {
    "trn1.32xlarge": Machine("trn1", "efa-v2", neuron_torus),
    "trn2.48xlarge": Machine("trn2", "efa-v3", neuron_torus),
    "trn2-ultraserver": Machine("trn2", "efa-v3", neuron_torus),
    "trn3-gen1": Machine("trn3", "efa-v4", neuron_switched),
    "trn3-gen2": Machine("trn3", "efa-v4", neuron_switched),
    "p4de.24xlarge": Machine("a100-80gb", "efa-v1", nvswitch),
    "p5.48xlarge": Machine("h100", "efa-v2", nvswitch),
    "p5en.48xlarge": Machine("h200", "efa-v3", nvswitch),
    "dgx-a100": Machine("a100-80gb", "infiniband-hdr", nvswitch),
    "dgx-a100-40gb": Machine("a100-40gb", "infiniband-hdr", nvswitch),
    "dgx-h100": Machine("h100", "infiniband-ndr", nvswitch),
    "dgx-h200": Machine("h200", "infiniband-ndr", nvswitch),
    "dgx-b200": Machine("b200", "infiniband-ndr", nvswitch),
    "gb200-nvl72": Machine("gb200", "infiniband-ndr", nvswitch),
}
"""The machines of the command line by name."""


def chips_per_server(catalogue: Catalogue, machine: str) -> int:
    """Chips that share one host and its network adapters."""
    return catalogue.integer(machine, "chips") // catalogue.integer(machine, "servers")


def fabric_of(catalogue: Catalogue, machine: str) -> ScaleOut:
    """Scale-out fabric that joins machines of this name."""
    chip, fabric = MACHINES[machine].chip, MACHINES[machine].fabric
    servers = catalogue.integer(machine, "servers")
    return fabric_from(
        catalogue,
        fabric,
        _adapter_rate(catalogue, machine, chip),
        catalogue.integer(machine, "nics") // servers,
    )


def fabric_from(
    catalogue: Catalogue, fabric: str, bandwidth_bytes_per_s: int, adapters_per_server: int
) -> ScaleOut:
    """Scale-out fabric by the rules of a catalogue part.

    Parameters
    ----------
    catalogue : Catalogue
    fabric : str
        Part, such as ``efa-v3``.
    bandwidth_bytes_per_s : int
        What one chip can send into it [B/s].
    adapters_per_server : int
    """
    nearer = ("same_tor", "same_pod", "same_building", "same_campus")
    climbs = [f"{name}_latency" for name in nearer if catalogue.has(fabric, f"{name}_latency")]
    return ScaleOut(
        name=fabric,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_ps=catalogue.ps(fabric, "step_latency"),
        radix=catalogue.integer(fabric, "radix"),
        port_bytes_per_s=catalogue.integer(fabric, "port_bandwidth"),
        oversubscription=catalogue.entry(fabric, "oversubscription").exact,
        climb_ps=tuple(catalogue.ps(fabric, climb) for climb in climbs) or (0,),
        rails=catalogue.integer(fabric, "rails") if catalogue.has(fabric, "rails") else 1,
        adapters_per_server=adapters_per_server,
    )


def _adapter_rate(catalogue: Catalogue, machine: str, chip: str) -> int:
    """What one chip can send into the scale-out fabric [B/s]."""
    if catalogue.has(chip, "nic_bandwidth"):
        return catalogue.integer(chip, "nic_bandwidth")
    return catalogue.integer(machine, "nic_bandwidth") // catalogue.integer(machine, "chips")
