"""Times of communication in estimates: those that the simulation has for groups at these places.

Groups of an axis may differ in their geometry: some lie within one scale-up domain, and others
reach from one to the next. The slowest stands for all, as the others wait for it sooner or later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from operator import attrgetter

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import FloatArray, IntArray
from topologies.clusters.cluster import Cluster
from workloads.search.stage_times import CommunicationTime
from workloads.search.unlike_groups import unlike_groups
from workloads.training.layers.steps import LayerOp, collective
from workloads.training.plan.placement import usual_chips
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import GroupCosts

PLACE_FIELDS = ("order", "tp", "cp", "dp", "pp", "ep", "expert_tp", "ranks_per_chip")
"""Fields that the chips of a group's ranks depend on."""

_place: Callable[[ParallelPlan], tuple[Hashable, ...]] = attrgetter(*PLACE_FIELDS, "norm_axes")


class Communication:
    """Cache of the times of communication of plans on one cluster."""

    def __init__(self, cluster: Cluster, per_token: int):
        self.cluster, self.per_token = cluster, per_token
        self._costs = GroupCosts(cluster)
        self._groups: dict[tuple[Hashable, ...], IntArray] = {}

    def times(self, plan: ParallelPlan) -> CommunicationTime:
        """Return a function that times the steps of a plan.

        The group that is slowest in the first step of an axis is taken as slowest in all of them.
        """
        slowest: dict[str, IntArray] = {}

        @cache
        def time_s(step: LayerOp) -> float:
            """Time of a step in the slowest group [s]."""
            groups = slowest.get(step.axis, self.groups(plan, step.axis))
            times_s = self._times_s(groups, step, plan)
            slowest[step.axis] = groups[[np.argmax(times_s)]]
            return max(times_s)

        return time_s

    def hops_s(self, plan: ParallelPlan, size_bytes: int) -> FloatArray:
        """Return the time of a send from each stage to the next, last to first, (stages,) [s]."""
        pipelines = self.groups(plan, "pp")
        step = collective("hop", "pp", "send", size_bytes)
        pairs = np.stack([pipelines, np.roll(pipelines, -1, axis=1)], axis=2)
        return np.array([max(self._times_s(pairs[:, at], step, plan)) for at in range(plan.pp)])

    def groups(self, plan: ParallelPlan, axis: str) -> IntArray:
        """Return the chips of one group of each geometry, int64 (kinds, members)."""
        key = self._key(plan, axis)
        if key not in self._groups:
            ends = axis == "tie"
            chips = unlike_groups(plan, "pp" if ends else axis, self.cluster)
            self._groups[key] = chips[:, [0, -1]] if ends else chips
        return self._groups[key]

    def _key(self, plan: ParallelPlan, axis: str) -> tuple[Hashable, ...]:
        """Values that the chips of an axis' groups follow from."""
        if axis == "norm" and plan.norm_ranks == plan.ranks:  # all ranks, in their order
            last = np.array([-(-plan.ranks // plan.ranks_per_chip) - 1])
            return axis, plan.ranks, int(usual_chips(plan, self.cluster, last)[0])
        return axis, *_place(plan)

    def _times_s(self, groups: IntArray, step: LayerOp, plan: ParallelPlan) -> list[float]:
        """Time of a step on each of some groups of chips [s]."""
        steps, per_token = [step], self.per_token
        times_ps = (self._costs.times_ps(chips, steps, plan, per_token)[0] for chips in groups)
        return [time_ps / PS_PER_S for time_ps in times_ps]
