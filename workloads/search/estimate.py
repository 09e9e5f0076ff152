"""An estimate of the iteration of each of thousands of plans, by array arithmetic.

    iteration = pipeline of the passes + gradients and parameters beyond what hides them + optimizer

Times of passes, of replicas and of communication are worked out once for all plans that share
them (:mod:`~workloads.search.passes`, :mod:`~workloads.search.replicas`,
:mod:`~workloads.search.talk`); what is left is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from cluster_sim.schedule import IntArray
from topologies.catalogue import catalogue
from topologies.clusters import Cluster
from workloads.model import Model
from workloads.search.passes import Passes, Talk, passes
from workloads.search.pipeline import Pipelines, pipeline_s, streamed_s
from workloads.search.replicas import Replicas, replicas
from workloads.search.talk import FloatArray, talk_s
from workloads.training.plan import ParallelPlan
from workloads.training.steps import Step

Found = TypeVar("Found")
ACTIVATION_BYTES = 2
FIRST, LAST = 0, -1


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated times of plans, one element each.

    Attributes
    ----------
    iteration_s : float64 array (plans,)
        Of one optimizer step [s].
    compute_s : float64 array (plans,)
        Arithmetic of the busiest stage [s].
    exposed_dp_s : float64 array (plans,)
        Gradients and parameters beyond what hides them [s].
    optimizer_s : float64 array (plans,)
    """

    iteration_s: FloatArray
    compute_s: FloatArray
    exposed_dp_s: FloatArray
    optimizer_s: FloatArray


def estimate(model: Model, cluster: Cluster, plans: Sequence[ParallelPlan]) -> Estimates:
    """Estimate the iteration of every plan.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    plans : sequence of ParallelPlan
        Each of which divides the model.
    """
    found = _Columns(model, cluster, plans)
    pipes = found.pipelines()
    reduce_s, gather_s, optimizer_s = found.replicas(pipes)
    passing_s = pipeline_s(pipes)
    return Estimates(
        iteration_s=passing_s + reduce_s + gather_s + optimizer_s,
        compute_s=found.busy_s(),
        exposed_dp_s=reduce_s + gather_s,
        optimizer_s=optimizer_s,
    )


def group(plan: ParallelPlan, axis: str) -> IntArray:
    """Chips of the first group of an axis, in order of rank, int64 (degree,).

    The groups are those of :meth:`workloads.training.placement.Placement.groups`.

    Examples
    --------
    >>> group(ParallelPlan(tp=4, dp=4, global_batch=4), "dp").tolist()
    [0, 4, 8, 12]
    """
    inner = plan.expert_tp * plan.ep
    experts = {
        "etp": (plan.expert_tp, 1),
        "ep": (plan.ep, plan.expert_tp),
        "edp": (plan.expert_replicas, inner),
    }
    walked = [axis]
    if axis in experts:
        walked = [name for name in plan.order if name != "pp"]
    elif axis == "dp":
        walked = [name for name in plan.order if name in ("dp", "cp")]
    degree, step = experts.get(axis, (int(np.prod([getattr(plan, name) for name in walked])), 1))
    left = np.arange(degree, dtype=np.int64) * step
    ranks = np.zeros(degree, np.int64)
    for name in walked:
        left, place = np.divmod(left, getattr(plan, name))
        ranks += place * _stride(plan, name)
    return ranks // plan.ranks_per_chip


def _stride(plan: ParallelPlan, axis: str) -> int:
    faster = plan.order[: plan.order.index(axis)]
    return int(np.prod([getattr(plan, name) for name in faster], dtype=np.int64))


