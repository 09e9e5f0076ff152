"""All that one rank of a pipeline stage does in an iteration, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workloads.kernel_rank import Timing
from workloads.kernel_times import host_dispatch_s
from workloads.training.layer import Shapes, column_backward, enter, forward, leave, norm
from workloads.training.layer import backward as layer_backward
from workloads.training.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    rank_layer_parameters,
    stage_layers,
    stage_parameters,
)
from workloads.training.ops import Catalog, Ops, join, past_asynchronous, repeat
from workloads.training.pipeline import order
from workloads.training.steps import (
    CC,
    CC_DP,
    ENGINE,
    HOST,
    NOTHING,
    RECEIVE,
    RECEIVE_BACK,
    SEND,
    Step,
    collective,
    kernel,
)

LEAST_HOST_S = 1e-6
"""Time to issue a step below which a host never holds a chip up [s]."""
LOSS_PASSES = 7
"""Over the logits in fp32, one kernel a step: written by the cast, read for the maximum, read and
written by the difference and the exponential, read for the sum (Megatron-LM's cross entropy)."""
LOSS_GRADIENT_BYTES = 22
"""A logit: the division and the target's difference read and written in fp32, read by the cast,
written in bf16."""


def stage_ops(shapes: Shapes, stage: int, catalog: Catalog) -> Ops:
    """Ops of a rank of a stage, gradients and optimizer included."""
    plan = shapes.plan
    make = Builder(shapes, stage, catalog)
    backward, microbatch = order(plan.schedule, plan.pp, stage, plan.microbatches)
    there, again = make.forward(), make.backward()
    last = make.last_backward() if plan.overlap != "none" else again
    blocks = [make.start()]
    for goes_back, number in zip(backward.tolist(), microbatch.tolist(), strict=True):
        one = there if not goes_back else last if number == plan.microbatches - 1 else again
        blocks.append(one.of_microbatch(number))
    blocks.append(make.finish())
    ops = join(blocks)
    beside = {"none": (), "dp": (CC_DP,), "all": (CC_DP, SEND)}[plan.overlap]
    return past_asynchronous(ops, np.isin(catalog.column("stream")[ops.step], beside))


class Builder:
    """Makes the blocks of one stage.

    Attributes
    ----------
    shapes : Shapes
    stage : int
    catalog : Catalog
        Numbers the steps.
    """

    def __init__(self, shapes: Shapes, stage: int, catalog: Catalog):
        self.shapes = shapes
        self.stage = stage
        self.catalog = catalog
        self.first = stage == 0
        self.last = stage == shapes.plan.pp - 1
        count = stage_layers(shapes.model, shapes.plan)
        self.layers = np.arange(stage * count, (stage + 1) * count)

    def forward(self) -> Ops:
        """One microbatch forward."""
        s = self.shapes
        begin = _embedding(s) if self.first else [self._receive("forward", RECEIVE)]
        end = _output(s) if self.last else [self._send("forward")]
        layers = repeat(self.catalog.ops(forward(s)), self.layers)
        return join([self.catalog.ops(begin), self._issued(layers), self.catalog.ops(end)])

    def backward(self) -> Ops:
        """One microbatch backward."""
        layers = repeat(self.catalog.ops(layer_backward(self.shapes)), self.layers[::-1])
        return join([self._begin_backward(), self._issued(layers), self._end_backward()])

    def last_backward(self) -> Ops:
        """The last microbatch backward: each layer's gradients leave as soon as they are whole."""
        block = [*layer_backward(self.shapes), *self._reduce("layer", self._layer_parameters())]
        layers = repeat(self.catalog.ops(block), self.layers[::-1])
        rest = self._reduce("rest", self._other_parameters())
        return join(
            [
                self._begin_backward(),
                self._issued(layers),
                self._end_backward(),
                self.catalog.ops(rest),
            ]
        )

    def _issued(self, layers: Ops) -> Ops:
        """Let a pass over the layers end no sooner than an eager host has issued its kernels.

        The host runs ahead of the chip within a pass and waits for what the pass begins with.
        """
        dispatch_s = host_dispatch_s(self.shapes.chip, parts=self.shapes.parts)
        if dispatch_s < LEAST_HOST_S:
            return layers
        streams = self.catalog.column("stream")[layers.step]
        kernels = int(np.isin(streams, (ENGINE, CC)).sum())
        issue = self.catalog.ops([Step("host.issue", "host", HOST, kernels * dispatch_s)])
        taken_up = self.catalog.ops([kernel("host.wait", Timing(0.0, "measured"))])
        beside = layers.back.copy()
        beside[:1] += beside[:1] == 1  # the first kernel waits for what the pass begins with
        back = np.array([len(layers) + 1], np.int32)
        return join([issue, replace(layers, back=beside), replace(taken_up, back=back)])

    def _begin_backward(self) -> Ops:
        begin = (
            _output_backward(self.shapes)
            if self.last
            else [self._receive("backward", RECEIVE_BACK)]
        )
        return self.catalog.ops(begin)

    def _end_backward(self) -> Ops:
        end = _embedding_backward(self.shapes) if self.first else [self._send("backward")]
        return self.catalog.ops(end)

    def start(self) -> Ops:
        """With overlap and ZeRO-1: gather what the step before has updated, layer by layer."""
        if self.shapes.plan.overlap == "none":
            return self.catalog.ops([])
        rest = self.catalog.ops(self._gather("rest", self._other_parameters()))
        block = self.catalog.ops(self._gather("layer", self._layer_parameters()))
        return join([rest, repeat(block, self.layers)])

    def finish(self) -> Ops:
        """Reduce gradients, update parameters, gather them where the update was sharded."""
        plan = self.shapes.plan
        owned = stage_parameters(self.shapes.model, plan, self.stage)
        tied = self._tied()
        update = self._update(owned)
        if plan.overlap != "none":
            return self.catalog.ops([*tied, *update])
        return self.catalog.ops(
            [*tied, *self._reduce("all", owned), *update, *self._gather("all", owned)]
        )

    def _layer_parameters(self) -> int:
        return rank_layer_parameters(self.shapes.model, self.shapes.plan)

    def _other_parameters(self) -> int:
        owned = stage_parameters(self.shapes.model, self.shapes.plan, self.stage)
        return owned - len(self.layers) * self._layer_parameters()

    def _reduce(self, what: str, parameters: int) -> list[Step]:
        plan = self.shapes.plan
        if plan.dp * plan.cp == 1 or not parameters:
            return []
        op = "reduce-scatter" if plan.zero else "all-reduce"
        size = GRADIENT_BYTES * parameters
        return [collective(f"gradients.{what}", "dp", op, size, stream=CC_DP)]

    def _gather(self, what: str, parameters: int) -> list[Step]:
        plan = self.shapes.plan
        if plan.dp * plan.cp == 1 or not plan.zero or not parameters:
            return []
        size = WEIGHT_BYTES * parameters
        return [collective(f"parameters.{what}", "dp", "all-gather", size, stream=CC_DP)]

    def _update(self, owned: int) -> list[Step]:
        """Adam: gradient, master copy, mean and variance read, all but the gradient written."""
        plan = self.shapes.plan
        sharded = owned // (plan.dp * plan.cp) if plan.zero else owned
        touched = (GRADIENT_BYTES + 2 * OPTIMIZER_BYTES + WEIGHT_BYTES) * max(1, sharded)
        return [kernel("optimizer.step", self.shapes.stream(touched), "optimizer")]

    def _tied(self) -> list[Step]:
        """Sum the gradients of an embedding that the first and the last stage both hold."""
        model, plan = self.shapes.model, self.shapes.plan
        if not model.tied_embeddings or plan.pp == 1 or not (self.first or self.last):
            return []
        size = GRADIENT_BYTES * -(-model.vocab // plan.tp) * model.hidden
        return [Step("embedding.tie", "pp", CC_DP, 0.0, size, "tie", "all-reduce")]

    def _send(self, way: str) -> Step:
        return Step(f"{way}.send", "pp", SEND, 0.0, self._carried(), way, "send")

    def _receive(self, way: str, stream: int) -> Step:
        return Step(
            f"{way}.receive", "pp", stream, 0.0, self._carried(), way, "send", after=NOTHING
        )

    def _carried(self) -> int:
        """Activations between stages; with sequence parallelism each rank sends its part."""
        return self.shapes.wide_bytes // self.shapes.plan.sp


def _vocabulary(shapes: Shapes) -> int:
    return -(-shapes.model.vocab // shapes.plan.tp)


def _embedding(shapes: Shapes) -> list[Step]:
    """Look up; ranks of a tensor-parallel group hold parts of the vocabulary."""
    return [
        kernel("embedding.look-up", shapes.gather(2 * shapes.wide_bytes)),
        *leave(shapes, "embedding"),
    ]


def _embedding_backward(shapes: Shapes) -> list[Step]:
    return [
        *enter(shapes, "embedding.gradient"),
        kernel("embedding.add", shapes.gather(2 * shapes.wide_bytes)),
    ]


def _output(shapes: Shapes) -> list[Step]:
    """Final norm, logits of this rank's part of the vocabulary, and the loss."""
    t, h, columns = shapes.tokens, shapes.model.hidden, _vocabulary(shapes)
    sums = [collective("loss.sums", "tp", "all-reduce", 2 * 4 * t)] if shapes.plan.tp > 1 else []
    return [
        norm(shapes, "output.norm"),
        *enter(shapes, "output"),
        kernel("output.logits", shapes.gemm(t, columns, h)),
        kernel("loss", shapes.stream(LOSS_PASSES * 4 * t * columns)),
        *sums,
    ]


def _output_backward(shapes: Shapes) -> list[Step]:
    columns = _vocabulary(shapes)
    gradient: Sequence[Step] = [
        kernel("loss.data", shapes.stream(LOSS_GRADIENT_BYTES * shapes.tokens * columns))
    ]
    return [*gradient, *column_backward(shapes, "output", "output.logits", columns)]
