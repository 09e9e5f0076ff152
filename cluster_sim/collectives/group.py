"""Who takes part in a collective: ordered chips of a cluster, and the box they may form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule import IntArray
from topologies.clusters import Cluster
from topologies.errors import InputError
from topologies.links import coordinates
from topologies.shapes import Torus


@dataclass(frozen=True, eq=False)
class Group:
    """Ordered chips that run one collective together.

    Rank r is on chip ``chips[r // ranks_per_chip]``. A group whose chips ascend leaves the way of
    its rings to the runtime, which fits them to the fabric; any other order is followed as given.

    Attributes
    ----------
    cluster : Cluster
    chips : int array (chips,)
        Global chip numbers, each once.
    ranks_per_chip : int
        Logical cores that take part on each chip.

    Raises
    ------
    InputError
        When a chip is unknown or named twice.
    """

    cluster: Cluster
    chips: IntArray
    ranks_per_chip: int = 1

    def __post_init__(self) -> None:
        chips = np.atleast_1d(np.asarray(self.chips, np.int64))
        object.__setattr__(self, "chips", chips)
        if not len(chips):
            raise InputError("a group has no chips; it needs at least one")
        if chips.min() < 0 or chips.max() >= self.cluster.chips:
            wrong = int(chips[(chips < 0) | (chips >= self.cluster.chips)][0])
            raise InputError(
                f"chip {wrong} is not one of the {self.cluster.chips:,} of {self.cluster.name}"
            )
        found, times = np.unique(chips, return_counts=True)
        if times.max() > 1:
            twice = int(found[times > 1][0])
            raise InputError(f"chip {twice} is named twice in a group; each chip may stand once")
        if self.ranks_per_chip < 1:
            raise InputError(f"ranks per chip of {self.ranks_per_chip}; at least 1")

    @property
    def ranks(self) -> int:
        """Ranks in the group."""
        return len(self.chips) * self.ranks_per_chip

    @property
    def chip_of_rank(self) -> IntArray:
        """Global chip of each rank, int64 (ranks,)."""
        return np.repeat(self.chips, self.ranks_per_chip)

    @property
    def domain(self) -> IntArray:
        """Scale-up domain of each chip, int64 (chips,)."""
        return self.chips // self.cluster.chips_per_domain

    @property
    def ascending(self) -> bool:
        """Whether the chips stand in the order of their numbers."""
        return bool(np.all(np.diff(self.chips) > 0))


def whole(cluster: Cluster, ranks_per_chip: int = 1) -> Group:
    """All chips of a cluster as one group."""
    return Group(cluster, np.arange(cluster.chips), ranks_per_chip)


@dataclass(frozen=True, eq=False)
class Box:
    """A group's chips as a box of a torus: axes of size one are left out.

    Attributes
    ----------
    sizes : tuple of int
    wraps : tuple of bool
        Whether the box closes upon itself along the axis. An axis of two never does: its one or
        two cables join the same pair.
    rates : tuple of int
        Between two neighbours along the axis, all cables together, one direction [B/s].
    axes : tuple of int
        Number of each axis in the torus.
    chip_at : int64 array (chips,)
        Position in ``group.chips`` of the chip at each place of the box, in row-major order.
    """

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]
    rates: tuple[int, ...]
    axes: tuple[int, ...]
    chip_at: IntArray


def box(group: Group) -> Box | None:
    """Return the box that a group fills, or None when it is not one or not of one torus."""
    shape = group.cluster.shape
    if not isinstance(shape, Torus) or len(np.unique(group.domain)) != 1:
        return None
    local = group.chips % group.cluster.chips_per_domain
    places = zip(coordinates(shape, local), shape.axes, strict=True)
    sides = [_side(at, axis.size) for at, axis in places]
    if any(side is None for side in sides):
        return None
    spans = [len(np.unique(side)) for side in sides if side is not None]
    if int(np.prod(spans)) != len(local):
        return None
    place = np.ravel_multi_index(tuple(side for side in sides if side is not None), spans)
    kept = [a for a, span in enumerate(spans) if span > 1]
    axes = [shape.axes[a] for a in kept]
    pairs = list(zip(axes, (spans[a] for a in kept), strict=True))
    return Box(
        sizes=tuple(span for _, span in pairs),
        wraps=tuple(axis.wrap and span == axis.size > 2 for axis, span in pairs),
        rates=tuple(
            axis.bandwidth_bytes_per_s * (2 if axis.wrap and axis.size == 2 else 1)
            for axis, _ in pairs
        ),
        axes=tuple(kept),
        chip_at=np.argsort(place),
    )


def _side(at: IntArray, size: int) -> IntArray | None:
    """Coordinates counted from the start of a contiguous, perhaps wrapping, interval, or None."""
    values = np.unique(at)
    gaps = np.diff(np.concatenate([values, [values[0] + size]]))
    if (gaps > 1).sum() > 1:
        return None
    last = int(np.argmax(gaps))
    start = values[(last + 1) % len(values)]
    return np.asarray((at - start) % size)
