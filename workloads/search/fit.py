"""Which candidates fit in memory, and by how much the others do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule import BoolArray, IntArray
from topologies.catalogue import catalogue
from topologies.errors import InputError
from workloads.search.candidates import Candidates
from workloads.training.memory import worst
from workloads.training.plan import ParallelPlan


@dataclass(frozen=True, eq=False)
class Fit:
    """Memory of every candidate, on the rank that needs most.

    Attributes
    ----------
    total_bytes : int64 array (candidates,)
    capacity_bytes : int64 array (candidates,)
    """

    total_bytes: IntArray
    capacity_bytes: IntArray

    @property
    def fits(self) -> BoolArray:
        """Whether each candidate fits, bool (candidates,)."""
        return self.total_bytes <= self.capacity_bytes


MATTERS = ("tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "zero", "schedule", "recompute")


def fit(found: Candidates) -> Fit:
    """Memory of every candidate, by :mod:`workloads.training.memory`.

    Raises
    ------
    InputError
        When no candidate fits: which comes nearest, and by how many bytes it misses.
    """
    parts, chip = found.cluster.catalogue or catalogue(), found.cluster.chip
    known: dict[tuple[object, ...], tuple[int, int]] = {}
    sizes = np.empty((len(found), 2), np.int64)
    for row, plan in enumerate(found.plans):
        # The order of the axes changes where ranks are, not what they hold.
        key = (*(getattr(plan, name) for name in MATTERS), plan.sequence_parallel)
        if key not in known:
            needed = worst(found.model, plan, parts, chip)
            known[key] = (needed.total, needed.capacity)
        sizes[row] = known[key]
    made = Fit(sizes[:, 0], sizes[:, 1])
    if not made.fits.any():
        raise InputError(_nothing_fits(found, made))
    return made


def _nothing_fits(found: Candidates, made: Fit) -> str:
    over = made.total_bytes - made.capacity_bytes
    nearest = int(np.argmin(over))
    plan, missing = found.plans[nearest], int(over[nearest])
    return (
        f"none of {len(found):,} plans for {found.model.name} fits on {found.cluster.name}: the "
        f"nearest, {describe(plan)}, needs {made.total_bytes[nearest]:,} bytes a rank, "
        f"{missing:,} more than its {made.capacity_bytes[nearest]:,}. Use more chips, a shorter "
        "--seq, or fewer stated fields."
    )


def describe(plan: ParallelPlan) -> str:
    """A plan in one line, without what does not matter to it.

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
    return ", ".join(words)


def _above(plan: ParallelPlan, name: str) -> bool:
    return bool(getattr(plan, name) > 1)
