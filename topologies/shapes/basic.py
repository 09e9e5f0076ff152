"""Shapes of a scale-up domain: tori, full meshes and switches, each described by a few numbers.

A shape states the number of chips and how they are joined; :mod:`topologies.shapes.links` turns it
into arrays of directed links and :mod:`topologies.routing.domain` into routes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topologies.errors import InputError
from topologies.shapes.clos import Clos
from topologies.shapes.limits import MAX_MESH, check_chips, check_link, check_size
from topologies.shapes.tiered import Tiered


@dataclass(frozen=True)
class Axis:
    """One dimension of a torus or grid.

    ``size``: chips along the axis. A wrapping axis of two has two parallel cables, an axis of one
        none.
    ``bandwidth_bytes_per_s``: rate of one cable, one direction [B/s].
    ``wrap``: whether the last chip is joined to the first.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    wrap: bool = True

    def __post_init__(self) -> None:
        check_size(f"axis {self.name}: a size", self.size)
        check_link(f"axis {self.name}", self.bandwidth_bytes_per_s, self.latency_ps)

    @property
    def cables(self) -> int:
        """Number of cables of one line of chips along this axis."""
        return 0 if self.size == 1 else self.size if self.wrap else self.size - 1


@dataclass(frozen=True)
class Torus:
    """A ring, torus or grid of any number of dimensions, each with its own rate.

    ``axes``: axes, slowest first: the number of a chip is ``np.ravel_multi_index(coordinates,
        sizes)``.

    >>> axes = tuple(Axis(name, 4, 128 * 10**9, 300_000) for name in "YX")
    >>> Torus(axes).chips
    16
    """

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise InputError("a torus needs at least one axis, as torus:4x4")
        check_chips("torus", self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Chips along each axis, slowest first."""
        return tuple(axis.size for axis in self.axes)

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class FullMesh:
    """A shape in which every two chips are joined by a link."""

    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int

    def __post_init__(self) -> None:
        check_size("full mesh: a size", self.size, MAX_MESH)
        check_link("full mesh", self.bandwidth_bytes_per_s, self.latency_ps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """One axis that holds all chips."""
        return (self.size,)

    @property
    def chips(self) -> int:
        """Chips in all."""
        return self.size


@dataclass(frozen=True)
class Switch:
    """A shape in which all chips are on one non-blocking switch, every two of them two hops apart.

    Attributes
    ----------
    size : int
        Number of chips.
    bandwidth_bytes_per_s : int
        Rate between a chip and the switch, all cables together, one direction [B/s].
    latency_ps : int
        Latency of one hop, chip to switch or switch to chip [ps].
    links : int
        Number of parallel cables between a chip and the switch.
    """

    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    links: int = 1

    def __post_init__(self) -> None:
        check_size("switch: a size", self.size)
        check_link("switch", self.bandwidth_bytes_per_s, self.latency_ps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """One axis that holds all chips."""
        return (self.size,)

    @property
    def chips(self) -> int:
        """Chips in all."""
        return self.size


Shape = Torus | FullMesh | Switch | Tiered | Clos
