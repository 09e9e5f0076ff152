"""Communication of ranks that hold the same parameters: gradients and updated parameters.

Experts have groups of their own, ``edp``. Under ZeRO-1 and 2 gradients are reduced to the rank that
updates their parameters, which are gathered afterwards. ZeRO-2 reduces in every backward pass, as
no rank has memory for all gradients, and ZeRO-3 also gathers parameters before every pass.
Communication that runs beside compute is done in buckets of several layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads.kernels.chip_share import Timing, family
from workloads.kernels.times import gemm, step_overhead_s
from workloads.training.layers.adapters import trains
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import CC, CC_DP, LayerOp, collective, kernel
from workloads.training.plan.parameters import (
    GRADIENT_BYTES,
    WEIGHT_BYTES,
    Share,
    edge_share,
    optimizer_bytes,
    part,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import end_stages

LEAST_BUCKET, BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Smallest number of parameters of a bucket of gradients, and the number for each replica where
that is more: the defaults of Megatron-LM's ``DistributedDataParallel``, whose buckets grow with the
replicas so that pieces of a ring do not become small."""
OWN_BUCKET = "gradient_bucket"
"""Quantity of the catalogue's part ``training`` for chips with a library of their own."""


NEWTON_SCHULZ = 5  # steps of Newton–Schulz iteration in an update by Muon
NORM_BYTES = 4  # bytes of a sum of squares in fp32


def bucket_parameters(shapes: RankShapes) -> int:
    """Return the least number of parameters whose gradients are reduced together as a bucket."""
    # It follows from the plan's ``bucket_bytes``, else from the default of the library that trains
    # on the chip: on Trainium neuronx-distributed, elsewhere Megatron-LM.
    plan, quantity = shapes.plan, f"{OWN_BUCKET}_{family(shapes.chip, shapes.catalogue).name}"
    if plan.bucket_bytes:
        return part(plan.bucket_bytes, GRADIENT_BYTES)
    if shapes.catalogue.has("training", quantity):
        return part(shapes.catalogue.integer("training", quantity), GRADIENT_BYTES)
    return max(LEAST_BUCKET, BUCKET_OF_A_REPLICA * plan.replicas)


def buckets(sizes: Sequence[int], least: int) -> list[range]:
    """Divide consecutive layers into stretches of ``least`` parameters or more, but the last."""
    runs, begin, held = [], 0, 0
    for number, size in enumerate(sizes, start=1):
        held += size
        if held >= least or number == len(sizes):
            runs.append(range(begin, number))
            begin, held = number, 0
    return runs


def reduce_gradients(shapes: RankShapes, what: str, share: Share) -> list[LayerOp]:
    """Return the steps that sum gradients of replicated parameters over the replicas."""
    op = "reduce-scatter" if shapes.plan.sharding else "all-reduce"
    element_bytes = shapes.catalogue.integer("training", "reduced_bytes")
    return _exchange(shapes, f"gradients.{what}", share, op, element_bytes)


def gather_parameters(shapes: RankShapes, what: str, share: Share) -> list[LayerOp]:
    """Return the steps that gather parameters of which each rank has updated, or holds, a shard."""
    if not shapes.plan.sharding:
        return []
    return _exchange(shapes, f"parameters.{what}", share, "all-gather", WEIGHT_BYTES)


def _exchange(
    shapes: RankShapes, name: str, share: Share, op: str, element_bytes: int
) -> list[LayerOp]:
    """Collectives of the replicas of dense parameters, and of the replicas of experts."""
    groups = (
        (name, "dp", shapes.plan.replicas, share.dense),
        (f"{name}.experts", "edp", shapes.plan.expert_replicas, share.experts),
    )
    return [
        collective(step_name, axis, op, element_bytes * parameters, stream=CC_DP)
        for step_name, axis, ranks, parameters in groups
        if ranks > 1 and parameters
    ]


def update(shapes: RankShapes, owned: Share, edges: Share = Share(0, 0)) -> LayerOp:
    """Return the step of the optimizer's update of the parameters that a rank owns."""
    # It reads gradient, master copy and state (mean and variance of Adam), and writes the last two
    # and the parameter. In fp16 gradients are cast, unscaled and clipped before, by kernels of
    # their own. Of the owned parameters ``edges`` are of embedding and output layer.
    plan = shapes.plan
    parameters = _divided(plan, owned)
    of_edges = min(parameters, _divided(plan, edges))
    each = GRADIENT_BYTES + WEIGHT_BYTES
    each += shapes.catalogue.integer("training", "update_copies_bytes")
    state = optimizer_bytes(plan, parameters, of_edges) if parameters else 0
    timing = shapes.stream(each * max(1, parameters) + 2 * state)
    if plan.sharding and plan.replicas > 1:
        overhead_s = step_overhead_s(shapes.chip, plan.ranks, catalogue=shapes.catalogue)
        timing = timing._replace(seconds=timing.seconds + overhead_s)
    return kernel("optimizer.step", timing, "optimizer")


