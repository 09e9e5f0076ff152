"""Chips of the groups of a plan, one group for each geometry, without placing all its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.duration.geometry import geometries
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import period
from workloads.training.plan.placement import usual_chips
from workloads.training.plan.plan import ParallelPlan


class _Lines(NamedTuple):
    """Groups as lines through the numbers of the ranks that some axes of a plan tell apart."""

    axes: tuple[str, ...]  # axes along which the numbers count, the one that changes fastest first
    # degree, step: members of a group, and the distance of their numbers
    degree: int
    step: int


def unlike_groups(plan: ParallelPlan, axis: str, cluster: Cluster) -> IntArray:
    """Return the chips of one group of each geometry, in order of rank, int64 (kinds, degree).

    The groups are those of :meth:`workloads.training.plan.placement.Placement.groups`. Of groups
    whose first chips are whole periods of the fabric apart only one is looked at.
    """
    lines = _lines(plan, axis)
    firsts = np.arange(_product(plan, lines.axes)).reshape(-1, lines.degree, lines.step)[:, 0]
    begin, apart = firsts.ravel(), np.zeros(1, np.int64)
    for name in plan.order:
        if name not in lines.axes:
            apart = np.add.outer(np.arange(getattr(plan, name)) * _stride(plan, name), apart)
    apart = apart.ravel()
    first_rank = np.add.outer(apart, _ranks(plan, lines.axes, begin)).ravel()
    place = usual_chips(plan, cluster, first_rank // plan.ranks_per_chip) % _span(cluster)
    first_at = np.full(int(place.max()) + 1, -1, np.int64)
    first_at[place[::-1]] = np.arange(len(place))[::-1]
    other, start = np.divmod(np.sort(first_at[first_at >= 0]), len(begin))
    numbers = begin[start][:, None] + lines.step * np.arange(lines.degree)
    ranks = _ranks(plan, lines.axes, numbers) + apart[other][:, None]
    chips = usual_chips(plan, cluster, ranks // plan.ranks_per_chip)
    return chips if len(chips) == 1 else chips[geometries(cluster, chips)[0]]


def _span(cluster: Cluster) -> int:
    """Return the number of chips after which the first chips of groups count as alike.

    Switches above domains that have room for all chips below add a microsecond to a hop at most, so
    only those without are told apart.
    """
    fabric = cluster.scale_out
    narrow = fabric is not None and fabric.oversubscription > 1
    return period(cluster) if narrow else cluster.chips_per_domain


def _lines(plan: ParallelPlan, axis: str) -> _Lines:
    """Return the lines along which the groups of an axis lie."""
    inner = plan.expert_tp * plan.ep
    experts = {
        "etp": (plan.expert_tp, 1),
        "ep": (plan.ep, plan.expert_tp),
        "edp": (plan.expert_replicas, inner),
    }
    if axis in experts:
        return _Lines(tuple(name for name in plan.order if name != "pp"), *experts[axis])
    joined = {"dp": ("dp", "cp"), "norm": plan.norm_axes}.get(axis, (axis,))
    axes = tuple(name for name in plan.order if name in joined)
    return _Lines(axes, _product(plan, axes), 1)


def _ranks(plan: ParallelPlan, axes: Sequence[str], numbers: IntArray) -> IntArray:
    """Return the ranks with these numbers along some axes, and 0 along the others."""
    ranks = np.zeros_like(numbers)
    for name in axes:
        numbers, place = np.divmod(numbers, getattr(plan, name))
        ranks += place * _stride(plan, name)
    return ranks


def _stride(plan: ParallelPlan, axis: str) -> int:
    """Difference of the rank numbers of neighbours along an axis."""
    return _product(plan, plan.order[: plan.order.index(axis)])


def _product(plan: ParallelPlan, axes: Sequence[str]) -> int:
    return math.prod(getattr(plan, name) for name in axes)
