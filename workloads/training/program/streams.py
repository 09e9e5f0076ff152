"""Streams: the ops that every rank of a pipeline stage runs, and their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, IntArray, distinct
from workloads.training.layers.steps import CC_DP, ENGINE
from workloads.training.program.ops import Catalog, Ops, edges
from workloads.training.program.stage import StageOps


@dataclass(frozen=True, eq=False)
class Stream:
    """Ops that every rank of one stage runs."""

    ops: Ops
    # src, dst: (edges,): dependencies: op ``dst`` waits for op ``src``. They are sorted by ``dst``.
    src: IntArray
    dst: IntArray
    contends: BoolArray  # (ops,): ops that may contend for the rank's memory
    # (passes + 1,): first op of each pass of the first iteration, then the op after the last pass
    begins: IntArray
    # Digest of the contents that all but ``contends`` follow from; streams of one origin have the
    # same ops and dependencies
    origin: bytes


class Marks(NamedTuple):
    """Properties of all different steps."""

    stream: IntArray  # (steps,): stream of each step
    updates: BoolArray  # (steps,): steps that update parameters
    gathers: BoolArray  # (steps,): steps that gather parameters


def marks_of(catalog: Catalog) -> Marks:
    """Return the properties of all steps of a catalog."""
    updates = [step.what == "optimizer" for step in catalog.steps]
    gathers = [step.name.startswith("parameters.") for step in catalog.steps]
    return Marks(catalog.column("stream"), np.array(updates, np.bool_), np.array(gathers, np.bool_))


def stream_of(stage: StageOps, marks: Marks, origin: bytes) -> Stream:
    """Return the ops of a rank with their dependencies; ``origin`` is that of :class:`Stream`."""
    ops = stage.ops
    stream = marks.stream[ops.step]
    pairs = edges(ops, stream), _gradients(ops, stream, marks), _parameters(ops, stream, marks)
    src, dst = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # Sort edges by the op that waits, and keep each edge once.
    dst, src = np.divmod(distinct(dst * len(ops) + src), max(1, len(ops)))
    return Stream(ops, src, dst, np.zeros(len(ops), np.bool_), stage.begins, origin)


def _gradients(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Edges from reductions of gradients in the background to the updates that wait for them.

    An update waits for the last reduction before it, as their stream runs in order.
    """
    reductions = np.flatnonzero(stream == CC_DP)
    updates = np.flatnonzero(marks.updates[ops.step])
    before = np.searchsorted(reductions, updates)
    waits = before > 0
    return reductions[before[waits] - 1], updates[waits]


def _parameters(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Edges from gathers of parameters in the background to the kernels that wait for them.

    The next kernel of their layer needs them; parameters outside of layers are needed by the next
    kernel that belongs to no layer.
    """
    gathered = np.flatnonzero(marks.gathers[ops.step])
    if not len(gathered):
        return gathered, gathered
    kernels = np.flatnonzero(stream == ENGINE)
    # Kernels sorted by layer, then by row, each as one number.
    span = np.int64(len(ops))
    layer = ops.layer.astype(np.int64) + 1
    users = np.sort(layer[kernels] * span + kernels)
    place = np.searchsorted(users, layer[gathered] * span + gathered)
    user = users[np.minimum(place, len(users) - 1)]
    used = (place < len(users)) & (user // span == layer[gathered])
    return gathered[used], user[used] % span
