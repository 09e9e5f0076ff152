"""Predictors by kind of row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments.validation.predictions.outcome import Outcome
from experiments.validation.reading.columns import Kind, Value
from topologies.catalogue.catalogue import Catalogue

Predictor = Callable[[Mapping[str, Value], Catalogue | None], Outcome]
"""Takes the values of a row, and a catalogue in place of the shipped one."""


def predictor(kind: Kind) -> Predictor:
    """Return the predictor of a kind of rows; its imports are delayed until then.

    It keeps the simulated steps of training rows, so take a new one for each table.
    """
    if kind.name == "kernel":
        from experiments.validation.predictions.kernels import predict as predict_kernel

        return predict_kernel
    if kind.name == "collective":
        from experiments.validation.predictions.collectives import predict as predict_collective

        return predict_collective
    if kind.name == "serving":
        from experiments.validation.predictions.serving import predict as predict_serving

        return predict_serving
    if kind.name == "layer":
        from experiments.validation.predictions.layers import predict as predict_layer

        return predict_layer
    if kind.name == "memory":
        from experiments.validation.predictions.memory import predict as predict_memory

        return predict_memory
    if kind.name == "job":
        from experiments.validation.predictions.jobs import predict as predict_job

        return predict_job
    from experiments.validation.predictions.training import Steps

    return Steps().predict
