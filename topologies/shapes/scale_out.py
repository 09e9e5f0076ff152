"""The scale-out fabric of a cluster: a folded Clos of any number of layers, described by rules."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from topologies.shapes.basic import check_link, check_size
from topologies.support.errors import InputError

LAYERS_KEPT = 64
"""Results of :func:`layers` that are kept: every group of a cluster asks for the same."""
LAYER_NAMES = ("ToR", "leaf", "spine", "campus", "region")
"""Names of the layers, upwards; further layers are numbered."""


class Place(NamedTuple):
    """Building or site that holds a part of a cluster."""

    chips: int
    # Ratio of the bandwidth of all its adapters to that of what leaves it
    oversubscription: Fraction


@dataclass(frozen=True)
class ScaleOut:
    """Rules by which a scale-out fabric is built."""

    name: str  # part of the catalogue, such as ``"efa-v3"``, or a name that the user gave
    # Rate at which one chip can send into the fabric, one direction [B/s]
    bandwidth_bytes_per_s: int
    # Time of a collective step from memory to memory between servers of one top-of-rack group [ps]
    latency_ps: int
    radix: int
    # Rate of one port, one direction [B/s]; a chip with a faster adapter uses several planes
    port_bytes_per_s: int
    # Ratio of downward to upward bandwidth of a top-of-rack switch; 1 is non-blocking
    oversubscription: Fraction = Fraction(1)
    # Time that is added to a step whose path climbs to the first, second, … layer of switches [ps];
    # the last value holds for all layers above
    climb_ps: tuple[int, ...] = (0,)
    # Number of switches of a group over which the adapters of each server are distributed; 1 for a
    # top-of-rack switch
    rails: int = 1
    adapters_per_server: int = 1
    # Places that chips are divided among, such as buildings, from the smallest to the largest. The
    # switches of a cluster with more chips than a place join whole places
    places: tuple[Place, ...] = ()

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
    def narrowest(self) -> Fraction:
        """Largest ratio of the bandwidth below to that above of any layer."""
        return max([self.oversubscription, *(each.oversubscription for each in self.places)])

    @property
    def planes(self) -> int:
        """Number of parallel fabrics over which the adapter of a chip spreads its traffic."""
        return max(1, -(-self.bandwidth_bytes_per_s // self.port_bytes_per_s))

    @property
    def down_ports(self) -> int:
        """Number of ports of a top-of-rack switch that lead down to servers."""
        return int(self.radix * self.oversubscription / (1 + self.oversubscription))


@dataclass(frozen=True)
class Layer:
    """One layer of a folded Clos."""

    name: str
    chips: int
    groups: int  # number of groups of this layer; chip c is below group c // chips
    # Rate from one group to the layer above, all links together, one direction [B/s]; 0 at the top
    up_bytes_per_s: int
    up_links: int  # number of links from one group to the layer above


@lru_cache(maxsize=LAYERS_KEPT)
def layers(scale_out: ScaleOut, chips: int, chips_per_server: int) -> tuple[Layer, ...]:
    """Return the layers of the smallest Clos that joins all chips, from the servers upwards."""
    # A top-of-rack group has as many whole servers as its ports allow; switches above have half
    # their ports each way, those at the top all down. Above, the fabric blocks only behind a place.
    sizes = _group_sizes(scale_out, chips, chips_per_server)
    tiers = []
    for number, size in enumerate(sizes):
        top = number == len(sizes) - 1
        leaving = [place.oversubscription for place in scale_out.places if size >= place.chips]
        over = max([scale_out.oversubscription, *leaving])
        up = Fraction(size * scale_out.bandwidth_bytes_per_s) / over
        tiers.append(
            Layer(
                name=LAYER_NAMES[number] if number < len(LAYER_NAMES) else f"layer {number + 1}",
                chips=size,
                groups=-(-chips // size),
                up_bytes_per_s=0 if top else int(up),
                up_links=0 if top else max(1, round(up / scale_out.port_bytes_per_s)),
            )
        )
    return tuple(tiers)


def _group_sizes(scale_out: ScaleOut, chips: int, chips_per_server: int) -> list[int]:
    """Return the number of chips below one group of each layer, upwards to one with all chips."""
    parts = [place.chips for place in scale_out.places if place.chips < chips]
    sizes = _clos_sizes(scale_out, min(parts, default=chips), chips_per_server)
    if parts:
        sizes.pop()
        for size in (*parts, chips):
            below = sizes[-1] if sizes else chips_per_server
            sizes.append(-(-size // below) * below)
    return sizes


def _clos_sizes(scale_out: ScaleOut, chips: int, chips_per_server: int) -> list[int]:
    """Return the number of chips below one group of each layer of a Clos without places."""
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
