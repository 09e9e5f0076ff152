"""The tiered shape of switched UltraServers: boards, racks of switch planes, and several racks.

Trn3's fabric is a product of tiers. Along each tier a chip is joined to the chips that share all
its other coordinates: by a link to each, by a ring, or by a *plane* of parallel switches over which
traffic is spread. A message to a chip of another plane is forwarded by a chip on the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topologies.errors import InputError
from topologies.shapes.limits import check_chips, check_link, check_size


@dataclass(frozen=True)
class Tier:
    """One tier of a tiered shape.

    ``size``: number of chips that are joined in one group of this tier.
    ``bandwidth_bytes_per_s``: rate at which one chip can send into this tier, one direction [B/s].
    ``latency_ps``: latency of one hop, chip to chip or chip to switch [ps].
    ``switches``: number of parallel switches in a group's plane; 0 for direct links from chip to
        chip.
    ``ring``: whether the direct links form a ring, rather than join every two chips.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    switches: int = 0
    ring: bool = False

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
class Tiered:
    """A product of tiers, slowest first, such as cross-rack × rack × sled.

    The number of a chip is ``np.ravel_multi_index(coordinates, sizes)``.

    Examples
    --------
    >>> racks, rack = Tier("cross-rack", 2, 128, 0), Tier("rack", 18, 512, 0, switches=10)
    >>> gen2 = Tiered((racks, rack, Tier("sled", 4, 512, 0, switches=8)))
    >>> gen2.chips, gen2.switches
    (144, 368)
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
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.sizes)

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
