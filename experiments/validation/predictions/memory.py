"""Predictions of memory rows: the memory of a rank, and whether it fits; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.validation.conditions.recipes import recipe
from experiments.validation.conditions.row_defaults import filled
from experiments.validation.predictions.outcome import Outcome
from experiments.validation.predictions.training import model_of, plan_of
from experiments.validation.reading.machines import machines_for
from topologies.catalogue.catalogue import Catalogue
from workloads.training.memory.memory import worst


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Memory [B] of the rank that needs most, and 1 where it fits, else 0.

    ``memory_bytes`` is allocated at the worst moment and ``reserved_bytes`` held by the framework's
    allocator; ``states_bytes`` are weights, gradients and optimizer.
    """
    row = filled(values)
    plan, used = plan_of(row.values), recipe(row.values)
    # Frameworks with separate attention kernels date from when training used dropout.
    model = replace(model_of(row.values), dropout=plan.attention == "unfused")
    parts = used.numbers(catalogue)
    needed = worst(model, plan, parts, machines_for(row.values["cluster"], 1).chip)
    grades = {"framework": f"assumed: {used.label}"}
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
