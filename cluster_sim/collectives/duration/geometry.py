"""Geometries: the places of a group's ranks, as far as the time of a collective depends on them.

Groups of one geometry take equally long, so one of each is timed. They differ by a symmetry of the
fabric, which moves every rank of the one to the same rank of the other:

- Within a domain that is a torus, a shift along axes that wrap around. It must keep the way round
  that routes take between opposite chips of a ring.
- Within a domain that is a switch, any other chips, as all are alike.
- Where every chip is the only one in its domain, any other chip of the domain, as each has an
  adapter of its own and sends nothing over the links between chips.
- Between domains, other domains whose chips are above and below the same switches of each other:
  two domains under one top-of-rack switch are nearer than two under one leaf.

The order of the ranks stays the same, and so does whether they ascend, which rings depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cluster_sim.collectives.group import Group
from topologies.arrays import BoolArray, IntArray, distinct_rows
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import period, switch_chips
from topologies.shapes.basic import Shape, Switch, Torus
from topologies.shapes.links import coordinates


class Geometry:
    """A group that is equal to every group of its geometry, so that one stands for all."""

    __slots__ = ("_key", "group")

    def __init__(self, group: Group):
        self.group = group
        where = places(group.cluster, group.chips[None]).tobytes()
        self._key = group.cluster, group.ranks_per_chip, where

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def geometries(cluster: Cluster, chips: IntArray) -> tuple[IntArray, IntArray]:
    """Number groups of chips (groups, members) so that groups of one geometry share a number.

    Returns the first group of each geometry, and the geometry of each group.
    """
    offsets = chips - chips[:, :1]
    if not (offsets == offsets[:1]).all():
        return distinct_rows(places(cluster, chips))
    # Groups with equal offsets differ only by where in a period they begin: one of each is enough.
    _, begins, which = np.unique(
        chips[:, 0] % period(cluster), return_index=True, return_inverse=True
    )
    geometry = distinct_rows(places(cluster, chips[begins]))[1]
    first = np.full(int(geometry.max(initial=-1)) + 1, len(chips), np.int64)
    np.minimum.at(first, geometry, begins)
    return first, geometry[which]


def places(cluster: Cluster, chips: IntArray) -> IntArray:
    """Describe groups (groups, members) in rows that are equal for groups of one geometry."""
    domain, local = np.divmod(chips, cluster.chips_per_domain)
    in_one_domain: BoolArray = np.all(domain == domain[:, :1], axis=1)
    ascends: BoolArray = np.all(chips[:, 1:] > chips[:, :-1], axis=1)
    sizes = switch_chips(cluster)
    ranked = [_ranked(chips // size) for size in sizes]
    inside = _inside(cluster.shape, local, in_one_domain)
    if _nested(sizes):
        inside = np.where(_each_alone(ranked[0])[:, None], 0, inside)
    columns = [np.where(in_one_domain[:, None], 0, ranks) for ranks in ranked]
    return np.concatenate([ascends[:, None], inside, *columns], axis=1)


def _each_alone(domain: IntArray) -> BoolArray:
    """Return which groups have a single chip in each of their domains, numbered from 0."""
    members = domain.shape[1]
    return np.asarray((domain.max(axis=1) == members - 1) & (members > 1))


def _nested(sizes: Sequence[int]) -> bool:
    """Return whether domains and groups under switches of these sizes lie whole in larger ones."""
    return all(above % below == 0 for below, above in pairwise(sorted(sizes)))


def _inside(shape: Shape, local: IntArray, in_one_domain: BoolArray) -> IntArray:
    """Return places in the domains that are equal for groups that a symmetry moves there."""
    if isinstance(shape, Switch):
        return np.where(in_one_domain[:, None], _ranked(local), local)
    if isinstance(shape, Torus):
        at = np.stack(coordinates(shape, local))
        size = np.array(shape.sizes)[:, None, None]
        moved = (at - _shift(shape, at[:, :, 0])[:, :, None]) % size
        return np.asarray(np.ravel_multi_index(tuple(moved), shape.sizes))
    return local


def _shift(shape: Torus, first: IntArray) -> IntArray:
    """Return the steps by which groups are shifted to the origin, or beside it, (axes, groups).

    Between opposite chips of a ring both ways are as short, and routes go up from chips whose
    coordinates have an even sum. So the sum of the steps is even, and nothing is shifted along
    rings of an odd length, on which a step over the end changes the sum by an odd number.
    """
    wraps = np.array([axis.wrap for axis in shape.axes])
    even = wraps & (np.array(shape.sizes) % 2 == 0)
    if not even.any():
        return np.where(wraps[:, None], first, 0)
    steps = np.where(even[:, None], first, 0)
    steps[np.flatnonzero(even)[-1]] -= steps.sum(axis=0) % 2
    return steps


def _ranked(values: IntArray) -> IntArray:
    """Number the values of each row 0, 1, … in ascending order, equal ones alike.

    >>> _ranked(np.array([[7, 3, 7], [5, 5, 5]]))
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    order = None
    if not (values[:, 1:] >= values[:, :-1]).all():
        order = np.argsort(values, axis=1, kind="stable")
        values = np.take_along_axis(values, order, axis=1)
    ranks = np.zeros(values.shape, np.int64)
    np.cumsum(values[:, 1:] > values[:, :-1], axis=1, out=ranks[:, 1:])
    if order is None:
        return ranks
    by_place = np.empty_like(ranks)
    np.put_along_axis(by_place, order, ranks, axis=1)
    return by_place
