"""Groups of ranks: ordered chips of a cluster, and the box of a torus that they may fill."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import as_cluster
from topologies.shapes.basic import Tiered, Torus
from topologies.shapes.links import coordinates
from topologies.support import display
from topologies.support.arguments import check_fields, fitting
from topologies.support.arrays import IntArray, distinct
from topologies.support.errors import InputError, check_type, shown


@display.by_facts("Group")
@fitting("Group")
@dataclass(frozen=True, eq=False)
class Group:
    """Ordered chips whose ranks run a collective together.

    Rank r is on chip ``chips[r // ranks_per_chip]``. Where the chips ascend, or a symmetry of the
    fabric moves them to an order that does, rings are fitted to the fabric as the runtime would; in
    any other order, rings follow the order of the chips.

    Parameters
    ----------
    cluster : Cluster
        Cluster on whose chips the ranks are.
    chips : int array (chips,)
        Global chip numbers, each once, in the order of the ranks.
    ranks_per_chip : int, default 1
        Ranks on each chip, one for each logical core that takes part.

    Raises
    ------
    InputError
        When a chip is unknown or named twice.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> Group(cluster("trn2.48xlarge"), range(4), ranks_per_chip=2).ranks
    8
    """

    cluster: Cluster
    chips: IntArray
    ranks_per_chip: int = 1

    def __post_init__(self) -> None:
        check_type("cluster", self.cluster, Cluster, "Pass a Cluster, such as cs.cluster returns.")
        check_fields(Group, {"ranks_per_chip": self.ranks_per_chip})
        numbers = np.asarray(self.chips)
        if not numbers.ndim and numbers.dtype.kind in "iu":
            raise InputError(
                f"chips of a group are {numbers}. Pass their numbers, such as range({numbers}) for "
                f"{numbers} chips, or [{numbers}] for one."
            )
        if not numbers.size:
            raise InputError("a group has no chips; it needs at least one")
        if numbers.dtype.kind not in "iu":
            raise InputError(
                f"chips of a group are {shown(repr(self.chips))}. Pass whole numbers, such as "
                "range(4)."
            )
        chips = numbers.astype(np.int64)
        object.__setattr__(self, "chips", chips)
        if chips.min() < 0 or chips.max() >= self.cluster.chips:
            wrong = int(chips[(chips < 0) | (chips >= self.cluster.chips)][0])
            raise InputError(
                f"chip {wrong} is not one of the {self.cluster.chips:,} of {self.cluster.name}"
            )
        if not self.ascending:  # chips that ascend are distinct
            ordered = np.sort(chips)
            repeated = ordered[1:] == ordered[:-1]
            if repeated.any():
                chip = int(ordered[1:][repeated][0])
                raise InputError(f"chip {chip} is named twice in a group; name each chip once.")
        if self.ranks_per_chip < 1:
            raise InputError(f"ranks per chip of {self.ranks_per_chip}; at least 1")

    @property
    def _facts(self) -> dict[str, object]:
        return {"ranks": f"{self.ranks:,}", "cluster": self.cluster.name}

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

    @functools.cached_property
    def domains(self) -> IntArray:
        """Scale-up domains that the group touches, each once, ascending."""
        domain = self.domain
        if self.ascending:
            return np.asarray(domain[np.append(True, np.diff(domain) > 0)])
        return distinct(domain)

    @functools.cached_property
    def filled_box(self) -> Box | None:
        """The box of a torus, or of tiers, that the group fills, or None; see :class:`Box`."""
        return _filled_box(self)

    @property
    def box(self) -> Box:
        """The box that the group fills, for algorithms that suit no group without one."""
        if self.filled_box is None:
            raise InputError(f"{self} fills no box of a torus. Use another algorithm.")
        return self.filled_box

    @property
    def ascending(self) -> bool:
        """Return whether the chips stand in the order of their numbers."""
        return bool((self.chips[1:] > self.chips[:-1]).all())


def as_group(group: Group | Cluster | str) -> Group:
    """Return a group as it is, or the group of all chips of a cluster or of a cluster's name.

    >>> as_group("trn2.48xlarge")
    Group(ranks=16, cluster=trn2.48xlarge)
    """
    return group if isinstance(group, Group) else whole(as_cluster(group))


def whole(cluster: Cluster, ranks_per_chip: int = 1) -> Group:
    """Return all chips of a cluster as one group."""
    return Group(cluster, np.arange(cluster.chips), ranks_per_chip)


@dataclass(frozen=True, eq=False)
class Box:
    """A group as a box of a torus or of tiers; axes along which it is 1 long are left out."""

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]  # an axis of two never closes upon itself: all cables join one pair
    rates: tuple[int, ...]  # between two neighbours, all cables together, one direction [B/s]
    axes: tuple[int, ...]  # number of each axis or tier in the shape of the cluster
    chip_at: IntArray  # (chips,): place in group.chips of the chip at each place, row-major


def ordered_box(group: Group) -> Box | None:
    """Return the box that a group fills in the order of its places, up to a symmetry; else None.

    Shifts around rings, reflections, and exchanges of axes that are alike move an order to one that
    is as good: the places of the box that is returned are those after the move.

    >>> from topologies.clusters.names import cluster
    >>> torus = cluster("torus:2x4", bandwidth="100GB/s", latency="1us")
    >>> shifted, mixed = [1, 2, 3, 0, 5, 6, 7, 4], [1, 2, 3, 0, 4, 5, 6, 7]
    >>> [ordered_box(Group(torus, chips)) is None for chips in (shifted, mixed)]
    [False, True]
    """
    filled = group.filled_box
    if filled is None or group.ascending:
        return filled
    places = np.argsort(filled.chip_at)
    at = np.unravel_index(places, filled.sizes)
    row_major = np.unravel_index(np.arange(len(places)), filled.sizes)
    alike = list(zip(filled.sizes, filled.wraps, filled.rates, strict=True))
    for axes in itertools.permutations(range(len(alike))):
        if [alike[axis] for axis in axes] == alike and all(
            _moves(group, filled, axis, at[axis], by_rank)
            for axis, by_rank in zip(axes, row_major, strict=True)
        ):
            return replace(filled, chip_at=np.arange(len(places)))
    return None


def _moves(group: Group, filled: Box, axis: int, at: IntArray, by_rank: IntArray) -> bool:
    """Return whether a symmetry of an axis leads from places by rank to the places of the chips."""
    size = filled.sizes[axis]
    to = np.zeros(size, np.int64)
    to[by_rank] = at
    if not (to[by_rank] == at).all():
        return False
    shape = group.cluster.shape
    if not (isinstance(shape, Torus | Tiered) and _is_line(shape, filled.axes[axis])):
        return True  # chips of a mesh or switch are all alike
    steps = np.diff(to, append=to[:1]) if filled.wraps[axis] else np.diff(to)
    return bool(any((steps % size == way % size).all() for way in (1, -1)))


def _filled_box(group: Group) -> Box | None:
    shape = group.cluster.shape
    if len(group.domains) != 1 or not isinstance(shape, Torus | Tiered):
        return None
    local = group.chips % group.cluster.chips_per_domain
    # Places of the chips in the smallest box around them, None along an axis that has gaps.
    maybe_places = [
        _places_in_interval(along, size)
        if _is_line(shape, axis)
        else np.unique(along, return_inverse=True)[1]
        for axis, (along, size) in enumerate(
            zip(coordinates(shape, local), shape.sizes, strict=True)
        )
    ]
    places = [place for place in maybe_places if place is not None]
    spans = [len(distinct(place)) for place in places]
    # Chips are distinct, so as many as the box has places fill it.
    if len(places) < len(maybe_places) or int(np.prod(spans)) != len(local):
        return None
    kept = [axis for axis, span in enumerate(spans) if span > 1]
    return Box(
        sizes=tuple(spans[axis] for axis in kept),
        wraps=tuple(_closes(shape, axis, spans[axis]) for axis in kept),
        rates=tuple(_rate(shape, axis) for axis in kept),
        axes=tuple(kept),
        chip_at=np.argsort(np.ravel_multi_index(tuple(places), spans)),
    )


def _is_line(shape: Torus | Tiered, axis: int) -> bool:
    """Return whether gaps matter along an axis or tier; chips of a mesh or switch meet directly."""
    return isinstance(shape, Torus) or shape.tiers[axis].ring


def _closes(shape: Torus | Tiered, axis: int, span: int) -> bool:
    wraps = shape.axes[axis].wrap if isinstance(shape, Torus) else shape.tiers[axis].ring
    return wraps and span == shape.sizes[axis] > 2


def _rate(shape: Torus | Tiered, axis: int) -> int:
    """Rate from one chip to the next along an axis or tier, over all parallel links [B/s]."""
    if isinstance(shape, Tiered):
        tier = shape.tiers[axis]
        return tier.bandwidth_bytes_per_s if tier.switches else tier.link_bytes_per_s
    ring = shape.axes[axis]
    return ring.bandwidth_bytes_per_s * (2 if ring.wrap and ring.size == 2 else 1)


def _places_in_interval(coordinate: IntArray, size: int) -> IntArray | None:
    """Count coordinates from the start of their interval, which may wrap; None with more gaps."""
    values = distinct(coordinate)
    gaps = np.diff(np.concatenate([values, [values[0] + size]]))
    if (gaps > 1).sum() > 1:
        return None
    if gaps.max() == 1:  # the whole axis
        return coordinate
    last = int(np.argmax(gaps))
    start = values[(last + 1) % len(values)]
    return np.asarray((coordinate - start) % size)
