"""A training step on clusters of unlike chips: how many stages and layers each of them has.

Each cluster has consecutive stages of one pipeline, as many as its chips hold, of layers divided so
that the slowest chunk takes least, and then all stages: with m microbatches, 1F1B takes (m − 1) ·
(slowest stage) + (sum of the stages) where transfers cost nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from workloads.models.model import Model
from workloads.search.choice import usual_batch
from workloads.search.estimate import DOUBLE, MIDDLE, Communication, Stage, ends_s
from workloads.search.pipeline_model import CHIP
from workloads.training.detail import Detail
from workloads.training.execution.rank_vector import Progress
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import memory
from workloads.training.plan.placement import Joined
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import check_model, layer_kinds
from workloads.training.usual_plan import DEFAULT_SEQ, complete, ranks_per_chip

IDLE = 1 / 8
"""Share of a cluster's chips that a plan may leave idle where ``dp`` is not stated."""
DEGREES = ("tp", "cp", "dp", "pp")
ANY_NUMBER = 10**9  # layers of a chunk where memory sets no bound


class Beside(NamedTuple):
    """The same batch in another way, to compare with."""

    name: str
    step_s: float | None  # time of the step [s]; None where it cannot be run
    chips: int
    reason: str = ""  # why it cannot be run


@dataclass(frozen=True)
class Unlike:
    """A step on unlike chips beside other ways to run it."""

    beside: tuple[Beside, ...]  # equal layers, then each cluster alone
    slowest_network_s: float  # time of the step over the slowest network that is assumed [s]
    oversubscription: float  # how much slower than the slower side's adapters that network is
    idle_chips: tuple[int, ...]  # chips of each cluster without ranks


# Division of the layers among the chunks of the pipeline.


def divided(chunk_s: FloatArray, most: Sequence[int], least: Sequence[int]) -> tuple[int, ...]:
    """Return the layers of each chunk, of which the slowest takes the least time.

    ``chunk_s`` (chunks, layers + 1, layers + 1): time of each chunk from a first layer to the one
    after its last [s]. ``most`` and ``least`` (chunks,): bounds of the layers of each chunk.

    >>> layers = np.arange(4) - np.arange(4)[:, None]
    >>> divided(np.stack([2.0 * layers, 1.0 * layers]), [3, 3], [1, 1])
    (1, 2)
    """
    layers = chunk_s.shape[1] - 1
    count = np.arange(layers + 1) - np.arange(layers + 1)[:, None]
    time_s = np.array(
        [
            np.where((count >= low) & (count <= high), each, np.inf)
            for each, low, high in zip(chunk_s, least, most, strict=True)
        ]
    )
    slowest_s = _walk(time_s, np.maximum)[0]
    if not math.isfinite(slowest_s):
        raise InputError(
            f"memory has room for {sum(min(high, layers) for high in most)} of {layers} layers on "
            "these stages. Use more chips, more tp or --recompute full."
        )
    # Of divisions with that slowest chunk, the one that takes the least time in all, and of these
    # the most even one.
    kept_s = np.where(time_s <= slowest_s * (1 + 1e-12), time_s, np.inf)
    return _walk(kept_s * (1 + 1e-6 * kept_s / max(slowest_s, 1e-300)), np.add)[1]


def _walk(time_s: FloatArray, joined: np.ufunc) -> tuple[float, tuple[int, ...]]:
    """Least maximum, or sum, of the times of consecutive chunks, and the layers of each."""
    chunks, ends, _ = time_s.shape
    best, came = np.full(ends, np.inf), np.zeros((chunks, ends), np.int64)
    best[0] = 0.0
    for chunk in range(chunks):
        through = joined(best[:, None], time_s[chunk])
        came[chunk] = np.argmin(through, axis=0)
        best = through.min(axis=0)
    cuts = [ends - 1]
    for chunk in reversed(range(chunks)):
        cuts.append(int(came[chunk, cuts[-1]]))
    return float(best[-1]), tuple(np.diff(cuts[::-1]).tolist())


