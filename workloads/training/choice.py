"""Plans that a search found for a step whose degrees of parallelism nobody stated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from topologies.clusters.cluster import Cluster
from workloads.confidence.split_conformal import margin
from workloads.models.model import Model
from workloads.training.alternatives import training_features
from workloads.training.plan.plan import ParallelPlan

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "stage_layers")
"""Fields of which one that is stated makes a plan the user's own."""
BATCH_TOKENS = 64_000_000
"""Most tokens of a step unless stated; published runs train on up to 16 M (Llama 3) or 63 M
(DeepSeek-V3) at once."""


class RunnerUp(NamedTuple):
    """Plan that comes after the best one."""

    plan: ParallelPlan
    ratio: float  # its estimated time over that of the best plan
    tied: bool  # whether the ratio is within the error of a ratio of two predictions


@dataclass(frozen=True)
class Choice:
    """Outcome of a search for a plan."""

    considered: int  # plans that divide model, batch and cluster
    best: ParallelPlan  # plan with the shortest estimated step among those that fit in memory
    others: tuple[RunnerUp, ...]  # the next best plans
    # Fields of a plan that were stated, and so are the same in all plans
    stated: Collection[str] = ()
    # Estimated time of the data-parallel plan that the step has, over that of the best; None where
    # the step has the best plan.
    default_ratio: float | None = None


def is_open(stated: Mapping[str, Any]) -> bool:
    """Return whether no degree of parallelism is stated."""
    return all(stated.get(name) in (None, "", ()) for name in DEGREES)


def tied(
    model: Model, cluster: Cluster, best: ParallelPlan, other: ParallelPlan, ratio: float
) -> bool:
    """Return whether a plan's time over that of the best is within the error of a ratio."""
    # Plans of one search share the errors of machine, model and kernels, so their ratio is more
    # certain than either time.
    one, two = (training_features(model, plan, cluster) for plan in (best, other))
    return math.log(ratio) <= margin(one, two)


def describe(plan: ParallelPlan) -> str:
    """Describe a plan in one line, without fields that have no influence on it."""
    words = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}"]
    words += [
        f"{name} {getattr(plan, name)}" for name in ("cp", "ep", "vpp") if getattr(plan, name) > 1
    ]
    words.append(f"microbatch {plan.microbatch}")
    words += [f"zero {plan.zero}"] * (plan.dp > 1)
    words += ["sequence parallel"] * (plan.tp > 1 and plan.sequence_parallel)
    words += [f"schedule {plan.schedule}"] * (plan.pp > 1)
    words.append(f"recompute {plan.recompute}")
    words += [f"order {'-'.join(plan.order)}"] * (plan.pp > 1 and plan.dp > 1)
    words += [f"layers {'-'.join(map(str, plan.stage_layers))}"] * bool(plan.stage_layers)
    return ", ".join(words)
