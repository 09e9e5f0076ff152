"""Predictions of layer rows: one layer of a plan forward and backward, on an idle machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from experiments.validation.predictions.outcome import Outcome, unsupported
from experiments.validation.predictions.row_defaults import filled
from experiments.validation.predictions.training import question
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.kernels.chip_share import worst
from workloads.training.frameworks.framework import framework_of
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import ENGINE, NOTHING, PREVIOUS, LayerOp
from workloads.training.program.groups import exchange_ps


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time of a dense layer's passes over one microbatch [s], tensor parallelism included."""
    row = filled(values)
    model, machine, plan = question(row.values, catalogue)
    if plan.cp > 1 or model.experts:
        return unsupported("a layer with context parallelism or experts. Use iteration_s.")
    machine = framework_of(plan, machine).on(machine, model)
    shapes = RankShapes(model, plan, machine.chip, machine.catalogue or shipped_catalogue())
    there, back = forward(shapes), backward(shapes)
    grades = {
        "kernels": worst(*(step.provenance for step in there if step.provenance)),
        "framework": f"stated: {plan.framework}" if plan.names_framework else "assumed",
    }
    if row.assumed:
        grades["columns"] = f"assumed: {', '.join(row.assumed)}"
    there_s, back_s = (length_s(steps, machine, plan.tp) for steps in (there, back))
    return Outcome({"forward_s": there_s, "backward_s": back_s}, provenance=grades)


def length_s(steps: Sequence[LayerOp], machine: Cluster, tp: int) -> float:
    """Time at which the last of the steps ends [s], where those of one stream run in order.

    The ranks, on the first ``tp`` chips, are alike, so all start a communication at the same time.
    """
    ended: dict[str, float] = {PREVIOUS: 0.0, NOTHING: 0.0}
    free: dict[int, float] = {}
    for step in steps:
        start = max(free.get(step.stream, 0.0), ended[step.after])
        end = start + _step_s(step, machine, tp)
        free[step.stream] = ended[PREVIOUS] = ended[step.name] = end
    return max(free.values(), default=0.0)


def _step_s(step: LayerOp, machine: Cluster, tp: int) -> float:
    if step.stream == ENGINE:
        return step.seconds
    return exchange_ps(machine, np.arange(tp), step.collective, step.size_bytes) / PS_PER_S
