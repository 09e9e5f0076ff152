"""Memory in use over the time of a simulated step: a constant part, and kept activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.plot.perfetto import MOST_CHIPS, Counter, counter
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.catalogue.catalogue import Catalogue
from workloads.models.model import Model
from workloads.training.memory.memory import chunk_activations, memory, stack_of
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import chunk_layers


def memory_in_use(
    trace: Trace, model: Model, plan: ParallelPlan, catalogue: Catalogue, chip: str
) -> list[Counter]:
    """Return the memory in use of each simulated rank, as a counter of its chip."""
    # Weights, gradients and optimizer states are in memory throughout the step. The activations of
    # a microbatch in a chunk of layers are in memory from the start of its first op there to the
    # end of its last. Buffers and fragments, which exist only for a moment, are not counted.
    labels = trace.schedule.labels
    if any(name not in labels for name in ("rank", "stage", "layer", "microbatch")):
        return []
    rank, stage, layer, microbatch = (
        np.asarray(labels[name]) for name in ("rank", "stage", "layer", "microbatch")
    )
    ran = (trace.times.start_ps >= 0) & (trace.times.end_ps > trace.times.start_ps)
    stack = stack_of(catalogue)
    in_use = []
    for number in np.unique(rank[ran])[:MOST_CHIPS].tolist():
        of_rank = np.flatnonzero((rank == number) & ran)
        its_stage = int(stage[of_rank[0]])
        kept = memory(model, plan, its_stage, catalogue, chip)
        constant = kept.weights + kept.gradients + kept.optimizer
        chunks = chunk_layers(model, plan, its_stage)
        sizes = [chunk_activations(model, plan, its_stage, k, stack) for k in range(plan.vpp)]
        passes = of_rank[(layer[of_rank] >= 0) & (microbatch[of_rank] >= 0)]
        start, end, chunk = _spans(trace, passes, layer, microbatch, chunks)
        held = np.concatenate([[constant], np.array(sizes, np.float64)[chunk]])
        spans = np.append(0, start), np.append(trace.total_ps, end)
        owner = int(trace.schedule.resources.owner[trace.schedule.resource[of_rank].max()])
        name = f"memory in use, rank {number}"
        in_use.append(counter(name, "B", *spans, held, chip=owner))
    return in_use


def _spans(
    trace: Trace, op: IntArray, layer: IntArray, microbatch: IntArray, chunks: Sequence[IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Start, end [ps] and chunk of each microbatch's activations in each chunk of layers."""
    chunk_of = np.full(max(int(chunk.max(initial=-1)) for chunk in chunks) + 1, -1, np.int64)
    for number, layers in enumerate(chunks):
        chunk_of[layers] = number
    pair = microbatch[op].astype(np.int64) * len(chunks) + chunk_of[layer[op]]
    pairs, place = np.unique(pair, return_inverse=True)
    start = np.full(len(pairs), np.iinfo(np.int64).max)
    end = np.zeros(len(pairs), np.int64)
    np.minimum.at(start, place, trace.times.start_ps[op])
    np.maximum.at(end, place, trace.times.end_ps[op])
    return start, end, pairs % len(chunks)