class _Columns:
    """Columns of numbers of all plans; what several share is worked out once."""

    def __init__(self, model: Model, cluster: Cluster, plans: Sequence[ParallelPlan]):
        self.model, self.cluster, self.plans = model, cluster, plans
        self.parts, self.chip = cluster.catalogue or catalogue(), cluster.chip
        self.layers = self.of(lambda plan: -(-model.layers // plan.pp))
        self.stages = self.of(lambda plan: plan.pp)
        self.passes = self._once(PASS_FIELDS, self._passes)

    def of(self, value: Callable[[ParallelPlan], int]) -> IntArray:
        """One integer of every plan, int64 (plans,)."""
        return np.array([value(plan) for plan in self.plans], np.int64)

    def _once(self, fields: Sequence[str], make: Callable[[ParallelPlan], Found]) -> list[Found]:
        known: dict[Hashable, Found] = {}
        found = []
        for plan in self.plans:
            key = tuple(getattr(plan, name) for name in fields)
            if key not in known:
                known[key] = make(plan)
            found.append(known[key])
        return found

    def _talk(self, plan: ParallelPlan) -> Talk:
        groups = {axis: group(plan, axis) for axis in (*plan.order, "etp", "ep", "edp")}
        groups["tie"] = groups["pp"][[FIRST, LAST]]

        def time(step: Step) -> float:
            return float(talk_s(self.cluster, groups[step.axis], step.collective, step.size_bytes))

        return time

    def _passes(self, plan: ParallelPlan) -> Passes:
        return passes(self.model, plan, self.chip, self.parts, self._talk(plan))

    def _replicas(self, stage: int) -> list[Replicas]:
        def make(plan: ParallelPlan) -> Replicas:
            where = stage % plan.pp
            return replicas(self.model, plan, where, self.chip, self.parts, self._talk(plan))

        return self._once(REPLICA_FIELDS, make)

    def pipelines(self) -> Pipelines:
        """Passes and transfers of every plan."""
        one = self._once(HOP_FIELDS, self._hops)
        return Pipelines(
            stages=self.stages,
            microbatches=self.of(lambda plan: plan.microbatches),
            gpipe=self.of(lambda plan: plan.schedule == "gpipe").astype(np.bool_),
            forward_s=self._stage_passes(0),
            backward_s=self._stage_passes(1),
            hop_s=np.array([slowest for slowest, _ in one]),
            hops_s=np.array([whole for _, whole in one]),
            waits=self.of(lambda plan: plan.overlap != "all").astype(np.bool_),
        )

    def _stage_passes(self, way: int) -> FloatArray:
        """Passes of the first, a middle and the last stage; of a single one in all three rows."""
        layer, first, last = self._spans(way, "total_s")
        body, alone = self.layers * layer, self.stages == 1
        return np.stack([body + first + alone * last, body, body + last + alone * first])

    def _spans(self, way: int, what: str) -> tuple[FloatArray, ...]:
        return tuple(
            np.array([getattr(getattr(one, name)[way], what) for one in self.passes])
            for name in ("layer", "first", "last")
        )

    def busy_s(self) -> FloatArray:
        """Arithmetic of the mean stage in all microbatches [s]."""
        total = np.zeros(len(self.plans))
        for way in (0, 1):
            layer, first, last = self._spans(way, "busy_s")
            total += self.layers * layer + (first + last) / self.stages
        return total * self.of(lambda plan: plan.microbatches)

    def _hops(self, plan: ParallelPlan) -> tuple[float, float]:
        """Slowest transfer between stages, and all of them on the way from first to last [s]."""
        if plan.pp == 1:
            return 0.0, 0.0
        chips = group(plan, "pp")
        wide = ACTIVATION_BYTES * plan.microbatch * plan.seq * self.model.hidden // plan.sp
        domain = chips // self.cluster.chips_per_domain
        far = domain[1:] != domain[:-1]
        times = np.zeros(len(far))
        for crosses in np.unique(far).tolist():
            at = int(np.flatnonzero(far == crosses)[0])
            times[far == crosses] = talk_s(self.cluster, chips[at : at + 2], "send", wide)
        return float(times.max()), float(times.sum())

    def replicas(self, pipes: Pipelines) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exposed reductions, exposed gathering and the optimizer, of the stage that ends last."""
        ends = [self._end(stage, pipes) for stage in (FIRST, LAST)]
        # The last stage has done its backward passes earlier than the first.
        ahead = np.where(self.stages > 1, pipes.hops_s + pipes.backward_s[1] * (self.stages - 1), 0)
        later = ends[1][0] + ends[1][2] - ahead > ends[0][0] + ends[0][2]
        reduce_s = np.where(later, ends[1][0] - ahead, ends[0][0])
        optimizer_s = np.where(later, ends[1][2], ends[0][2])
        return reduce_s, ends[0][1], optimizer_s

    def _end(self, stage: int, pipes: Pipelines) -> tuple[FloatArray, FloatArray, FloatArray]:
        made = self._replicas(stage)
        column = {
            part.name: np.array([getattr(one, part.name) for one in made])
            for part in fields(Replicas)
        }
        forward_s, backward_s = (self._spans(way, "total_s")[0] for way in (0, 1))
        reduced = streamed_s(self.layers, backward_s, column["layer_reduce_s"])
        gathered = streamed_s(self.layers, forward_s, column["layer_gather_s"])
        return (
            column["after_s"] + reduced + column["rest_reduce_s"],
            gathered + column["rest_gather_s"],
            column["optimizer_s"],
        )


SAME = ("cp", "ep", "vpp", "seq", "precision", "overlap", "attention", "ranks_per_chip")
"""Fields that every part depends on."""
PASS_FIELDS = (*SAME, "tp", "microbatch", "recompute", "sequence_parallel")
REPLICA_FIELDS = (*SAME, "tp", "pp", "dp", "zero", "order")
HOP_FIELDS = (*SAME, "tp", "pp", "dp", "microbatch", "sequence_parallel", "order")
