"""Shapes of a scale-up domain: tori, meshes, switches, tiers and Clos, each a few numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from topologies.support.errors import InputError

MAX_CHIPS = 2**24  # most chips of a cluster; arrays of links and routes are in 32-bit integers

AXIS_NAMES = "XYZWVU"  # names of axes, from the fastest to the slowest
MAX_MESH = 2**12  # most chips of a full mesh, whose links grow with the square of its chips

MAX_RATE = 2**53  # largest rate of a link [B/s]: exact both as an integer and as a float


def check_size(what: str, size: int, limit: int = MAX_CHIPS) -> None:
    """Refuse a number below 1 or above a limit; ``what`` names it in the message."""
    if not 1 <= size <= limit:
        raise InputError(f"{what} of {size:,} is not between 1 and {limit:,}")


def check_chips(what: str, sizes: tuple[int, ...]) -> None:
    """Refuse sizes whose product is above the limit of chips."""
    chips = math.prod(sizes)
    if chips > MAX_CHIPS:
        text = "x".join(map(str, sizes))
        raise InputError(
            f"{what} {text} has {chips:,} chips; at most {MAX_CHIPS:,} are possible. "
            "Make it smaller."
        )


def check_link(what: str, bandwidth_bytes_per_s: int, latency_ps: int) -> None:
    """Refuse a link without a positive rate, or with a negative latency."""
    if not 1 <= bandwidth_bytes_per_s <= MAX_RATE:
        raise InputError(
            f"{what}: a bandwidth of {bandwidth_bytes_per_s} B/s is not between 1 and 2^53 B/s"
        )
    if not 0 <= latency_ps < 2**62:
        raise InputError(f"{what}: a latency of {latency_ps} ps is not between 0 and 2^62 ps")


class _Sized:
    """A shape of one size for each of its dimensions, by default of one that holds all chips."""

    size: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Chips along each dimension, slowest first."""
        return (self.size,)

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Tier:
    """One tier of a tiered shape."""

    name: str
    size: int  # number of chips that are joined in one group of this tier
    # Rate at which one chip can send into this tier, one direction [B/s]
    bandwidth_bytes_per_s: int
    latency_ps: int  # latency of one hop, chip to chip or chip to switch [ps]
    # Number of parallel switches in a group's plane; 0 for direct links from chip to chip
    switches: int = 0
    ring: bool = False  # whether the direct links form a ring, rather than join every two chips

    def __post_init__(self) -> None:
        check_size(f"tier {self.name}: a size", self.size)
        check_link(f"tier {self.name}", self.bandwidth_bytes_per_s, self.latency_ps)
        check_link(f"link of tier {self.name}", self.link_bytes_per_s, self.latency_ps)
        if self.switches < 0:
            raise InputError(f"tier {self.name}: {self.switches} switches; at least 0")
        if self.ring and (self.switches or self.size == 2):
            other = f"{self.switches} switches" if self.switches else "2 chips"
            raise InputError(
                f"tier {self.name}: a ring with {other}; a ring joins 3 chips or more without "
                "switches. Leave out ring."
            )

    @property
    def fan(self) -> int:
        """Number of links by which one chip sends into this tier."""
        if self.size == 1:
            return 0
        return 2 if self.ring else self.switches or self.size - 1

    @property
    def link_bytes_per_s(self) -> int:
        """Rate of one of these links, one direction [B/s]."""
        return self.bandwidth_bytes_per_s // max(self.fan, 1)


