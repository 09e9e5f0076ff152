"""The steps at both ends of a model: the embedding, and the output layer with the loss."""

from __future__ import annotations

from dataclasses import replace

from workloads.kernels.chip_share import Timing
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import LayerOp, collective, kernel
from workloads.training.layers.tensor_parallel import column_backward, enter, leave, norm


def _in_bf16(shapes: RankShapes) -> RankShapes:
    """Return the same ranks without fp8, which frameworks do not use for the output layer.

    Megatron-LM's is none of Transformer Engine's layers; torchtitan leaves it out by name.
    """
    usual = "bf16", "tensorwise"
    if (shapes.plan.precision, shapes.plan.fp8_recipe) == usual:
        return shapes
    plan = replace(shapes.plan, precision=usual[0], fp8_recipe=usual[1])
    return replace(shapes, plan=plan)


def _vocabulary(shapes: RankShapes) -> int:
    return -(-shapes.model.vocab // shapes.plan.tp)


def _loss(shapes: RankShapes, direction: str) -> Timing:
    """Kernels of the loss over this rank's logits."""
    each = shapes.catalogue.integer("training", f"loss_traffic_{direction}")
    return shapes.passes(each * shapes.tokens * _vocabulary(shapes))


def embedding(shapes: RankShapes) -> list[LayerOp]:
    """Steps of the look-up; the ranks of a tensor-parallel group hold parts of the vocabulary."""
    return [
        kernel("embedding.look-up", shapes.gather(2 * shapes.wide_bytes, shapes.tokens)),
        *leave(shapes, "embedding"),
    ]


def embedding_backward(shapes: RankShapes) -> list[LayerOp]:
    """Scatter the gradient of what was looked up."""
    return [
        *enter(_in_bf16(shapes), "embedding.gradient"),
        kernel(
            "embedding.add", shapes.gather(2 * shapes.wide_bytes, shapes.tokens, scattered=True)
        ),
    ]


def output(shapes: RankShapes) -> list[LayerOp]:
    """Steps of the final norm, the logits of this rank's part of the vocabulary, and the loss."""
    t, h, columns = shapes.tokens, shapes.model.hidden, _vocabulary(shapes)
    sums = [collective("loss.sums", "tp", "all-reduce", 2 * 4 * t)] if shapes.plan.tp > 1 else []
    return [
        norm(shapes, "output.norm"),
        *enter(_in_bf16(shapes), "output"),
        kernel("output.logits", _in_bf16(shapes).gemm(t, columns, h)),
        kernel("loss", _loss(shapes, "forward")),
        *sums,
    ]


def output_backward(shapes: RankShapes) -> list[LayerOp]:
    """Gradients of the loss, the output layer and the norm before it."""
    columns = _vocabulary(shapes)
    gradient = [kernel("loss.data", _loss(shapes, "backward"))]
    return [*gradient, *column_backward(_in_bf16(shapes), "output", "output.logits", columns)]
