"""Steps of each pass of a stage: of a microbatch forward or backward through a chunk of layers.

This module says which steps a pass has, in the order in which a rank runs them. ``pass_layout``
makes a table of ops from them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from topologies.arrays import IntArray
from workloads.training.layers.adapters import whole, without_frozen
from workloads.training.layers.layer import (
    backward,
    data_half,
    embedding,
    embedding_backward,
    forward,
    output,
    output_backward,
    weight_half,
)
from workloads.training.layers.replicas import ReplicaExchange, StageParameters, Stretch
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
from workloads.training.plan.schedules import FORWARD, WEIGHT

# Transfers between stages of a pipeline: activations forward, their gradients backward.

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
    """Return the step that sends the result of a chunk to the next chunk, if it is elsewhere."""
    # ``number``: number of the chunk in order of the model. ``way`` ("forward", "backward").
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
    """Size of a transfer between stages: each rank of a tensor-parallel group sends a part [B]."""
    # With sequence parallelism a rank has only this part. Without it every rank has the whole,
    # sends a part, and the next stage gathers the parts (arXiv 2104.04473, section 4.1;
    # Megatron-LM's default).
    return shapes.wide_bytes // shapes.plan.tp


Blocks = Sequence[Sequence[Sequence[LayerOp]]]
"""Steps of a layer of each kind, first with its activations recomputed, then with them kept."""
Gathered = tuple[IntArray, list[LayerOp]]
"""A stretch of layers, and the steps that gather its parameters before its first layer."""


@dataclass(frozen=True, eq=False)
class PassSteps:
    """Steps of one pass through a chunk."""

    # begin, end: steps before the first layer and after the last
    begin: list[LayerOp]
    end: list[LayerOp]
    blocks: Blocks  # steps of a layer, by its kind and by whether its activations are kept
    # Layers in the order of the pass, with the reductions that start after some of them
    stretches: list[Stretch]
    waits: list[LayerOp]  # time for which kernels wait for parameters and gradients of other ranks
    # Passes over the layers that the host issues; 0 if it issues them with another pass
    traced: int
    # Steps that gather embedding and output layer before a forward pass, under ZeRO-3
    gathered_edges: list[LayerOp] = field(default_factory=list)
    # (int array, list of LayerOp): steps that gather each layer, one layer ahead, under ZeRO-3
    gathered: list[Gathered] = field(default_factory=list)


class StagePasses:
    """Steps of the passes of one stage; the shapes may show a part of the plan of a ``job``."""

    def __init__(self, shapes: RankShapes, stage: int, job: ParallelPlan):
        self.shapes = shapes
        self.stage = stage
        self.job = job
        self.parameters = StageParameters(shapes, stage)
        self.exchange = ReplicaExchange(self.parameters, job)

    def steps(self, phase: int, chunk: int, *, last: bool) -> PassSteps:
        """Return the steps of a pass."""
        # ``phase``: ``FORWARD``, ``BACKWARD`` or ``WEIGHT``.
        if phase == FORWARD:
            return self._forward(chunk)
        if phase == WEIGHT:
            return self._weights(chunk, self._reduces(last))
        return self._backward(chunk, self._reduces(last))

    def likeness(self, phase: int, chunk: int, *, last: bool) -> Hashable:
        """Return a key that passes of any stages share if only their layers' numbers differ."""
        # The parameters are those of :meth:`steps`.
        layers, pipeline = self.parameters.chunks[chunk], self.shapes.plan.pipeline
        at_turn = pipeline.turns and self.stage in (0, self.shapes.plan.pp - 1)
        kinds = self.parameters.kinds[layers].tobytes(), self.parameters.kept[layers].tobytes()
        turned = chunk if pipeline.turns else 0
        reduces = phase != FORWARD and self._reduces(last)
        return phase, reduces, turned, self._begins(chunk), self._ends(chunk), at_turn, kinds

    def _forward(self, chunk: int) -> PassSteps:
        shapes, layers = self.shapes, self.parameters.chunks[chunk]
        begins, ends, number = self._begins(chunk), self._ends(chunk), self._number(chunk)
        sharded = shapes.plan.sharding == 3
        return PassSteps(
            begin=embedding(shapes) if begins else received(shapes, number, "forward"),
            end=output(shapes) if ends else sent(shapes, number, "forward"),
            blocks=[
                [forward(shapes.of_kind(kind), moe=kind.experts)] * 2 for kind in shapes.model.kinds
            ],
            stretches=self.exchange.stretches(layers, reduces=False)[0],
            waits=self.exchange.waits(layers, gathers=True, reduces=False),
            traced=1,
            gathered_edges=self.exchange.gathered_edges() if sharded and (begins or ends) else [],
            gathered=self._gathered(layers),
        )

    def _backward(self, chunk: int, reduces: bool) -> PassSteps:
        """Steps of a backward pass, which reduces each bucket of gradients once it is full."""
        # Where the schedule splits backward passes, this one has no gradients of weights.
        shapes, number = self.shapes, self._number(chunk)
        begins, ends = self._begins(chunk), self._ends(chunk)
        splits = shapes.plan.pipeline.splits_weights
        leaves = reduces and not splits
        begin = received(shapes, number, "backward")
        if ends:
            begin = without_frozen(shapes, output_backward(shapes))
        blocks = self._layers_backward()
        if splits:
            begin = data_half(begin)
            blocks = [[data_half(block) for block in kind] for kind in blocks]
        layers = self.parameters.chunks[chunk][::-1]
        stretches, left = self.exchange.stretches(layers, reduces=leaves)
        end = embedding_backward(shapes) if begins and whole(shapes.plan) else []
        if leaves:
            end = [*end, *self.exchange.reduced(left, edges=begins or ends)]
        return PassSteps(
            begin=begin,
            end=[*end, *sent(shapes, number, "backward")],
            blocks=blocks,
            stretches=stretches,
            waits=self.exchange.waits(layers, gathers=True, reduces=not splits),
            traced=2 if shapes.plan.recompute == "full" else 1,
            gathered=self._gathered(layers),
        )

    def _weights(self, chunk: int, reduces: bool) -> PassSteps:
        """Steps of a pass over gradients of weights, where the backward pass is split."""
        shapes, layers = self.shapes, self.parameters.chunks[chunk]
        begins, ends = self._begins(chunk), self._ends(chunk)
        stretches, left = self.exchange.stretches(layers[::-1], reduces=reduces)
        begin = without_frozen(shapes, output_backward(shapes)) if ends else []
        return PassSteps(
            begin=weight_half(begin),
            end=self.exchange.reduced(left, edges=begins or ends) if reduces else [],
            blocks=[[weight_half(block) for block in kind] for kind in self._layers_backward()],
            stretches=stretches,
            waits=self.exchange.waits(layers, gathers=False, reduces=True),
            traced=0,
        )

    def _layers_backward(self) -> Blocks:
        """Steps of a layer's backward pass, by its kind and whether its activations are kept."""
        return [
            [
                backward(self.shapes.of_kind(kind), moe=kind.experts, again=again)
                for again in (True, False)
            ]
            for kind in self.shapes.model.kinds
        ]

    def _gathered(self, layers: IntArray) -> list[Gathered]:
        if self.shapes.plan.sharding != 3:
            return []
        single_layers = (layers[place : place + 1] for place in range(len(layers)))
        return [(layer, self.exchange.gathered(layer)) for layer in single_layers]

    def _number(self, chunk: int) -> int:
        """Number in order of the model of a chunk of the stage."""
        plan = self.shapes.plan
        return plan.pipeline.number(plan.pp, self.stage, chunk)

    def _begins(self, chunk: int) -> bool:
        return self._number(chunk) == 0

    def _ends(self, chunk: int) -> bool:
        plan = self.shapes.plan
        return self._number(chunk) == plan.pp * plan.vpp - 1

    def _reduces(self, last: bool) -> bool:
        """Return whether a backward pass reduces gradients; under ZeRO-2 and 3 each pass does."""
        plan = self.shapes.plan
        return plan.sharding >= 2 or (last and plan.overlap != "none")
