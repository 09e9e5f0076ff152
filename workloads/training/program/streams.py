"""Streams: the ops that every rank of a pipeline stage runs, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, IntArray, distinct
from workloads.training.layers.steps import CC_DP, ENGINE
from workloads.training.program.ops import Catalog, Ops, edges


@dataclass(frozen=True, eq=False)
class Stream:
    """Ops that every rank of one stage runs.

    Attributes
    ----------
    ops : Ops
    src, dst : int64 array (edges,)
        Op ``dst`` waits for op ``src``; in order of ``dst``.
    contends : bool array (ops,)
        Ops that may ask for more than the rank's memory gives.
    """

    ops: Ops
    src: IntArray
    dst: IntArray
    contends: BoolArray


class Marks(NamedTuple):
    """Properties of all different steps, arrays (steps,): stream, updates, gathered parameters."""

    stream: IntArray
    updates: BoolArray
    gathers: BoolArray


def marks_of(catalog: Catalog) -> Marks:
    """Read the properties of all steps of a catalog."""
    updates = [step.what == "optimizer" for step in catalog.steps]
    gathers = [step.name.startswith("parameters.") for step in catalog.steps]
    return Marks(catalog.column("stream"), np.array(updates, np.bool_), np.array(gathers, np.bool_))


def stream_of(ops: Ops, marks: Marks) -> Stream:
    """Find what each op of a rank waits for."""
    stream = marks.stream[ops.step]
    pairs = edges(ops, stream), _gradients(ops, stream, marks), _parameters(ops, stream, marks)
    src, dst = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # By op that waits, each edge once.
    dst, src = np.divmod(distinct(dst * len(ops) + src), max(1, len(ops)))
    return Stream(ops, src, dst, np.zeros(len(ops), np.bool_))


def _gradients(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Return the reductions of gradients in the background, and the updates that wait for them.

    An update waits for the last reduction before it, as the stream is in order.
    """
    replicas = np.flatnonzero(stream == CC_DP)
    updates = np.flatnonzero(marks.updates[ops.step])
    before = np.searchsorted(replicas, updates)
    late = before > 0
    return replicas[before[late] - 1], updates[late]


def _parameters(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Return the parameters gathered in the background, and the kernels that wait for them.

    They are needed by the next kernel of their layer, those outside of layers by the next of none.
    """
    gathered = np.flatnonzero(marks.gathers[ops.step])
    if not len(gathered):
        return gathered, gathered
    kernels = np.flatnonzero(stream == ENGINE)
    span = np.int64(len(ops))
    layer = ops.layer.astype(np.int64) + 1
    users = np.sort(layer[kernels] * span + kernels)
    at = np.searchsorted(users, layer[gathered] * span + gathered)
    user = users[np.minimum(at, len(users) - 1)]
    used = (at < len(users)) & (user // span == layer[gathered])
    return gathered[used], user[used] % span
