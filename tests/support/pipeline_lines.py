"""Pipelines of equal stages for the model of a pipeline."""

import numpy as np

from workloads.search.pipeline_model import NOT, Line, Replicas, orders
from workloads.training.plan.schedules.registry import pipeline_schedule
from workloads.training.plan.schedules.schedule import BACKWARD, WEIGHT
from workloads.training.plan.stages import chunk_numbers


def on_chip(times):
    """Times of passes which the host issues in no time."""
    return np.stack([times, np.zeros_like(times)])


def line(stages, microbatches, schedule="1f1b", *, vpp=1, **changes):
    """A pipeline of one layer a chunk: 1 s forward, 2 s backward, half of it weights."""
    chunks, splits = stages * vpp, pipeline_schedule(schedule).splits_weights
    number, stage = chunk_numbers(schedule, stages, vpp)
    pipeline = Line(
        passes=orders(schedule, stages, microbatches, vpp),
        number=number,
        stage=stage,
        first=np.arange(chunks + 1),
        kind=np.zeros(chunks, np.int64),
        sparse=np.zeros(chunks, np.int64),
        layer_s=on_chip([[1.0] * 2, [1.0 if splits else 2.0] * 2, [1.0] * 2]),
        ends_s=np.zeros((3, 2, 3)),
        hop_s=np.zeros(stages),
        replicas=Replicas(
            gather_s=np.zeros((chunks, 2)), reduce_s=np.zeros((chunks, 2)),
            gather_rest_s=np.zeros(stages), reduce_rest_s=np.zeros(chunks),
            after_s=np.zeros(stages), tie_s=0.0,
        ),
        gathers=NOT,
        reduces=NOT,
        reduced_in=WEIGHT if splits else BACKWARD,
        sends_beside=True,
        dp_beside=True,
    )  # fmt: skip
    exchanged = {name: changes.pop(name) for name in Replicas._fields if name in changes}
    for name in {"gather_s", "reduce_s"} & set(exchanged):  # slow no kernel unless they say so
        if exchanged[name].ndim == 1:
            exchanged[name] = exchanged[name][:, None] * [1.0, 0.0]
    replicas = pipeline.replicas._replace(**exchanged)
    return pipeline._replace(replicas=replicas, **changes)