def chunk_times_s(model: Model, plan: ParallelPlan, joined: Joined) -> FloatArray:
    """Time of a microbatch in each chunk, from each layer to each other, for ``divided`` [s]."""
    # It is that of all passes of a rank with their collectives, without transfers between stages.
    per_token = model.experts.per_token if model.experts else 1
    kinds, numbers = model.kinds, layer_kinds(model, np.arange(model.layers))
    sums_s, ends = [], []
    for number, cluster in enumerate(joined.clusters):
        costs = Communication(cluster, per_token).times(joined.part(plan, number))
        stage = Stage(model, plan, cluster.chip, cluster.numbers, costs)
        of_kinds = [
            float((stage.through(DOUBLE, kind) - stage.through(MIDDLE, kind)).max(axis=0).sum())
            for kind in kinds
        ]
        sums_s.append(np.concatenate([[0.0], np.cumsum(np.array(of_kinds)[numbers])]))
        ends.append(ends_s(stage)[:, CHIP].sum(axis=1))
    stages = [plan.pipeline.stage(plan.pp, chunk) for chunk in range(plan.pp * plan.vpp)]
    of_chunks = joined.of_stages[stages]
    times = np.array([sums_s[number] - sums_s[number][:, None] for number in of_chunks])
    times[0] += ends[of_chunks[0]][0]
    times[-1] += ends[of_chunks[-1]][1]
    return times


