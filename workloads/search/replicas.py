"""What replicas cost a stage: gradients and parameters that travel over dp, and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from topologies.catalogue import Catalogue
from workloads.model import Model
from workloads.training.layer import Shapes
from workloads.training.ops import Catalog
from workloads.training.plan import ParallelPlan
from workloads.training.stage import Builder
from workloads.training.steps import CC_DP, Step

Talk = Callable[[Step], float]
"""Time of a communication [s]."""


@dataclass(frozen=True)
class Replicas:
    """Times of a stage that its passes do not contain [s].

    Attributes
    ----------
    optimizer_s : float
        Update of the parameters.
    after_s : float
        Communication after the last backward pass that hides behind nothing, by program.
    layer_reduce_s, rest_reduce_s : float
        Of the gradients of one layer, sent while the backward pass goes on, and of what is left.
    layer_gather_s, rest_gather_s : float
        Of the parameters, gathered before and during the first forward pass.
    """

    optimizer_s: float
    after_s: float
    layer_reduce_s: float = 0.0
    rest_reduce_s: float = 0.0
    layer_gather_s: float = 0.0
    rest_gather_s: float = 0.0


def replicas(
    model: Model, plan: ParallelPlan, stage: int, chip: str, parts: Catalogue, talk: Talk
) -> Replicas:
    """Time what a stage does besides its passes; parameters as for ``passes``."""
    catalog = Catalog()
    Builder(Shapes(model, plan, chip, parts), stage, catalog).finish()
    optimizer_s = sum(step.seconds for step in catalog.steps if step.what == "optimizer")
    after_s = sum(talk(step) for step in catalog.steps if step.axis)
    if plan.overlap == "none" or plan.dp * plan.cp == 1:
        return Replicas(optimizer_s, after_s)
    # One layer a stage shows the sizes of a layer and of the rest; only the count differs.
    small = replace(model, layers=plan.pp)
    beside = Catalog()
    make = Builder(Shapes(small, plan, chip, parts), stage, beside)
    make.start()
    make.last_backward()
    times = {step.name: talk(step) for step in beside.steps if step.stream == CC_DP}
    return Replicas(
        optimizer_s,
        after_s,
        times.get("gradients.layer", 0.0),
        times.get("gradients.rest", 0.0),
        times.get("parameters.layer", 0.0),
        times.get("parameters.rest", 0.0),
    )
