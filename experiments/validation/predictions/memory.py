"""Predictions of memory rows: the memory of a rank, and whether it fits; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.validation.predictions.outcome import Outcome
from experiments.validation.predictions.row_defaults import filled
from experiments.validation.predictions.training import question
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from workloads.training.frameworks.framework import framework_of
from workloads.training.memory.memory import worst


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Memory [B] of the rank that needs most, and 1 where it fits, else 0.

    ``memory_bytes`` is allocated at the worst moment and ``reserved_bytes`` held by the framework's
    allocator; ``states_bytes`` are weights, gradients and optimizer.
    """
    row = filled(values)
    model, machine, plan = question(row.values, catalogue)
    # Frameworks with separate attention kernels date from when training used dropout.
    model = replace(model, dropout=plan.attention == "unfused")
    numbers = framework_of(plan, machine).on(machine, model).catalogue or shipped_catalogue()
    needed = worst(model, plan, numbers, machine.chip)
    grades = {"framework": f"stated: {plan.framework}" if plan.names_framework else "assumed"}
    if row.assumed:
        grades["columns"] = f"assumed: {', '.join(row.assumed)}"
    return Outcome(
        {
            "memory_bytes": float(needed.allocated),
            "reserved_bytes": float(needed.reserved),
            "activation_bytes": float(needed.activations),
            "states_bytes": float(needed.weights + needed.gradients + needed.optimizer),
            "fits": float(needed.fits),
        },
        provenance=grades,
    )
