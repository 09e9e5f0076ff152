"""The shape of a Clos of individual switches: leaves, spines, and a core above several pods.

The scale-out fabric of large clusters counts parallel switches as one
(:mod:`topologies.shapes.scale_out`). This shape has every switch as a node, for fabrics that are
small enough to be examined link by link.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from topologies.errors import InputError
from topologies.shapes.limits import check_link, check_size

LAYER_NAMES = ("leaf", "spine", "core")
"""Names of the layers of switches, upwards."""


@dataclass(frozen=True)
class Clos:
    """Leaf switches above chips, spines above leaves and, if there are several pods, a core above.

    Every leaf has one link to every spine of its pod, and spine j of each pod one link to each
    core switch of group j.

    Attributes
    ----------
    size : int
        Number of chips.
    radix : int
        Number of ports of every switch.
    bandwidth_bytes_per_s : int
        Rate of one link, one direction [B/s].
    latency_ps : int
        Latency of one hop [ps].
    oversubscription : Fraction
        Ratio of downward to upward ports of a leaf, at least 1, which is non-blocking.

    Examples
    --------
    >>> Clos(16, radix=4, bandwidth_bytes_per_s=10**9, latency_ps=0).switches
    (8, 8, 4)
    """

    size: int
    radix: int
    bandwidth_bytes_per_s: int
    latency_ps: int
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
    def sizes(self) -> tuple[int, ...]:
        """One axis that holds all chips."""
        return (self.size,)

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.size

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
