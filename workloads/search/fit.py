"""Memory of candidates, and those that fit with least sharding and recomputation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.support.arrays import BoolArray, IntArray
from topologies.support.errors import InputError
from workloads.models.model import Model
from workloads.search.candidates import RECOMPUTE, Candidates
from workloads.training.layers.adapters import whole
from workloads.training.layers.replicas import sharded
from workloads.training.memory.memory import Stack, likely, stack_of, worst
from workloads.training.plan.plan import PLAN_FIELDS, SEARCHED, ParallelPlan
from workloads.training.plan.stages import OPTIMIZER_BYTES, Share, kind_shares, layer_weight_bytes
from workloads.training.usual_plan import describe

NEEDLESS = {
    "zero": "more sharded over replicas than memory asks for",
    "recompute": "more computed again than memory asks for",
}
"""Fields that save memory, and the reason why plans that save more than needed are left out."""
UNKNOWN = -1  # memory of a plan that is left out before its memory is computed
NEARLY = 64  # plans nearest to fitting whose least need is computed where none is likely to fit


@dataclass(frozen=True, eq=False)
class Fit:
    """Memory of the candidates on the rank that needs most."""

    # (candidates,): memory that each candidate is likely to need [B]; ``UNKNOWN`` for one that is
    # left out. If its parameters alone do not fit, it is their size. Where no candidate is likely
    # to fit, it is the least need of those that a sparing stack fits.
    total_bytes: IntArray
    capacity_bytes: int  # memory of a rank [B]
    pruned: Mapping[str, int]  # number of plans that were left out although they fit, by reason

    @property
    def fits(self) -> BoolArray:
        """Return whether each candidate is worth an estimate, bool (candidates,)."""
        weighed: BoolArray = self.total_bytes != UNKNOWN
        return weighed & (self.total_bytes <= self.capacity_bytes)

    @property
    def oversized(self) -> int:
        """Number of candidates that do not fit."""
        return int((self.total_bytes > self.capacity_bytes).sum())


def fit(
    candidates: Candidates,
    settled: Collection[str] = (),
    watch: Watch = unwatched,
    margin: float = 0.0,
) -> Fit:
    """Compute the memory of every candidate, by :mod:`workloads.training.memory.memory`."""
    # The values of ``settled`` fields leave out no plan; the share ``margin`` of memory stays free.
    catalogue, chip = candidates.cluster.numbers, candidates.cluster.chip
    stack = stack_of(catalogue)
    totals: dict[Hashable, int] = {}
    fitting: dict[Hashable, list[tuple[int, int]]] = {}
    total = np.full(len(candidates), UNKNOWN, np.int64)
    pruned = dict.fromkeys(NEEDLESS.values(), 0)
    capacity = likely(candidates.model, candidates.plans[0], catalogue, chip).capacity
    capacity -= int(margin * capacity)
    # Plans that save less come first, so that those which save more can be compared with them.
    order = sorted(range(len(candidates)), key=lambda row: _savings(candidates.plans[row]))
    for row in watch(order, "weighed"):
        plan = candidates.plans[row]
        saves, alike = _savings(plan), _alike(plan)
        needless = _needless(saves, fitting.get(alike, ()), settled)
        if needless:
            pruned[NEEDLESS[needless]] += 1
            continue
        # The order of the axes changes the chips of ranks, not the memory that they need.
        key = (*alike[1:], plan.zero, plan.recompute)
        if key not in totals:
            totals[key] = least_bytes(candidates.model, plan, stack)
            if totals[key] <= capacity:
                totals[key] = likely(candidates.model, plan, catalogue, chip).total
        total[row] = totals[key]
        if total[row] <= capacity:
            fitting.setdefault(alike, []).append(saves)
    outcome = Fit(total, capacity, {reason: count for reason, count in pruned.items() if count})
    if not outcome.fits.any():
        for row in np.argsort(total)[:NEARLY].tolist():
            total[row] = worst(candidates.model, candidates.plans[row], catalogue, chip).least
    if not outcome.fits.any():
        raise InputError(_nothing_fits(candidates, outcome, settled))
    return outcome


def least_bytes(model: Model, plan: ParallelPlan, stack: Stack = Stack()) -> int:
    """Return a lower bound of a plan's memory: parameters and states of an average stage [B]."""
    # It leaves out embedding and output layer. For a plan that trains adapters or a part of the
    # model it has the weights alone.
    counts = [model.each_layer.count(kind) for kind in model.kinds]
    pairs = list(zip(counts, kind_shares(model, plan), strict=True))
    held = Share(
        sum(count * parameters.dense for count, parameters in pairs) // plan.pp,
        sum(count * parameters.experts for count, parameters in pairs) // plan.pp,
    )
    # The optimizer's state, in the precision in which the stack keeps Adam's.
    state = stack.optimizer_bytes * OPTIMIZER_BYTES[plan.optimizer] / OPTIMIZER_BYTES["adamw"]
    sizes = ((3, layer_weight_bytes(plan)), (2, stack.gradient_bytes), (1, state))
    return int(
        sum(
            size * sharded(plan.sharding >= level, held, plan.replicas, plan.expert_replicas)
            for level, size in (sizes if whole(plan) else sizes[:1])
        )
    )


def _savings(plan: ParallelPlan) -> tuple[int, int]:
    """Degrees of sharding and of recomputation, which both save memory."""
    return plan.sharding, RECOMPUTE.index(plan.recompute)


def _needless(
    saves: tuple[int, int], enough: Collection[tuple[int, int]], settled: Collection[str]
) -> str:
    """Field by which a plan saves more memory than another plan that fits; empty for none."""
    # ``enough`` has the savings of plans that fit and are otherwise equal.
    for zero, recompute in enough:
        if zero <= saves[0] and recompute <= saves[1]:
            if recompute < saves[1] and "recompute" not in settled:
                return "recompute"
            if 1 <= zero < saves[0] and "zero" not in settled:
                return "zero"
    return ""


SAME = ("order", *(name for name in PLAN_FIELDS if name not in ("order", "zero", "recompute")))
"""Fields in which plans agree that differ only in the memory that they save."""


_alike: Callable[[ParallelPlan], tuple[Hashable, ...]] = attrgetter(*SAME)
"""Function that returns a key which plans share that differ only in the memory that they save."""


def _nothing_fits(candidates: Candidates, fit: Fit, settled: Collection[str]) -> str:
    """Message for candidates none of which fits, with the nearest one and the bytes it lacks."""
    catalogue, chip = candidates.cluster.numbers, candidates.cluster.chip
    # Some totals are lower bounds: look from the lowest on until the bounds exceed the best total.
    nearest, total = -1, 2**62
    for row in np.argsort(fit.total_bytes).tolist():
        if fit.total_bytes[row] >= total:
            break
        needed = likely(candidates.model, candidates.plans[row], catalogue, chip)
        if needed.total < total:
            nearest, total = row, needed.total
            kept = needed.weights + needed.gradients + needed.optimizer
    remedies = ["more chips", *["a shorter --seq"] * (kept < fit.capacity_bytes)]
    remedies += ["fewer stated fields"] * (not {*SEARCHED}.isdisjoint(settled))
    plan, missing = candidates.plans[nearest], total - fit.capacity_bytes
    return (
        f"none of {len(candidates):,} plans for {candidates.model.name} fits on "
        f"{candidates.cluster.name}: the nearest, {describe(plan)}, needs {total / 1e9:.1f} GB a "
        f"rank, {missing / 1e9:.1f} GB more than its {fit.capacity_bytes / 1e9:.1f} GB. "
        f"Use {' or '.join(remedies)}."
    )
