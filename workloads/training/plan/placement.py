"""Placement: the chip of each rank, and the ranks of each group, as arrays.

A rank's place in the plan is its number written in mixed radix, the fastest axis of the plan's
``order`` first: with ``tp-cp-dp-pp`` the ranks of one tensor-parallel group have consecutive
numbers, and with consecutive chips 32 of them fill a 4×4×2 block of a Trn2 UltraServer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray, distinct
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.shapes.basic import Torus
from topologies.shapes.links import coordinates
from workloads.training.plan.plan import ParallelPlan

SERVER = 8
"""Chips of the largest domain that is one server, and not a rack of several."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Placement of the ranks of a plan on chips.

    Attributes
    ----------
    cluster : Cluster
    plan : ParallelPlan
    chip : int64 array (ranks,)
        Global chip of each rank.
    grid : int64 array, one axis for each of ``plan.order`` from the last to the first
        Rank at each place of the plan.
    """

    cluster: Cluster
    plan: ParallelPlan
    chip: IntArray
    grid: IntArray

    @cached_property
    def stage(self) -> IntArray:
        """Pipeline stage of each rank, int64 (ranks,)."""
        return self.coordinate("pp")

    def coordinate(self, axis: str) -> IntArray:
        """Place of each rank along an axis, int64 (ranks,)."""
        coordinates = np.empty(self.grid.size, np.int64)
        along = self._axis(axis)
        places = np.arange(self.grid.shape[along])
        coordinates[self.grid] = np.moveaxis(
            np.broadcast_to(places, (*np.delete(self.grid.shape, along), len(places))), -1, along
        )
        return coordinates

    def groups(self, axis: str) -> IntArray:
        """Ranks that talk to each other along an axis, int64 (groups, degree).

        Of ``tp``, ``cp`` and ``pp`` they differ in that place of the plan only; ``dp`` joins all
        that hold the same parameters, whatever part of the sequence they have. Experts divide the
        ranks of a stage anew, from the fastest changing on: ``etp``, ``ep``, and ``edp`` for those
        that hold the same experts. ``norm`` joins ranks of all stages whose gradients are
        different parts of the model's.
        """
        plan = self.plan
        if axis == "norm":
            among = sorted(self._axis(axis) for axis in plan.norm_axes)
            whole = np.moveaxis(self.grid, among, range(-len(among), 0))
            return whole.reshape(-1, plan.norm_ranks)
        if axis in ("etp", "ep", "edp"):
            grid = np.moveaxis(self.grid, self._axis("pp"), 0)
            anew = grid.reshape(plan.pp, plan.expert_replicas, plan.ep, plan.expert_tp)
            along = ("edp", "ep", "etp").index(axis) + 1
            return np.moveaxis(anew, along, -1).reshape(-1, anew.shape[along])
        if axis == "dp":
            among = sorted((self._axis("dp"), self._axis("cp")))
            return np.moveaxis(self.grid, among, (-2, -1)).reshape(-1, plan.replicas)
        return np.moveaxis(self.grid, self._axis(axis), -1).reshape(-1, getattr(plan, axis))

    def _axis(self, axis: str) -> int:
        return len(self.plan.order) - 1 - self.plan.order.index(axis)


def place(plan: ParallelPlan, cluster: Cluster, chips: npt.ArrayLike | None = None) -> Placement:
    """Put the ranks of a plan on the chips of a cluster.

    Parameters
    ----------
    plan : ParallelPlan
        Its ``order`` says which axis changes fastest with the rank number.
    cluster : Cluster
    chips : int array, optional
        Chip of rank 0, ``ranks_per_chip``, 2 · ``ranks_per_chip`` …; ascending by default. A plan
        that leaves chips of racks free may use equally many of each, see :func:`usual_chips`.

    Raises
    ------
    InputError
        For a list of chips of another length, or with a chip that is unknown or named twice.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> plan = ParallelPlan(tp=4, dp=4, global_batch=4)
    >>> place(plan, cluster("trn2.48xlarge")).groups("tp")[1].tolist()
    [4, 5, 6, 7]
    """
    needed = -(-plan.ranks // plan.ranks_per_chip)
    usual = chips is None
    order = usual_chips(plan, cluster, np.arange(needed)) if usual else np.asarray(chips, np.int64)
    if len(order) != needed:
        raise InputError(f"the rank order names {len(order)} chips, the plan has {needed}.")
    if len(order) and (order.min() < 0 or order.max() >= cluster.chips):
        raise InputError(
            f"the rank order names chip {order.max()}; {cluster.name} has chips 0 to "
            f"{cluster.chips - 1}."
        )
    if not usual and len(distinct(order)) < len(order):
        raise InputError("the rank order names a chip twice; name each once.")
    sizes = [getattr(plan, axis) for axis in reversed(plan.order)]
    grid = np.arange(plan.ranks).reshape(sizes)
    return Placement(cluster, plan, np.repeat(order, plan.ranks_per_chip)[: plan.ranks], grid)


def usual_chips(plan: ParallelPlan, cluster: Cluster, places: IntArray) -> IntArray:
    """Chips of these places of a plan, from 0 to the number of its chips, in ascending order.

    Of racks that a plan does not fill it takes equally many chips of each, where that cuts no group
    of tp, cp or experts: a job of 256 has 64 of the 72 chips of four racks, so that no such group
    reaches from one rack to the next. Servers are filled, and so are tori, whose rings need whole
    sides.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> plan = ParallelPlan(dp=128, ep=64, global_batch=128)
    >>> usual_chips(plan, cluster("gb200-nvl72:2"), np.arange(128))[62:66].tolist()
    [62, 63, 72, 73]
    """
    needed, rack = -(-plan.ranks // plan.ranks_per_chip), cluster.chips_per_domain
    domains = -(-needed // rack)
    each = needed // domains
    group = math.lcm(plan.tp * plan.cp, plan.expert_tp * plan.ep)
    cuts = needed % domains or each * plan.ranks_per_chip % group
    if cuts or rack <= SERVER or isinstance(cluster.shape, Torus):
        return places
    domain, place = np.divmod(places, each)
    return np.asarray(domain * rack + place)


def geometries(cluster: Cluster, chips: IntArray) -> tuple[IntArray, IntArray]:
    """Number groups of chips so that translations of one another have one number.

    Parameters
    ----------
    cluster : Cluster
    chips : int array (groups, members)

    Returns
    -------
    first : int64 array (geometries,)
        A group of each geometry.
    geometry : int64 array (groups,)
        Geometry of each group.
    """
    further = chips - chips[:, :1]
    if not (further == further[:1]).all():
        return distinct_rows(_images(cluster, chips))
    # Groups of one pattern differ by where in a domain they begin: one of each is enough.
    _, begins, which = np.unique(
        chips[:, 0] % cluster.chips_per_domain, return_index=True, return_inverse=True
    )
    geometry = distinct_rows(_images(cluster, chips[begins]))[1]
    first = np.full(int(geometry.max(initial=-1)) + 1, len(chips), np.int64)
    np.minimum.at(first, geometry, begins)
    return first, geometry[which]


def _images(cluster: Cluster, chips: IntArray) -> IntArray:
    """Groups moved to the origin of their first domain, equal for translations of one another."""
    domain, local = np.divmod(chips, cluster.chips_per_domain)
    shape = cluster.shape
    if isinstance(shape, Torus):
        wraps = [axis.wrap for axis in shape.axes]
        places = [np.asarray(at) for at in coordinates(shape, local)]
        moved = [
            (at - at[:, :1]) % axis if wrap else at
            for at, axis, wrap in zip(places, shape.sizes, wraps, strict=True)
        ]
        image = np.ravel_multi_index(tuple(moved), shape.sizes)
    else:
        image = local
    return np.asarray((domain - domain[:, :1]) * cluster.chips_per_domain + image)


def distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """First place of each distinct row in ascending order, and which of them each row is.

    Most often all rows are equal, which is seen without sorting them.

    Examples
    --------
    >>> distinct_rows(np.array([[2, 1], [0, 3], [2, 1]]))
    (array([1, 0]), array([1, 0, 1]))
    """
    if len(rows) and (rows == rows[0]).all():
        return np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)
