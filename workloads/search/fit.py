"""Candidates that fit in memory, those that save more than they need to, and the missing bytes.

To shard more than the optimizer's state, or to compute layers again, costs time and buys memory:
such a plan is left out where the same plan with less of it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from topologies.arrays import BoolArray, IntArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.search.candidates import RECOMPUTE, Candidates
from workloads.training.layers.adapters import whole
from workloads.training.layers.data_parallel import sharded
from workloads.training.memory.memory import worst
from workloads.training.plan.parameters import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    Share,
    kind_shares,
    layer_weight_bytes,
)
from workloads.training.plan.plan import ParallelPlan

NEEDLESS = {
    "zero": "more sharded over replicas than memory asks for",
    "recompute": "more computed again than memory asks for",
}
"""Fields that buy memory, and why plans that do so needlessly are left out."""
UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Fit:
    """Memory of the candidates, on the rank that needs most.

    Attributes
    ----------
    total_bytes : int64 array (candidates,)
        ``UNKNOWN`` for one that is left out; of parameters alone where these do not fit [B].
    capacity_bytes : int
        Memory of a rank [B].
    pruned : mapping of str to int
        Number of plans that were left out though they fit, by reason.
    """

    total_bytes: IntArray
    capacity_bytes: int
    pruned: Mapping[str, int]

    @property
    def fits(self) -> BoolArray:
        """Return whether each candidate is worth an estimate, bool (candidates,)."""
        weighed: BoolArray = self.total_bytes != UNKNOWN
        return weighed & (self.total_bytes <= self.capacity_bytes)

    @property
    def oversized(self) -> int:
        """Candidates that do not fit."""
        return int((self.total_bytes > self.capacity_bytes).sum())


def fit(
    candidates: Candidates,
    settled: Collection[str] = (),
    watch: Callable[[Sequence[Any], str], Iterable[Any]] = lambda items, _what: items,
    margin: float = 0.0,
) -> Fit:
    """Memory of every candidate, by :mod:`workloads.training.memory.memory`.

    Parameters
    ----------
    candidates : Candidates
    settled : collection of str
        Fields by which no plan is left out.
    watch : function
        Wraps the sequence of rows to show progress; it is given a word for the work.
    margin : float
        Share of a rank's memory that stays free.

    Raises
    ------
    InputError
        When no candidate fits: which comes nearest, and by how many bytes it misses.
    """
    catalogue, chip = candidates.cluster.catalogue or shipped_catalogue(), candidates.cluster.chip
    totals: dict[Hashable, int] = {}
    fitting: dict[Hashable, list[tuple[int, int]]] = {}
    total = np.full(len(candidates), UNKNOWN, np.int64)
    pruned = dict.fromkeys(NEEDLESS.values(), 0)
    capacity = worst(candidates.model, candidates.plans[0], catalogue, chip).capacity
    capacity -= int(margin * capacity)
    order = sorted(range(len(candidates)), key=lambda row: _savings(candidates.plans[row]))
    for row in watch(order, "weighed"):
        plan = candidates.plans[row]
        needless = _needless(_savings(plan), fitting.get(_alike(plan), ()), settled)
        if needless:
            pruned[NEEDLESS[needless]] += 1
            continue
        # The order of the axes changes where ranks are, not what they hold.
        key = (*_alike(plan)[1:], plan.zero, plan.recompute)
        if key not in totals:
            totals[key] = least_bytes(candidates.model, plan)
            if totals[key] <= capacity:
                totals[key] = worst(candidates.model, plan, catalogue, chip).total
        total[row] = totals[key]
        if total[row] <= capacity:
            fitting.setdefault(_alike(plan), []).append(_savings(plan))
    outcome = Fit(total, capacity, {reason: count for reason, count in pruned.items() if count})
    if not outcome.fits.any():
        raise InputError(_nothing_fits(candidates, outcome))
    return outcome


def least_bytes(model: Model, plan: ParallelPlan) -> int:
    """Weights, gradients and optimizer's state of a mean stage, without its ends [B].

    Of a plan that trains adapters or a part of the model, the weights alone.
    """
    counts = [model.each_layer.count(kind) for kind in model.kinds]
    pairs = list(zip(counts, kind_shares(model, plan), strict=True))
    held = Share(
        sum(count * parameters.dense for count, parameters in pairs) // plan.pp,
        sum(count * parameters.experts for count, parameters in pairs) // plan.pp,
    )
    sizes = ((3, layer_weight_bytes(plan)), (2, GRADIENT_BYTES), (1, OPTIMIZER_BYTES))
    return int(
        sum(
            size * sharded(plan.sharding >= level, held, plan.replicas, plan.expert_replicas)
            for level, size in (sizes if whole(plan) else sizes[:1])
        )
    )


def _savings(plan: ParallelPlan) -> tuple[int, int]:
    """Steps of sharding and recomputation that save memory."""
    return plan.sharding, RECOMPUTE.index(plan.recompute)


def _needless(
    saves: tuple[int, int], enough: Collection[tuple[int, int]], settled: Collection[str]
) -> str:
    """The field by which a plan saves more memory than needed, other fields equal; or nothing."""
    for zero, again in enough:
        if zero <= saves[0] and again <= saves[1]:
            if again < saves[1] and "recompute" not in settled:
                return "recompute"
            if 1 <= zero < saves[0] and "zero" not in settled:
                return "zero"
    return ""


SAME = ("order", *(
    field.name for field in fields(ParallelPlan) if field.name not in ("order", "zero", "recompute")
))  # fmt: skip
"""Fields of a plan that has the same degrees."""


def _alike(plan: ParallelPlan) -> tuple[Hashable, ...]:
    return tuple(getattr(plan, name) for name in SAME)


def _nothing_fits(candidates: Candidates, fit: Fit) -> str:
    catalogue, chip = candidates.cluster.catalogue or shipped_catalogue(), candidates.cluster.chip
    # Of some only the parameters were weighed: from the lightest on until the others are heavier.
    nearest, total = -1, 2**62
    for row in np.argsort(fit.total_bytes).tolist():
        if fit.total_bytes[row] >= total:
            break
        needed = worst(candidates.model, candidates.plans[row], catalogue, chip).total
        if needed < total:
            nearest, total = row, needed
    plan, missing = candidates.plans[nearest], total - fit.capacity_bytes
    return (
        f"none of {len(candidates):,} plans for {candidates.model.name} fits on "
        f"{candidates.cluster.name}: the nearest, {describe(plan)}, needs {total:,} bytes a rank, "
        f"{missing:,} more than its {fit.capacity_bytes:,}. Use more chips, a shorter "
        "--seq, or fewer stated fields."
    )


def describe(plan: ParallelPlan) -> str:
    """Describe a plan in one line, without fields that do not matter to it.

    Examples
    --------
    >>> describe(ParallelPlan(tp=8, dp=2, global_batch=4, recompute="full"))
    'tp 8, pp 1, dp 2, microbatch 1, zero 1, sequence parallel, recompute full'
    """
    words = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}"]
    words += [f"{name} {getattr(plan, name)}" for name in ("cp", "ep", "vpp") if _above(plan, name)]
    words.append(f"microbatch {plan.microbatch}")
    words += [f"zero {plan.zero}"] * (plan.dp > 1)
    words += ["sequence parallel"] * (plan.tp > 1 and plan.sequence_parallel)
    words += [f"schedule {plan.schedule}"] * (plan.pp > 1)
    words.append(f"recompute {plan.recompute}")
    words += [f"order {'-'.join(plan.order)}"] * (plan.pp > 1 and plan.dp > 1)
    words += [f"layers {'-'.join(map(str, plan.stage_layers))}"] * bool(plan.stage_layers)
    return ", ".join(words)


def _above(plan: ParallelPlan, name: str) -> bool:
    return bool(getattr(plan, name) > 1)
