"""Both ends of a model as steps: the embedding, and the output layer with the loss."""

from __future__ import annotations

from dataclasses import replace

from workloads.kernels.chip_share import Timing
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import LayerOp, collective, kernel
from workloads.training.layers.tensor_parallel import column_backward, enter, leave, norm


def _in_bf16(shapes: RankShapes) -> RankShapes:
    """Return the same shapes in bf16, as frameworks do not run the output layer in fp8."""
    # In Megatron-LM it is none of Transformer Engine's layers; torchtitan leaves it out by name.
    precision, fp8_recipe = "bf16", "tensorwise"
    if (shapes.plan.precision, shapes.plan.fp8_recipe) == (precision, fp8_recipe):
        return shapes
    plan = replace(shapes.plan, precision=precision, fp8_recipe=fp8_recipe)
    return replace(shapes, plan=plan)


def _vocabulary(shapes: RankShapes) -> int:
    """Tokens of the vocabulary that one rank of a tensor-parallel group holds."""
    return -(-shapes.model.vocab // shapes.plan.tp)


def _loss(shapes: RankShapes, direction: str) -> Timing:
    """Time of the loss kernels over this rank's logits."""
    bytes_a_logit = shapes.catalogue.integer("training", f"loss_traffic_{direction}")
    return shapes.passes(bytes_a_logit * shapes.tokens * _vocabulary(shapes))


def embedding(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the look-up and of the sum over the ranks that divide the vocabulary."""
    return [
        kernel("embedding.look-up", shapes.gather(2 * shapes.wide_bytes, shapes.tokens)),
        *leave(shapes, "embedding"),
    ]


def embedding_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps that add gradients to the rows of the embedding that were looked up."""
    return [
        *enter(_in_bf16(shapes), "embedding.gradient"),
        kernel(
            "embedding.add", shapes.gather(2 * shapes.wide_bytes, shapes.tokens, scattered=True)
        ),
    ]


def output(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the final norm, the logits of this rank's vocabulary, and the loss."""
    t, h, columns = shapes.tokens, shapes.model.hidden, _vocabulary(shapes)
    # Two sums in fp32 for each token.
    sums = [collective("loss.sums", "tp", "all-reduce", 2 * 4 * t)] if shapes.plan.tp > 1 else []
    return [
        norm(shapes, "output.norm"),
        *enter(_in_bf16(shapes), "output"),
        kernel("output.logits", _in_bf16(shapes).gemm(t, columns, h)),
        kernel("loss", _loss(shapes, "forward")),
        *sums,
    ]


def output_backward(shapes: RankShapes) -> list[LayerOp]:
    """Return the steps of the gradients of the loss, the output layer and the norm before it."""
    columns = _vocabulary(shapes)
    gradient = [kernel("loss.data", _loss(shapes, "backward"))]
    return [*gradient, *column_backward(_in_bf16(shapes), "output", "output.logits", columns)]
