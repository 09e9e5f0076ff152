"""Placement of ranks on chips, and the ranks of each communication group, as arrays.

The coordinates of a rank in the plan are the digits of its number in mixed radix, and the first
axis of the plan's ``order`` changes fastest. With ``tp-cp-dp-pp`` the ranks of a tensor-parallel
group have consecutive numbers, and on consecutive chips 32 of them fill a 4×4×2 block of a Trn2
UltraServer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.duration.duration import geometries
from topologies.arrays import IntArray, distinct
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.routing import period
from topologies.shapes.basic import Torus
from workloads.training.plan.joined import Joined
from workloads.training.plan.plan import ParallelPlan

SERVER = 8  # chips of the largest scale-up domain that is one server, not a rack of several servers


@dataclass(frozen=True, eq=False)
class Placement:
    """Placement of the ranks of a plan on chips."""

    cluster: Cluster
    plan: ParallelPlan
    chip: IntArray  # (ranks,): global chip of each rank
    # Rank at each place of the plan. The array has an axis for each of ``plan.order``, from the
    # last to the first.
    grid: IntArray
    joined: Joined | None = None  # clusters of unlike chips, of which ``cluster`` is the first

    def geometry(self, ranks: IntArray) -> IntArray:
        """Number groups of ranks (groups, members): those of one number take equally long."""
        chips = self.chip[ranks]
        return self.joined.geometry(chips) if self.joined else geometries(self.cluster, chips)[1]

    @property
    def domain(self) -> IntArray:
        """Domain of each rank, counted anew wherever the switches above repeat."""
        if self.joined:
            return self.joined.domain(self.chip)
        return self.chip % period(self.cluster) // self.cluster.chips_per_domain

    @cached_property
    def stage(self) -> IntArray:
        """Pipeline stage of each rank, int64 (ranks,)."""
        return self.coordinate("pp")

    def coordinate(self, axis: str) -> IntArray:
        """Coordinate of each rank along an axis of the plan, int64 (ranks,)."""
        coordinates = np.empty(self.grid.size, np.int64)
        along = self._axis(axis)
        places = np.arange(self.grid.shape[along])
        coordinates[self.grid] = np.moveaxis(
            np.broadcast_to(places, (*np.delete(self.grid.shape, along), len(places))), -1, along
        )
        return coordinates

    def groups(self, axis: str) -> IntArray:
        """Groups of ranks that communicate along an axis, int64 (groups, degree)."""
        # ``axis`` ("tp", "cp", "pp", "dp", "etp", "ep", "edp", "norm"): ranks of a group of ``tp``,
        # ``cp`` or ``pp`` differ in that coordinate only. A group of ``dp`` has all ranks that hold
        # the same parameters, whatever part of the sequence they have. Experts divide the ranks of
        # a stage anew, the fastest-changing axis first: ``etp``, then ``ep``, then ``edp`` for
        # ranks that hold the same experts. A group of ``norm`` has the ranks of all stages that add
        # up the gradients' norm.
        plan = self.plan
        if axis == "norm":
            joined = sorted(self._axis(axis) for axis in plan.norm_axes)
            grid = np.moveaxis(self.grid, joined, range(-len(joined), 0))
            return grid.reshape(-1, plan.norm_ranks)
        if axis in ("etp", "ep", "edp"):
            by_stage = np.moveaxis(self.grid, self._axis("pp"), 0)
            grid = by_stage.reshape(plan.pp, plan.expert_replicas, plan.ep, plan.expert_tp)
            along = ("edp", "ep", "etp").index(axis) + 1
            return np.moveaxis(grid, along, -1).reshape(-1, grid.shape[along])
        if axis == "dp":
            joined = sorted((self._axis("dp"), self._axis("cp")))
            return np.moveaxis(self.grid, joined, (-2, -1)).reshape(-1, plan.replicas)
        return np.moveaxis(self.grid, self._axis(axis), -1).reshape(-1, getattr(plan, axis))

    def _axis(self, axis: str) -> int:
        """Number of an axis of the plan in ``grid``, which has them from slowest to fastest."""
        return len(self.plan.order) - 1 - self.plan.order.index(axis)


def place(
    plan: ParallelPlan,
    cluster: Cluster,
    chips: npt.ArrayLike | None = None,
    joined: Joined | None = None,
) -> Placement:
    """Put the ranks of a plan on the chips of a cluster, or of several joined ones."""
    # ``chips`` (chips of the plan,): chip of the first ``ranks_per_chip`` ranks, of the next as
    # many, and so on; by default as :func:`usual_chips` says.
    needed = -(-plan.ranks // plan.ranks_per_chip)
    sizes = [getattr(plan, axis) for axis in reversed(plan.order)]
    grid = np.arange(plan.ranks).reshape(sizes)
    if joined:
        return Placement(cluster, plan, _side_by_side(plan, joined, grid), grid, joined)
    usual = chips is None
    order = usual_chips(plan, cluster, np.arange(needed)) if chips is None else _stated(chips)
    if len(order) != needed:
        raise InputError(f"the rank order names {len(order)} chips, the plan has {needed}.")
    if len(order) and (order.min() < 0 or order.max() >= cluster.chips):
        raise InputError(
            f"the rank order names chip {order.max()}; {cluster.name} has chips 0 to "
            f"{cluster.chips - 1}."
        )
    if not usual and len(distinct(order)) < len(order):
        raise InputError("the rank order names a chip twice; name each once.")
    return Placement(cluster, plan, np.repeat(order, plan.ranks_per_chip)[: plan.ranks], grid)


def _side_by_side(plan: ParallelPlan, joined: Joined, grid: IntArray) -> IntArray:
    """Return the chip of each rank where each cluster has some of the stages."""
    chip, along = np.empty(plan.ranks, np.int64), len(plan.order) - 1 - plan.order.index("pp")
    for number, cluster in enumerate(joined.clusters):
        part = joined.part(plan, number)
        order = usual_chips(part, cluster, np.arange(-(-part.ranks // part.ranks_per_chip)))
        ranks = grid.take(np.flatnonzero(joined.of_stages == number), axis=along)
        placed = np.repeat(order, part.ranks_per_chip)[: part.ranks]
        chip[ranks.ravel()] = joined.first[number] + placed
    return chip


def _stated(chips: npt.ArrayLike) -> IntArray:
    """Return the chips of a stated order, which must be whole numbers."""
    numbers = np.asarray(chips)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        text = " ".join(repr(chips).split())[:80]
        raise InputError(f"chips is {text}; it must be a list of whole numbers, such as range(16).")
    return numbers.astype(np.int64)


def usual_chips(plan: ParallelPlan, cluster: Cluster, places: IntArray) -> IntArray:
    """Return the chips that a plan uses unless its rank order is stated."""
    # A plan that does not fill its last rack uses equally many chips of every rack, if no group of
    # tp, cp or experts then reaches from one rack to the next: a job of 256 chips has 64 of the 72
    # chips of four racks. Otherwise chips are used in ascending order. So are those of servers,
    # which jobs fill, and of tori, whose rings need whole sides.
    needed, rack = -(-plan.ranks // plan.ranks_per_chip), cluster.chips_per_domain
    domains = -(-needed // rack)
    used_of_rack = needed // domains
    group = math.lcm(plan.tp * plan.cp, plan.expert_tp * plan.ep)
    cuts_groups = needed % domains or used_of_rack * plan.ranks_per_chip % group
    if cuts_groups or rack <= SERVER or isinstance(cluster.shape, Torus):
        return places
    domain, place = np.divmod(places, used_of_rack)
    return np.asarray(domain * rack + place)
