"""Named machines: the shape and the fabric of each, with all numbers from the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Axis, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.scale_out import ScaleOut
from topologies.support.errors import InputError, check_choice


def torus(catalogue: Catalogue, machine: str, chip: str) -> Torus:
    """Build a torus of rows and columns, on an UltraServer also of layers with slower Z links."""
    thin = "z_link_bandwidth" if catalogue.has(chip, "z_link_bandwidth") else "link_bandwidth"
    axes = [("Z", "layers", thin), ("Y", "rows", "link_bandwidth")]
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


def tiers(catalogue: Catalogue, machine: str, chip: str) -> Tiered:
    """Build the tiers of Trn3: boards or sleds, racks of switch planes, and links between racks."""
    # Chips of a board are in different planes of the rack; links between racks join equal
    # positions. Half of a switch's latency is added on each side of it, so that two hops take as
    # long as a direct hop and the switch.
    racks, board = (catalogue.integer(machine, name) for name in ("racks", "board_chips"))
    direct_ps = catalogue.ps(chip, "link_latency")
    switched_ps = (direct_ps + catalogue.ps(chip, "switch_latency")) // 2
    in_rack = catalogue.integer(machine, "chips") // (racks * board)
    on_sled = catalogue.integer(machine, "sled_switches", 0)
    # A rack of another generation of switches may carry more lanes of a chip.
    backplane = machine if catalogue.has(machine, "backplane_bandwidth") else chip
    return Tiered(
        (
            Tier("cross-rack", racks, catalogue.integer(chip, "cross_rack_bandwidth"), direct_ps),
            Tier(
                "rack",
                in_rack,
                catalogue.integer(backplane, "backplane_bandwidth"),
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


def switch(catalogue: Catalogue, machine: str, chip: str) -> Switch:
    """Build a switch: all NVLinks of every chip lead to NVSwitches, which act as one switch."""
    links = catalogue.integer(chip, "links")
    return Switch(
        catalogue.integer(machine, "chips"),
        links * catalogue.integer(chip, "link_bandwidth"),
        catalogue.ps(chip, "link_latency"),
        links,
    )


def full_mesh(catalogue: Catalogue, machine: str, chip: str) -> FullMesh:
    """Build a full mesh, in which every two chips are joined by a link."""
    return FullMesh(
        catalogue.integer(machine, "chips"),
        catalogue.integer(chip, "link_bandwidth"),
        catalogue.ps(chip, "link_latency"),
    )


UNIT_OF: Mapping[str, str] = {"rainier": "trn2-ultraserver"}
"""Machines of which clusters with special names are made."""


def machine_of(cluster: Cluster) -> str:
    """Return the name of a cluster's machine, which is a catalogue part only if one is named so.

    >>> from topologies.clusters.names import cluster
    >>> machine_of(cluster("rainier")), machine_of(cluster("dgx-h100:4"))
    ('trn2-ultraserver', 'dgx-h100')
    """
    stem = cluster.name.partition(":")[0]
    return UNIT_OF.get(stem, stem)


def host_bytes_per_server(cluster: Cluster, catalogue: Catalogue) -> float | None:
    """Return the host memory of one server of a cluster [B]; None if no row states it."""
    machine = machine_of(cluster)
    if not catalogue.has(machine, "host_bytes"):
        return None
    return catalogue.value(machine, "host_bytes") / catalogue.integer(machine, "servers")


SHAPES: Mapping[str, Callable[[Catalogue, str, str], Shape]] = {
    "torus": torus,
    "tiered": tiers,
    "switch": switch,
    "mesh": full_mesh,
}
"""Builders of shapes, by the word in the ``shape`` row of a machine."""


def machines(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of all machines, the parts that have a row ``chip``."""
    return tuple(dict.fromkeys(row.part for row in catalogue.rows if row.quantity == "chip"))


def machine_shape(catalogue: Catalogue, machine: str) -> Shape:
    """Build the scale-up domain of a machine."""
    word = catalogue.name(machine, "shape")
    check_choice(f"the shape of {machine}", word, SHAPES)
    shape = SHAPES[word](catalogue, machine, catalogue.name(machine, "chip"))
    chips, servers = (catalogue.integer(machine, name) for name in ("chips", "servers"))
    if shape.chips != chips or chips % servers:
        stated = f"{machine} has rows of {chips:,} chips and {servers:,} servers"
        raise InputError(f"{stated}, and its {word} has {shape.chips:,} chips. Correct its rows.")
    return shape


def chips_per_server(catalogue: Catalogue, machine: str) -> int:
    """Return the number of chips in a server, which share its host and network adapters."""
    return catalogue.integer(machine, "chips") // catalogue.integer(machine, "servers")


def machine_fabric(catalogue: Catalogue, machine: str) -> ScaleOut | None:
    """Build the scale-out fabric of a machine; None if its rows name none."""
    if not catalogue.has(machine, "fabric"):
        return None
    return fabric_from(
        catalogue,
        catalogue.name(machine, "fabric"),
        _adapter_bytes_per_s(catalogue, machine, catalogue.name(machine, "chip")),
        catalogue.integer(machine, "nics") // catalogue.integer(machine, "servers"),
    )


def fabric_from(
    catalogue: Catalogue, fabric: str, bandwidth_bytes_per_s: int, adapters_per_server: int
) -> ScaleOut:
    """Build a scale-out fabric from a part of the catalogue."""
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
        rails=catalogue.integer(fabric, "rails", 1),
        adapters_per_server=adapters_per_server,
    )


def _adapter_bytes_per_s(catalogue: Catalogue, machine: str, chip: str) -> int:
    if catalogue.has(machine, "nic_bandwidth_per_chip"):
        return catalogue.integer(machine, "nic_bandwidth_per_chip")
    if catalogue.has(chip, "nic_bandwidth"):
        return catalogue.integer(chip, "nic_bandwidth")
    return catalogue.integer(machine, "nic_bandwidth") // catalogue.integer(machine, "chips")
