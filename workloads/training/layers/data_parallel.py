"""Exchange between ranks that hold the same parameters: gradients and updated parameters.

Experts have groups of their own, ``edp``. ZeRO-1 and 2 reduce gradients to the rank that updates
them and gather parameters after; ZeRO-2 does so in every backward pass, as nobody has room for all
gradients; ZeRO-3 also gathers parameters before every pass. What travels beside compute goes in
buckets of several layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workloads.kernels.chip_share import family
from workloads.kernels.times import step_overhead_s
from workloads.training.layers.adapters import trains
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import CC, CC_DP, LayerOp, collective, kernel
from workloads.training.plan.parameters import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    Share,
    edge_share,
    part,
)
from workloads.training.plan.stage_layers import end_stages

LEAST_BUCKET, BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Parameters of a bucket of gradients at least, and for each replica: the defaults of Megatron-LM's
``DistributedDataParallel``, whose buckets grow so that pieces of a ring do not become small."""
OWN_BUCKET = "gradient_bucket"
"""Quantity of the catalogue's part ``training`` for chips with a library of their own."""


NORM_BYTES = 4
"""Bytes of a sum of squares in fp32."""


def bucket_parameters(shapes: RankShapes) -> int:
    """Parameters whose gradients are reduced together beside the backward pass, at least.

    What the plan states, else the default of the library that trains on the chip: on Trainium
    neuronx-distributed's, elsewhere Megatron-LM's.

    Examples
    --------
    >>> from topologies.catalogue.catalogue import shipped_catalogue
    >>> from workloads.models.huggingface import named
    >>> from workloads.training.plan.plan import ParallelPlan
    >>> plan = ParallelPlan(dp=64, global_batch=64)
    >>> some = RankShapes(named("gpt3-175b"), plan, "h100", shipped_catalogue())
    >>> bucket_parameters(some), bucket_parameters(replace(some, chip="trn2"))
    (64000000, 134217728)
    >>> bucket_parameters(replace(some, plan=ParallelPlan(bucket_bytes=100_000_000)))
    25000000
    """
    plan, quantity = shapes.plan, f"{OWN_BUCKET}_{family(shapes.chip, shapes.catalogue).name}"
    if plan.bucket_bytes:
        return part(plan.bucket_bytes, GRADIENT_BYTES)
    if shapes.catalogue.has("training", quantity):
        return part(shapes.catalogue.integer("training", quantity), GRADIENT_BYTES)
    return max(LEAST_BUCKET, BUCKET_OF_A_REPLICA * plan.replicas)


def buckets(sizes: Sequence[int], least: int) -> list[range]:
    """Stretches of layers of so many parameters, each of at least ``least``, but for the last.

    Examples
    --------
    >>> buckets([3, 3, 3, 3, 3], 5)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    runs, begin, held = [], 0, 0
    for number, size in enumerate(sizes, start=1):
        held += size
        if held >= least or number == len(sizes):
            runs.append(range(begin, number))
            begin, held = number, 0
    return runs


def reduce_gradients(shapes: RankShapes, what: str, share: Share) -> list[LayerOp]:
    """Sum gradients of replicated parameters."""
    op = "reduce-scatter" if shapes.plan.sharding else "all-reduce"
    each = shapes.catalogue.integer("training", "reduced_bytes")
    return _talk(shapes, f"gradients.{what}", share, op, each)


def gather_parameters(shapes: RankShapes, what: str, share: Share) -> list[LayerOp]:
    """Gather parameters of which each rank has updated, or holds, a part."""
    if not shapes.plan.sharding:
        return []
    return _talk(shapes, f"parameters.{what}", share, "all-gather", WEIGHT_BYTES)


def _talk(
    shapes: RankShapes, name: str, share: Share, op: str, element_bytes: int
) -> list[LayerOp]:
    groups = (
        (name, "dp", shapes.plan.replicas, share.dense),
        (f"{name}.experts", "edp", shapes.plan.expert_replicas, share.experts),
    )
    return [
        collective(called, axis, op, element_bytes * parameters, stream=CC_DP)
        for called, axis, ranks, parameters in groups
        if ranks > 1 and parameters
    ]


def update(shapes: RankShapes, owned: Share) -> LayerOp:
    """Steps of Adam: reads gradient, master copy, mean and variance; writes the last three."""
    plan = shapes.plan
    updated = sharded(plan.sharding >= 1, owned, plan.replicas, plan.expert_replicas)
    touched = (GRADIENT_BYTES + 2 * OPTIMIZER_BYTES + WEIGHT_BYTES) * max(1, updated)
    timing = shapes.stream(touched)
    if plan.sharding:
        overhead_s = step_overhead_s(shapes.chip, catalogue=shapes.catalogue)
        timing = replace(timing, seconds=timing.seconds + overhead_s)
    return kernel("optimizer.step", timing, "optimizer")


def clip(shapes: RankShapes, owned: Share) -> list[LayerOp]:
    """Steps of the norm of all gradients, by which they are clipped: each rank's own, then the sum.

    It is known before any parameter changes (a norm of 1.0 at most: arXiv 1909.08053, section 4.2).
    Gradients are taken to be scaled within the update.
    """
    plan = shapes.plan
    held = sharded(plan.sharding >= 1, owned, plan.replicas, plan.expert_replicas)
    squares = kernel("norm.squares", shapes.stream(GRADIENT_BYTES * max(1, held)), "optimizer")
    if plan.norm_ranks == 1:
        return [squares]
    what = "dp" if "dp" in plan.norm_axes else "pp" if plan.pp > 1 else "tp"
    return [squares, LayerOp("norm.sum", what, CC, 0.0, NORM_BYTES, "norm", "all-reduce")]


def sharded(divided: bool, share: Share, replicas: int, expert_replicas: int) -> int:
    """Parameters of a share that one rank keeps, divided among those that hold the same, or not.

    Examples
    --------
    >>> sharded(True, Share(80, 10), 8, 2), sharded(False, Share(80, 10), 8, 2)
    (15, 90)
    """
    if not divided:
        return share.total
    return part(share.dense, replicas) + part(share.experts, expert_replicas)


def tie(shapes: RankShapes, stage: int) -> list[LayerOp]:
    """Sum the gradients of an embedding that the first and the last stage both hold."""
    model, plan = shapes.model, shapes.plan
    frozen, (first, last) = not trains(plan, "output"), end_stages(plan)
    if frozen or not model.tied_embeddings or first == last or stage not in (first, last):
        return []
    size = GRADIENT_BYTES * part(model.vocab, plan.tp) * model.hidden
    return [LayerOp("embedding.tie", "pp", CC_DP, 0.0, size, "tie", "all-reduce")]


def edges_of(shapes: RankShapes, stage: int) -> Share:
    """Embedding, final norm and output layer of a stage as a share."""
    return Share(edge_share(shapes.model, shapes.plan, stage), 0)
