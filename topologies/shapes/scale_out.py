"""The scale-out fabric of a cluster: a folded Clos of any number of layers, described by its rules.

Servers hang on top-of-rack switches, these on leaf switches, these on spines. Traffic is spread
evenly over all equal paths, so the parallel switches of a group act as one whose links are summed;
:func:`layers` says how many there are and how much one group can send upwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from topologies.errors import InputError
from topologies.shapes.limits import check_link, check_size

LAYER_NAMES = ("ToR", "leaf", "spine", "campus")


@dataclass(frozen=True)
class ScaleOut:
    """Rules of a scale-out fabric.

    Attributes
    ----------
    name : str
        Catalogue part, such as ``"efa-v3"``, or the user's own name.
    bandwidth_bytes_per_s : int
        Rate at which one chip can send into it, one direction [B/s].
    latency_ps : int
        One collective step from memory to memory between servers of one top-of-rack group [ps].
    radix : int
        Ports of one switch.
    port_bytes_per_s : int
        One port, one direction [B/s]; a chip with a faster adapter uses several planes of ports.
    oversubscription : Fraction
        Downward over upward bandwidth of a top-of-rack switch; 1 is non-blocking.
    climb_ps : tuple of int
        Added to a step whose path climbs to the first, second, … layer of switches [ps]; the last
        holds for all layers above.
    rails : int
        Switches of one group that the servers' adapters are dealt to; 1 is top-of-rack.
    adapters_per_server : int
        Network adapters of one server.
    """

    name: str
    bandwidth_bytes_per_s: int
    latency_ps: int
    radix: int
    port_bytes_per_s: int
    oversubscription: Fraction = Fraction(1)
    climb_ps: tuple[int, ...] = (0,)
    rails: int = 1
    adapters_per_server: int = 1

    def __post_init__(self) -> None:
        what = f"scale-out {self.name}"
        check_link(what, self.bandwidth_bytes_per_s, self.latency_ps)
        for climb_ps in self.climb_ps:
            check_link(f"port of {what}", self.port_bytes_per_s, climb_ps)
        check_size(f"{what}: a radix", self.radix, 2**16)
        if self.radix < 4:
            raise InputError(f"{what}: a radix of {self.radix}; a Clos needs at least 4 ports")
        check_size(f"{what}: a number of rails", self.rails, self.radix // 2)
        if not 1 <= self.oversubscription <= self.radix - 1:
            raise InputError(
                f"{what}: an oversubscription of {float(self.oversubscription):g} is not "
                f"between 1 and {self.radix - 1}"
            )

    @property
    def planes(self) -> int:
        """Independent fabrics side by side that one chip's adapter is spread over."""
        return max(1, -(-self.bandwidth_bytes_per_s // self.port_bytes_per_s))

    @property
    def down_ports(self) -> int:
        """Ports of a top-of-rack switch that lead down to servers."""
        return int(self.radix * self.oversubscription / (1 + self.oversubscription))


@dataclass(frozen=True)
class Layer:
    """One layer of a folded Clos.

    Attributes
    ----------
    name : str
        Such as ``"ToR"``.
    chips : int
        Chips below one full group.
    groups : int
        Groups of this layer; chip c hangs below group c // chips.
    up_bytes_per_s : int
        From one group to the layer above, one direction, all links together [B/s]; 0 at the top.
    up_links : int
        The links that this is the sum of.
    """

    name: str
    chips: int
    groups: int
    up_bytes_per_s: int
    up_links: int


def layers(scale_out: ScaleOut, chips: int, chips_per_server: int) -> tuple[Layer, ...]:
    """Return the layers of the smallest Clos that joins all chips, from the servers upwards.

    A top-of-rack group holds whole servers, as many as its ports allow; every switch above gives
    half its ports to the layer below and half to the layer above, the topmost all of them. Above
    the top-of-rack switches the fabric is non-blocking.

    Examples
    --------
    Project Rainier: 100 Gbit/s ports, two planes, switches of 128 ports.

    >>> efa = ScaleOut("efa", 25 * 10**9, 15_000_000, radix=128, port_bytes_per_s=125 * 10**8)
    >>> [(layer.name, layer.chips, layer.groups) for layer in layers(efa, 499_968, 16)]
    [('ToR', 64, 7812), ('leaf', 4096, 123), ('spine', 524288, 1)]
    """
    sizes = _group_sizes(scale_out, chips, chips_per_server)
    tiers = []
    for number, size in enumerate(sizes):
        top = number == len(sizes) - 1
        up = Fraction(size * scale_out.bandwidth_bytes_per_s) / scale_out.oversubscription
        tiers.append(
            Layer(
                name=_layer_name(number),
                chips=size,
                groups=-(-chips // size),
                up_bytes_per_s=0 if top else int(up),
                up_links=0 if top else max(1, round(up / scale_out.port_bytes_per_s)),
            )
        )
    return tuple(tiers)


def _group_sizes(scale_out: ScaleOut, chips: int, chips_per_server: int) -> list[int]:
    """Chips below one group of each layer; the last holds all of them."""
    ports_per_chip = Fraction(
        scale_out.bandwidth_bytes_per_s, scale_out.port_bytes_per_s * scale_out.planes
    )

    def whole_servers(ports: int) -> int:
        below = int(scale_out.rails * ports / ports_per_chip) // chips_per_server
        return max(1, below) * chips_per_server

    if whole_servers(scale_out.radix) >= chips:
        return [whole_servers(scale_out.radix)]
    sizes = [whole_servers(scale_out.down_ports)]
    switches_per_group = scale_out.rails
    while sizes[-1] * (scale_out.radix // switches_per_group) < chips:
        sizes.append(sizes[-1] * max(1, scale_out.radix // 2 // switches_per_group))
        switches_per_group = 1
    return [*sizes, sizes[-1] * (scale_out.radix // switches_per_group)]


def _layer_name(number: int) -> str:
    return LAYER_NAMES[number] if number < len(LAYER_NAMES) else f"layer {number + 1}"