def room_for_layers(model: Model, plan: ParallelPlan, joined: Joined) -> list[int]:
    """Return the most layers that each chunk may have, in order of the model."""
    most = [ANY_NUMBER] * (plan.pp * plan.vpp)
    for stage in range(plan.pp):
        cluster = joined.of_stage(stage)
        counts = range(1, -(-model.layers // plan.vpp) + 1)
        lacks = partial(_lacks, model, plan, stage, cluster)
        room = bisect_left(counts, True, key=lacks)  # counts whose memory suffices come first
        for chunk in range(plan.vpp):
            most[plan.pipeline.number(plan.pp, stage, chunk)] = room
    return most


def _lacks(model: Model, plan: ParallelPlan, stage: int, cluster: Cluster, layers: int) -> bool:
    """Return whether a stage lacks memory for so many layers in each of its chunks."""
    chunks = plan.pp * plan.vpp
    of_stage = {plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp)}
    left, counts = model.layers, [0] * chunks
    for chunk in sorted(of_stage):
        counts[chunk] = min(layers, left)
        left -= counts[chunk]
    others = [chunk for chunk in range(chunks) if chunk not in of_stage]
    for place, chunk in enumerate(others):
        counts[chunk] = left * (place + 1) // len(others) - left * place // len(others)
    if not others and left:
        return True
    there = replace(plan, stage_layers=tuple(counts))
    return not memory(model, there, stage, cluster.numbers, cluster.chip).fits


# The plan: degrees that suit all clusters, completed, with its layers divided.


class Question(NamedTuple):
    """Model, clusters and stated fields of a step on unlike chips."""

    model: Model
    clusters: tuple[Cluster, ...]
    stated: Mapping[str, Any]  # fields of the plan
    detail: Detail
    lnc: int | None  # physical cores of a logical NeuronCore
    per_chip: int  # ranks of a chip
    oversubscription: float  # of the network between the clusters

    @property
    def rooms(self) -> list[int]:
        """Ranks for which each cluster has room."""
        return [cluster.chips * self.per_chip for cluster in self.clusters]

    def degrees(self) -> Iterator[dict[str, int]]:
        """Yield degrees that agree with the stated ones, with stages on every cluster."""
        stated, room = self.stated, min(self.rooms)
        domain = min(cluster.chips_per_domain for cluster in self.clusters) * self.per_chip
        powers, cp = [2**power for power in range(room.bit_length())], stated.get("cp") or 1
        every_tp = [stated["tp"]] if stated.get("tp") else [n for n in powers if n <= domain]
        every_dp = {*powers, *(room // size for size in powers)}
        for tp in every_tp:
            for dp in [stated["dp"]] if stated.get("dp") else sorted(every_dp):
                ranks = tp * cp * dp
                stages = [each // ranks for each in self.rooms]
                idle = max(1 - n * ranks / each for n, each in zip(stages, self.rooms, strict=True))
                suits = stated.get("pp") in (None, sum(stages))
                if min(stages) and suits and (stated.get("dp") or idle <= IDLE):
                    yield {"tp": tp, "cp": cp, "dp": dp, "pp": sum(stages)}

    def no_degrees(self) -> str:
        """Return why no degrees suit the clusters."""
        stated = self.stated
        words = ", ".join(f"{name} {stated[name]}" for name in DEGREES if stated.get(name))
        ranks = math.prod(stated.get(name) or 1 for name in ("tp", "cp", "dp"))
        stages = [room // ranks for room in self.rooms]
        if min(stages) and stated.get("tp") and stated.get("dp"):
            held = " + ".join(map(str, stages))
            return (
                f"{words}: there is room for {held} = {sum(stages)} stages. Use pp {sum(stages)}."
            )
        if min(stages) and not stated.get("dp") and stated.get("pp") in (None, sum(stages)):
            idle = (room % ranks for room in self.rooms)
            left = " and ".join(
                f"{count:,} of {room:,} ranks on {each.name}"
                for count, room, each in zip(idle, self.rooms, self.clusters, strict=True)
                if count > room * IDLE
            )
            return (
                f"{words}: stages of {ranks:,} ranks leave {left} idle. Use degrees that divide "
                "them, or state dp too."
            )
        rooms = " and ".join(
            f"{room:,} ranks on {each.name}"
            for room, each in zip(self.rooms, self.clusters, strict=True)
        )
        return (
            f"{words or 'no degree'}: a stage has tp × cp × dp ranks on one cluster, and there "
            f"is room for {rooms}. Use smaller tp, cp or dp, or leave dp and pp out."
        )

    def plan(self, fields: Mapping[str, Any]) -> tuple[float, ParallelPlan, Joined]:
        """Return the estimated time of a step [s], the plan with its layers, its clusters."""
        model, ranks = self.model, math.prod(fields[name] for name in ("tp", "cp", "dp"))
        stages = tuple(room // ranks for room in self.rooms)
        joined = Joined(self.clusters, stages, self.oversubscription)
        chips = -(-sum(stages) * ranks // self.per_chip)
        plan = complete(fields, model, self.clusters[0], lnc=self.lnc, chips=chips)
        check_model(plan, model)
        on_stack = replace(joined, clusters=_framed(plan, model, self.clusters))
        times = chunk_times_s(model, plan, on_stack)
        if not plan.stage_layers:
            chunks = plan.pp * plan.vpp
            most = [ANY_NUMBER] * chunks
            if not self.detail.allow_oversized:
                most = room_for_layers(model, plan, on_stack)
            least = [0, *[1] * (chunks - 2), model.prediction_heads]
            plan = replace(plan, stage_layers=divided(times, most, least))
        # Time of 1F1B without transfers and exchanges of gradients.
        cuts = np.cumsum([0, *plan.stage_layers])
        of_chunks = times[np.arange(len(times)), cuts[:-1], cuts[1:]]
        held_by = [plan.pipeline.stage(plan.pp, chunk) for chunk in range(len(times))]
        of_stages = np.bincount(held_by, of_chunks)
        fill = (of_stages.sum() - of_stages.max()) / plan.vpp
        return float(plan.microbatches * of_stages.max() + fill), plan, joined

    def best_plan(self) -> tuple[ParallelPlan, Joined]:
        """Return the plan of one batch with the least estimated time."""
        plans, refusals = list[tuple[float, ParallelPlan, Joined]](), list[InputError]()
        degrees, fields = list(self.degrees()), dict(self.stated)
        if not degrees:
            raise InputError(self.no_degrees())
        if len(degrees) > 1 and not fields.get("global_batch"):
            seq = fields.get("seq") or min(DEFAULT_SEQ, self.model.positions or DEFAULT_SEQ)
            fields["global_batch"] = usual_batch(sum(each.chips for each in self.clusters), seq)
        for chosen in degrees:
            try:
                plans.append(self.plan({**fields, **chosen}))
            except InputError as mistake:
                refusals.append(mistake)
        if not plans:
            raise refusals[0]
        _, plan, joined = min(plans, key=itemgetter(0))
        assumed = (name for name in (*DEGREES, "global_batch") if not self.stated.get(name))
        return replace(plan, assumed=tuple(dict.fromkeys([*plan.assumed, *assumed]))), joined


def _framed(plan: ParallelPlan, model: Model, clusters: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """Return the clusters with the numbers of the framework, which all stages must share."""
    stacks = [framework_of(plan, each) for each in clusters]
    if len({stack.name for stack in stacks}) > 1:
        each = " and ".join(
            f"{stack.name} on {cluster.name}"
            for stack, cluster in zip(stacks, clusters, strict=True)
        )
        raise InputError(
            f"stages would run {each}, and stages of one pipeline share a framework. State one "
            "that trains on all of these chips (--framework)."
        )
    return tuple(stack.on(each, model) for stack, each in zip(stacks, clusters, strict=True))


def unlike_step(
    model: Model,
    clusters: Sequence[Cluster],
    stated: Mapping[str, Any],
    detail: Detail,
    *,
    lnc: int | None = None,
    progress: Progress | None = None,
) -> Iteration:
    """Simulate a step whose stages are on several clusters, beside other ways to run it."""
    # ``clusters`` stand in the order of the pipeline. Degrees that are not ``stated`` are those
    # with the least estimated time.
    if stated.get("chips"):
        raise InputError(
            "chips is for a single cluster, and --later-stages names another. State smaller "
            "clusters in place of it."
        )
    for cluster in clusters:
        if cluster.scale_out is None:
            raise InputError(
                f"{cluster.name} has no scale-out fabric that could join it to another cluster. "
                "Use one that has, or leave --later-stages out."
            )
    per_chip = stated.get("ranks_per_chip") or ranks_per_chip(clusters[0], lnc)
    thinned = clusters[0].numbers.entry("joined-clusters", "oversubscription")
    slowest = thinned.high or thinned.value
    question = Question(model, tuple(clusters), stated, detail, lnc, per_chip, thinned.value)
    plan, joined = question.best_plan()
    detail = replace(detail, joined=joined, partial=True)
    step = iteration(model, clusters[0], plan, detail, progress=progress)
    calm = replace(detail, trace=False, level="auto", engine="fast", disturbed=None)
    slow = replace(calm, joined=replace(joined, oversubscription=slowest))
    slowest_s = iteration(model, clusters[0], plan, slow).iteration_s
    ways = [("equal layers", clusters[0], replace(plan, stage_layers=()), calm, step.chips)]
    used = [step.held(number)[0] for number in range(len(clusters))]
    for number, cluster in enumerate(clusters):
        pp = joined.stages[number]
        one = replace(plan, pp=pp, stage_layers=()) if pp > 1 else joined.part(plan, number)
        how = replace(calm, joined=None)
        ways.append((f"{cluster.name} alone", cluster, one, how, used[number]))
    idle = tuple(each.chips - count for each, count in zip(clusters, used, strict=True))
    beside = tuple(_tried(model, *way) for way in ways)
    return replace(step, unlike=Unlike(beside, slowest_s, slowest, idle))


def _tried(
    model: Model, name: str, cluster: Cluster, plan: ParallelPlan, how: Detail, chips: int
) -> Beside:
    try:
        return Beside(name, iteration(model, cluster, plan, how).iteration_s, chips)
    except InputError as mistake:
        return Beside(name, None, chips, str(mistake).partition(". ")[0])