def orthogonalized(shapes: RankShapes, owned: Share, edges: Share) -> list[LayerOp]:
    """Return the steps in which Muon orthogonalizes the momentum of a rank's matrices."""
    # Each of five Newton–Schulz steps has three products in bf16, of the shorter side of the matrix
    # with the longer one, with itself and with the longer one again (github.com/KellerJordan/Muon).
    # Ranks that shard the optimizer, and those of a tensor-parallel group, divide the matrices
    # among them; the latter exchange their parts before and after.
    plan, model = shapes.plan, shapes.model
    if plan.optimizer != "muon":
        return []
    experts = Share(0, owned.experts)
    dense = _divided(plan, Share(max(0, owned.dense - edges.dense), 0))
    seconds = dense * _orthogonal_s(shapes, model.ffn or model.hidden)
    if model.experts and owned.experts:
        seconds += _divided(plan, experts) * _orthogonal_s(shapes, model.experts.ffn)
    steps = [kernel("muon.newton_schulz", Timing(seconds, "assumed"), "optimizer")]
    if plan.tp == 1:
        return steps
    size = WEIGHT_BYTES * (dense + _divided(plan, experts))
    before, after = (
        collective(f"muon.{name}", "tp", "all-to-all", size) for name in ("whole", "parts")
    )
    return [before, *steps, after]


def _orthogonal_s(shapes: RankShapes, columns: int) -> float:
    """Time of five Newton–Schulz steps for a parameter of matrices of hidden × columns [s]."""
    short, long = sorted((shapes.model.hidden, columns))
    sides = [(short, short, long), (short, short, short), (short, long, short)]
    per_chip, catalogue = shapes.plan.ranks_per_chip, shapes.catalogue
    times = [
        gemm(shapes.chip, *side, "bf16", ranks_per_chip=per_chip, catalogue=catalogue).seconds
        for side in sides
    ]
    return NEWTON_SCHULZ * float(sum(times)) / (short * long)


def _divided(plan: ParallelPlan, share: Share) -> int:
    """Parameters of a share whose optimizer state one rank has."""
    return sharded(plan.sharding >= 1, share, plan.replicas, plan.expert_replicas)


def clip(shapes: RankShapes, owned: Share) -> list[LayerOp]:
    """Return the steps of the norm of all gradients, by which they are clipped."""
    # Each rank sums the squares of its own gradients; an all-reduce adds the sums.
    # The norm must be known before any parameter is updated (it is clipped to 1.0 in arXiv
    # 1909.08053, section 4.2). Gradients are assumed to be scaled within the update.
    plan = shapes.plan
    parameters = _divided(plan, owned)
    read = shapes.stream(GRADIENT_BYTES * max(1, parameters))
    squares = kernel("norm.squares", read, "optimizer")
    if plan.norm_ranks == 1:
        return [squares]
    # Category of its time: one of the axes that it spans.
    spans_replicas = "dp" in plan.norm_axes and plan.replicas > 1
    what = "dp" if spans_replicas else "pp" if plan.pp > 1 else "tp"
    return [squares, LayerOp("norm.sum", what, CC, 0.0, NORM_BYTES, "norm", "all-reduce")]


def sharded(divided: bool, share: Share, replicas: int, expert_replicas: int) -> int:
    """Return the parameters of a share that one rank keeps, whether or not replicas divide them."""
    if not divided:
        return share.total
    return part(share.dense, replicas) + part(share.experts, expert_replicas)


def tie(shapes: RankShapes, stage: int) -> list[LayerOp]:
    """Return the step that sums the gradients of an embedding that both end stages hold."""
    model, plan = shapes.model, shapes.plan
    frozen, (first, last) = not trains(plan, "output"), end_stages(plan)
    if frozen or not model.tied_embeddings or first == last or stage not in (first, last):
        return []
    size = GRADIENT_BYTES * part(model.vocab, plan.tp) * model.hidden
    return [LayerOp("embedding.tie", "pp", CC_DP, 0.0, size, "tie", "all-reduce")]


def edges_of(shapes: RankShapes, stage: int) -> Share:
    """Return the parameters of embedding, final norm and output layer of a stage as a share."""
    return Share(edge_share(shapes.model, shapes.plan, stage), 0)