@dataclass(frozen=True)
class Tiered(_Sized):
    """A product of tiers, slowest first, such as cross-rack × rack × sled of Trn3.

    Along each tier a chip is joined to the chips that share all its other coordinates: by a link to
    each, by a ring, or by a *plane* of parallel switches over which traffic is spread. A message to
    a chip of another plane is forwarded by a chip on the way.

    The number of a chip is ``np.ravel_multi_index(coordinates, sizes)``.
    """

    tiers: tuple[Tier, ...]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise InputError("a tiered shape needs at least one tier")
        check_chips("tiered shape", self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Chips along each tier, slowest first."""
        return tuple(tier.size for tier in self.tiers)

    @property
    def planes(self) -> tuple[int, ...]:
        """Number of planes of switches in each tier; 0 for a tier of direct links."""
        return tuple(
            self.chips // tier.size if tier.switches and tier.size > 1 else 0 for tier in self.tiers
        )

    @property
    def switches(self) -> int:
        """Number of switches in all planes."""
        return sum(
            planes * tier.switches for planes, tier in zip(self.planes, self.tiers, strict=True)
        )


LAYER_NAMES = ("leaf", "spine", "core")


@dataclass(frozen=True)
class Clos(_Sized):
    """Leaf switches above chips, spines above leaves and, if there are several pods, a core above.

    Spine j of each pod has one link to each core switch of group j. Every switch is a node here;
    :mod:`topologies.shapes.scale_out` counts parallel switches as one.
    """

    size: int
    radix: int  # number of ports of every switch
    bandwidth_bytes_per_s: int  # rate of one link, one direction [B/s]
    latency_ps: int
    # Ratio of downward to upward ports of a leaf, at least 1, which is non-blocking
    oversubscription: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        check_size("Clos: a size", self.size)
        check_link("Clos", self.bandwidth_bytes_per_s, self.latency_ps)
        if not 4 <= self.radix <= 2**16 or self.radix % 2:
            raise InputError(f"a radix of {self.radix} is not an even number from 4 to 65,536")
        if not 1 <= self.oversubscription <= self.radix - 1:
            raise InputError(
                f"an oversubscription of {float(self.oversubscription):g} is not between 1 and "
                f"{self.radix - 1}, the ports of a switch but one"
            )
        largest = self.down * self.radix * self.radix // 2
        if self.size > largest:
            raise InputError(
                f"a Clos of {self.size:,} chips needs more than three layers of switches of "
                f"{self.radix} ports; at most {largest:,} chips, or a larger radix"
            )

    @property
    def layers(self) -> int:
        """Number of layers of switches: one, two or three."""
        if self.size <= self.radix:
            return 1
        return 2 if self.size <= self.down * self.radix else 3

    @property
    def down(self) -> int:
        """Number of ports of a leaf that lead to chips, if there is a layer above."""
        return int(self.radix * self.oversubscription / (1 + self.oversubscription))

    @property
    def up(self) -> int:
        """Number of ports of a leaf that lead to spines, which is that of the spines of a pod."""
        return self.radix - self.down

    @property
    def chips_per_leaf(self) -> int:
        """Number of chips below a full leaf."""
        return self.size if self.layers == 1 else self.down

    @property
    def leaves_per_pod(self) -> int:
        """Number of leaves in a pod; without a core all leaves are one pod."""
        return self.radix // 2 if self.layers == 3 else -(-self.size // self.chips_per_leaf)

    @property
    def switches(self) -> tuple[int, ...]:
        """Number of switches in each layer, from the leaves upwards."""
        leaves = -(-self.size // self.chips_per_leaf)
        pods = -(-leaves // self.leaves_per_pod)
        return (leaves, pods * self.up, self.up * self.radix // 2)[: self.layers]


@dataclass(frozen=True)
class Axis:
    """One dimension of a torus or grid."""

    name: str
    # Chips along the axis. A wrapping axis of two has two parallel cables, an axis of one none
    size: int
    bandwidth_bytes_per_s: int  # rate of one cable, one direction [B/s]
    latency_ps: int
    wrap: bool = True  # whether the last chip is joined to the first

    def __post_init__(self) -> None:
        check_size(f"axis {self.name}: a size", self.size)
        check_link(f"axis {self.name}", self.bandwidth_bytes_per_s, self.latency_ps)

    @property
    def cables(self) -> int:
        """Number of cables of one line of chips along this axis."""
        return 0 if self.size == 1 else self.size if self.wrap else self.size - 1


@dataclass(frozen=True)
class Torus(_Sized):
    """A ring, torus or grid of any number of dimensions, each with its own rate."""

    # Axes, slowest first: the number of a chip is ``np.ravel_multi_index(coordinates, sizes)``
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise InputError("a torus needs at least one axis, as torus:4x4")
        check_chips("torus", self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Chips along each axis, slowest first."""
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True)
class FullMesh(_Sized):
    """A shape in which every two chips are joined by a link."""

    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int

    def __post_init__(self) -> None:
        check_size("full mesh: a size", self.size, MAX_MESH)
        check_link("full mesh", self.bandwidth_bytes_per_s, self.latency_ps)


@dataclass(frozen=True)
class Switch(_Sized):
    """A shape whose chips are all on one non-blocking switch, every two of them two hops apart."""

    size: int
    # Rate between a chip and the switch, all cables together, one direction [B/s]
    bandwidth_bytes_per_s: int
    latency_ps: int  # latency of one hop, chip to switch or switch to chip [ps]
    links: int = 1  # number of parallel cables between a chip and the switch

    def __post_init__(self) -> None:
        check_size("switch: a size", self.size)
        check_link("switch", self.bandwidth_bytes_per_s, self.latency_ps)


Shape = Torus | FullMesh | Switch | Tiered | Clos
