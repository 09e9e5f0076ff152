"""Transfers between stages of a pipeline: activations forward, their gradients backward."""

from __future__ import annotations

from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import (
    NOTHING,
    RECEIVE,
    RECEIVE_BACK,
    RETURN,
    RETURN_BACK,
    SEND,
    LayerOp,
    collective,
)
from workloads.training.plan.plan import ParallelPlan

RETURNING = ".return"
"""Ending of the names of axes on which the model is on its way back to the first stage."""
STREAMS = {
    "forward": RECEIVE,
    "backward": RECEIVE_BACK,
    "forward" + RETURNING: RETURN,
    "backward" + RETURNING: RETURN_BACK,
}
"""Stream that receives the transfers of each axis."""


def sent(shapes: RankShapes, number: int, way: str) -> list[LayerOp]:
    """Return the step that sends the result of a chunk to the next chunk, if it is elsewhere.

    ``number``: number of the chunk in order of the model. ``way`` ("forward", "backward").
    """
    axis = _axis(shapes.plan, number, way, leaves=True)
    return [LayerOp(f"{way}.send", "pp", SEND, 0.0, _carried(shapes), axis, "send")] if axis else []


def received(shapes: RankShapes, number: int, way: str) -> list[LayerOp]:
    """Return the steps that receive a chunk's input, and gather it where ranks need all of it."""
    plan, size = shapes.plan, _carried(shapes)
    axis = _axis(plan, number, way, leaves=False)
    if not axis:
        return []
    receive = LayerOp(f"{way}.receive", "pp", STREAMS[axis], 0.0, size, axis, "send", after=NOTHING)
    if plan.sp == plan.tp:
        return [receive]
    return [receive, collective(f"{way}.gather", "tp", "all-gather", shapes.wide_bytes)]


def _axis(plan: ParallelPlan, number: int, way: str, *, leaves: bool) -> str:
    """Axis of a chunk's transfer; empty at an end of the model and between chunks of a stage."""
    # Chunk whose result is sent forward, or whose gradient comes back.
    before = number - ((way == "forward") != leaves)
    if not 0 <= before < plan.pp * plan.vpp - 1:
        return ""
    if not plan.pipeline.turns:
        return way
    turn = (before + 1) % plan.pp == 0
    return "" if turn else way + RETURNING * (before // plan.pp % 2)


def _carried(shapes: RankShapes) -> int:
    """Size of a transfer between stages: each rank of a tensor-parallel group sends a part [B].

    With sequence parallelism a rank has only this part. Without it every rank has the whole, sends
    a part, and the next stage gathers the parts (arXiv 2104.04473, section 4.1; Megatron-LM's
    default).
    """
    return shapes.wide_bytes // shapes.plan.tp
