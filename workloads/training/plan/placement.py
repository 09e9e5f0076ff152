"""Placement of ranks on chips, by digits in the plan's ``order``, first axis fastest; groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.duration.duration import geometries
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from topologies.shapes.basic import Torus
from topologies.support.arrays import IntArray, distinct, distinct_rows
from topologies.support.errors import InputError
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT

SERVER = 8  # chips of the largest scale-up domain that is one server, not a rack of several servers


def server_share(groups: IntArray, cluster: Cluster) -> float:
    """Return the share of a server's channels that groups of chips (groups, ranks) use, at most 1.

    Between servers each adapter has channels of its own; no group has more than it has ranks.
    """
    domain = groups // cluster.chips_per_domain
    inside = float(np.count_nonzero(domain == domain[:, :1], axis=1).max())
    if cluster.scale_out is not None and (domain != domain[:, :1]).any():
        inside = min(inside, cluster.scale_out.adapters_per_server)
    return min(1.0, inside / SERVER)


class Side(NamedTuple):
    """Members of groups that lie on one of the clusters."""

    number: int  # number of the cluster
    chips: IntArray  # (groups, members): chips by their numbers on that cluster


@dataclass(frozen=True)
class Joined:
    """Clusters side by side, most often one, each with consecutive stages of one pipeline."""

    # The chips of a cluster are numbered behind those of the clusters before it.

    clusters: tuple[Cluster, ...]
    stages: tuple[int, ...]  # stages on each cluster
    # Rate of the slower side's adapters over that of the network that joins the clusters
    oversubscription: float = 1.0

    @property
    def name(self) -> str:
        """Names of the clusters in the order of the pipeline."""
        return " + ".join(cluster.name for cluster in self.clusters)

    @cached_property
    def first(self) -> IntArray:
        """First chip of each cluster, int64 (clusters,)."""
        return np.cumsum([0, *(cluster.chips for cluster in self.clusters[:-1])])

    @cached_property
    def of_stages(self) -> IntArray:
        """Number of the cluster of each stage, int64 (stages,)."""
        return np.repeat(np.arange(len(self.stages)), self.stages)

    def of_stage(self, stage: int) -> Cluster:
        """Return the cluster that has a stage."""
        return self.clusters[int(self.of_stages[stage])]

    def held(self, number: int) -> range:
        """Return the stages of one cluster."""
        first = sum(self.stages[:number])
        return range(first, first + self.stages[number])

    def number(self, chips: IntArray) -> IntArray:
        """Return the number of the cluster of each chip."""
        return np.searchsorted(self.first, chips, side="right") - 1

    def part(self, plan: ParallelPlan, number: int) -> ParallelPlan:
        """Return a plan with the stages of one cluster only, which has its ranks and groups."""
        if self.stages[number] == plan.pp:
            return plan
        return replace(plan, pp=self.stages[number], stage_layers=(), vpp=1, schedule=DEFAULT)

    def sides(self, chips: IntArray) -> Iterator[Side]:
        """Yield the sides of groups of chips (groups, members) whose members lie alike."""
        numbers = self.number(chips[0])
        for number in np.unique(numbers).tolist():
            yield Side(number, chips[:, numbers == number] - self.first[number])

    def geometry(self, chips: IntArray) -> IntArray:
        """Number groups of chips (groups, members): those of one number take equally long."""
        if len(self.clusters) == 1:  # half a million ranks need no copies
            return geometries(self.clusters[0], chips)[1]
        # Between two clusters all transfers take the same time, wherever their ends lie.
        rows, pattern = distinct_rows(self.number(chips))
        columns = np.zeros((len(chips), len(self.clusters)), np.int64)
        for number in range(len(rows)):
            alike = np.flatnonzero(pattern == number)
            for side in self.sides(chips[alike]):
                if side.chips.shape[1] > 1:
                    of_side = geometries(self.clusters[side.number], side.chips)[1]
                    columns[alike, side.number] = of_side
        return distinct_rows(np.concatenate([pattern[:, None], columns], axis=1))[1]

    def domain(self, chips: IntArray) -> IntArray:
        """Return the domain of each chip, counted anew wherever the switches above repeat."""
        number = self.number(chips)
        repeats, sizes = (
            np.array(column)
            for column in zip(
                *((period(each), each.chips_per_domain) for each in self.clusters), strict=True
            )
        )
        return np.asarray((chips - self.first[number]) % repeats[number] // sizes[number])


@dataclass(frozen=True, eq=False)
class Placement:
    """Placement of the ranks of a plan on chips."""

    joined: Joined  # clusters that have the stages
    plan: ParallelPlan
    chip: IntArray  # (ranks,): global chip of each rank
    # Rank at each place of the plan. The array has an axis for each of ``plan.order``, from the
    # last to the first.
    grid: IntArray

    @cached_property
    def stage(self) -> IntArray:
        """Pipeline stage of each rank, int64 (ranks,)."""
        along, stages = self._axis("pp"), np.empty(self.grid.size, np.int64)
        numbers = np.arange(self.plan.pp).reshape(
            [-1 if k == along else 1 for k in range(self.grid.ndim)]
        )
        stages[self.grid] = np.broadcast_to(numbers, self.grid.shape)
        return stages

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
    plan: ParallelPlan, where: Cluster | Joined, chips: npt.ArrayLike | None = None
) -> Placement:
    """Put the ranks of a plan on the chips of a cluster, or of several joined ones."""
    # ``chips`` (chips of the plan,): chip of the first ``ranks_per_chip`` ranks, of the next as
    # many, and so on, on one cluster; by default as :func:`usual_chips` says.
    joined = where if isinstance(where, Joined) else Joined((where,), (plan.pp,))
    sizes = [getattr(plan, axis) for axis in reversed(plan.order)]
    grid = np.arange(plan.ranks).reshape(sizes)
    chip, along = np.empty(plan.ranks, np.int64), len(plan.order) - 1 - plan.order.index("pp")
    for number, cluster in enumerate(joined.clusters):
        part = joined.part(plan, number)
        needed = -(-part.ranks // part.ranks_per_chip)
        order = (
            usual_chips(part, cluster, np.arange(needed))
            if chips is None
            else _stated(chips, needed)
        )
        if len(order) and (order.min() < 0 or order.max() >= cluster.chips):
            raise InputError(
                f"the rank order names chip {order.max()}; {cluster.name} has chips 0 to "
                f"{cluster.chips - 1}."
            )
        ranks = grid.take(joined.held(number), axis=along)
        placed = np.repeat(order, part.ranks_per_chip)[: part.ranks]
        chip[ranks.ravel()] = joined.first[number] + placed
    return Placement(joined, plan, chip, grid)


def _stated(chips: npt.ArrayLike, needed: int) -> IntArray:
    """Return the chips of a stated order: whole numbers, of which none comes twice."""
    numbers = np.asarray(chips)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        text = " ".join(repr(chips).split())[:80]
        raise InputError(f"chips is {text}; it must be a list of whole numbers, such as range(16).")
    if len(numbers) != needed:
        raise InputError(f"the rank order names {len(numbers)} chips, the plan has {needed}.")
    if len(distinct(numbers)) < needed:
        raise InputError("the rank order names a chip twice; name each once.")
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
