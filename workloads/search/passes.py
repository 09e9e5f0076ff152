"""How long one microbatch takes a stage, forward and backward, as a straight line in its layers.

The blocks of the simulated iteration are laid out for a stage of one layer and of two, and timed
by following what waits for what; all further layers are as the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from topologies.catalogue import Catalogue
from workloads.model import Model
from workloads.training.layer import Shapes
from workloads.training.ops import Catalog, Ops
from workloads.training.plan import ParallelPlan
from workloads.training.stage import Builder
from workloads.training.steps import ENGINE, Step

Talk = Callable[[Step], float]
"""Time of a communication [s]."""


@dataclass(frozen=True)
class Span:
    """Time of a block of ops, and how much of it is arithmetic.

    Attributes
    ----------
    total_s : float
        From its first op to its last [s].
    busy_s : float
        The engine at work [s].
    """

    total_s: float
    busy_s: float

    def minus(self, other: Span) -> Span:
        """The difference of two spans."""
        return Span(self.total_s - other.total_s, self.busy_s - other.busy_s)


@dataclass(frozen=True)
class Passes:
    """Both passes of a microbatch.

    Attributes
    ----------
    layer : tuple of Span
        One further layer, forward and backward.
    first, last : tuple of Span
        What the first stage (embedding) and the last (output, loss) do besides.
    """

    layer: tuple[Span, Span]
    first: tuple[Span, Span]
    last: tuple[Span, Span]


def passes(model: Model, plan: ParallelPlan, chip: str, parts: Catalogue, talk: Talk) -> Passes:
    """Time the passes of a plan; its pipeline and its replicas do not matter.

    Parameters
    ----------
    model : Model
    plan : ParallelPlan
    chip : str
        Catalogue part.
    parts : Catalogue
    talk : function of a step
        Time of its communication [s]; what is sent between stages is not asked for.
    """
    once = plan.dp * plan.microbatch
    alone = replace(plan, pp=3, vpp=1, global_batch=once, schedule="1f1b")
    one, two = (Shapes(replace(model, layers=3 * count), alone, chip, parts) for count in (1, 2))
    middle, longer = _both(one, 1, talk), _both(two, 1, talk)
    return Passes(
        layer=_minus(longer, middle),
        first=_minus(_both(one, 0, talk), middle),
        last=_minus(_both(one, 2, talk), middle),
    )


def _both(shapes: Shapes, stage: int, talk: Talk) -> tuple[Span, Span]:
    catalog = Catalog()
    make = Builder(shapes, stage, catalog)
    blocks = make.forward(), make.backward()
    there, back = (span(block, catalog.steps, talk) for block in blocks)
    return there, back


def _minus(some: tuple[Span, Span], others: tuple[Span, Span]) -> tuple[Span, Span]:
    there, back = (one.minus(other) for one, other in zip(some, others, strict=True))
    return there, back


def span(ops: Ops, steps: list[Step], talk: Talk) -> Span:
    """Follow a block: an op starts when its stream is free and what it waits for has ended."""
    free: dict[int, float] = {}
    ends: list[float] = []
    busy = 0.0
    for number, back in zip(ops.step.tolist(), ops.back.tolist(), strict=True):
        step = steps[number]
        ready = ends[-back] if 0 < back <= len(ends) else 0.0
        length = step.seconds if not step.axis else talk(step) if step.axis in INSIDE else 0.0
        end = max(ready, free.get(step.stream, 0.0)) + length
        free[step.stream] = end
        ends.append(end)
        busy += length * (step.stream == ENGINE)
    return Span(float(np.max(ends, initial=0.0)), busy)


INSIDE = ("tp", "cp", "ep", "etp")
"""Axes that communicate within a pass; what goes between stages is counted with the pipeline."""
