"""Communication of ranks that hold the same parameters: gradients and updated parameters.

Experts have groups of their own, ``edp``. ZeRO-1 and 2 reduce to the rank that updates and gather
afterwards, ZeRO-2 in every backward pass; ZeRO-3 gathers before every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from topologies.catalogue.catalogue import chip_family
from topologies.support.arrays import IntArray
from workloads.kernels.chip_share import KERNELS, Timing, rank_of
from workloads.kernels.times import PART, gemm, host_dispatch_s, step_overhead_s
from workloads.training.layers.adapters import trained_share, trains, whole
from workloads.training.layers.steps import (
    CC,
    CC_DP,
    ENGINE,
    LayerOp,
    RankShapes,
    collective,
    kernel,
)
from workloads.training.plan.placement import SERVER
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    Share,
    chunk_layers,
    edge_share,
    end_stages,
    is_kept,
    kind_shares,
    layer_kinds,
    layer_share,
    optimizer_bytes,
    part,
    total,
)

LEAST_BUCKET, BUCKET_OF_A_REPLICA = 40_000_000, 1_000_000
"""Smallest number of parameters of a bucket of gradients, and the number for each replica where
that is more: the defaults of Megatron-LM's ``DistributedDataParallel``, whose buckets grow with the
replicas so that pieces of a ring do not become small."""
OWN_BUCKET = "gradient_bucket"
"""Quantity of the catalogue's part ``training`` for chips with a library of their own."""
REDUCED_TOGETHER = 500_000_000
"""Gradients that fit a bucket of DeepSpeed (``reduce_bucket_size``); those of a weight that would
overflow it are reduced on their own (``__add_grad_to_ipg_bucket`` of its ``zero/stage3.py``)."""
NEWTON_SCHULZ = 5  # steps of Newton–Schulz iteration in an update by Muon
NORM_BYTES = 4  # bytes of a sum of squares in fp32
LEAST_WITH_MASTER = 8  # bytes of Adam's state with a master copy in fp32


def bucket_parameters(shapes: RankShapes) -> int:
    """Return the least number of parameters whose gradients are reduced together as a bucket."""
    # It follows from the plan's ``bucket_bytes``, else from the default of the library that trains
    # on the chip: on Trainium neuronx-distributed, elsewhere Megatron-LM.
    kernels = chip_family(shapes.chip, shapes.catalogue).kernels
    plan, quantity = shapes.plan, f"{OWN_BUCKET}_{kernels.removeprefix(KERNELS)}"
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
    narrow = what != "rest" and not share.experts and shapes.cast_bytes < WEIGHT_BYTES
    cast = narrow and shapes.catalogue.integer("training", "sharded_cast")
    element_bytes = shapes.cast_bytes if cast else WEIGHT_BYTES
    return _exchange(shapes, f"parameters.{what}", share, "all-gather", element_bytes)


def _exchange(
    shapes: RankShapes, name: str, share: Share, op: str, element_bytes: float
) -> list[LayerOp]:
    """Collectives of the replicas of dense parameters, and of the replicas of experts."""
    # A framework may fetch the weights of a layer one by one, and reduce large ones so.
    apart = shapes.plan.sharding == 3 and name.endswith(".bucket")
    apart = apart and (op == "all-gather" or share.dense > REDUCED_TOGETHER)
    weights = shapes.catalogue.integer("training", "gathered_weights") if apart else 1
    groups = (
        (name, "dp", shapes.plan.replicas, share.dense),
        (f"{name}.experts", "edp", shapes.plan.expert_replicas, share.experts),
    )
    return [
        collective(
            *(step_name, axis, op, round(element_bytes * part(parameters, weights))), stream=CC_DP
        )
        for step_name, axis, ranks, parameters in groups
        if ranks > 1 and parameters
        for _ in range(weights)
    ]


def update(shapes: RankShapes, owned: Share, edges: Share = Share(0, 0)) -> LayerOp:
    """Return the step of the optimizer's update of the parameters that a rank owns."""
    # It reads gradient, master copy and state (mean and variance of Adam), and writes the last two
    # and the parameter, which it reads itself where it has no master copy. In fp16 gradients are
    # cast, unscaled and clipped before, by kernels of their own. Of the owned parameters ``edges``
    # are of embedding and output layer.
    plan, numbers = shapes.plan, shapes.catalogue
    parameters = _divided(plan, owned)
    of_edges = min(parameters, _divided(plan, edges))
    adam_bytes = numbers.integer("training", "optimizer_bytes")
    each = numbers.integer("training", "gradient_bytes") + WEIGHT_BYTES
    each += WEIGHT_BYTES * (adam_bytes < LEAST_WITH_MASTER)
    each += numbers.integer("training", "update_copies_bytes")
    state = optimizer_bytes(plan, parameters, of_edges) if parameters else 0
    state = part(state * adam_bytes, OPTIMIZER_BYTES["adamw"])
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
    seconds = dense * _orthogonal_s(shapes, model.hidden, model.ffn or model.hidden)
    # The host issues one matrix after the other: four of attention, two or three of the
    # feed-forward part. Those of experts are stacked.
    matrices = (7 if model.gated_mlp else 6) * dense / layer_share(model, plan).total
    seconds = max(seconds, NEWTON_SCHULZ * matrices * issued_s(shapes))
    if model.experts and owned.experts:
        seconds += _divided(plan, experts) * _orthogonal_s(
            shapes, model.expert_hidden, model.experts.ffn
        )
    steps = [kernel("muon.newton_schulz", Timing(seconds, "assumed"), "optimizer")]
    if plan.tp == 1:
        return steps
    size = WEIGHT_BYTES * (dense + _divided(plan, experts))
    before, after = (
        collective(f"muon.{name}", "tp", "all-to-all", size) for name in ("whole", "parts")
    )
    return [before, *steps, after]


def _orthogonal_s(shapes: RankShapes, rows: int, columns: int) -> float:
    """Time of five Newton–Schulz steps for a parameter of matrices of rows × columns [s]."""
    short, long = sorted((rows, columns))
    sides = [(short, short, long), (short, short, short), (short, long, short)]
    times = [gemm(shapes.chip, *side, "bf16", **shapes.rank).seconds for side in sides]
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
    gradient_bytes = shapes.catalogue.integer("training", "gradient_bytes")
    read = shapes.stream(gradient_bytes * max(1, parameters))
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
    copied = model.tied_embeddings or model.prediction_heads
    if frozen or not copied or first == last or stage not in (first, last):
        return []
    size = GRADIENT_BYTES * part(model.vocab, plan.tp) * model.hidden
    return [LayerOp("embedding.tie", "pp", CC_DP, 0.0, size, "tie", "all-reduce")]


def edges_of(shapes: RankShapes, stage: int) -> Share:
    """Return the parameters of embedding, final norm and output layer of a stage as a share."""
    return Share(edge_share(shapes.model, shapes.plan, stage), 0)


# Parameters of one rank of a pipeline stage, each count computed once for all passes of the stage,
# and their exchange with the ranks that hold the same ones.

NOTHING = Share(0, 0)


class Stretch(NamedTuple):
    """Consecutive layers of a pass, and the exchange with replicas that goes with them."""

    layers: IntArray  # (layers,)
    # Reduction of their gradients after the last of them, or gathering before the first; empty
    # where the layers fill no bucket
    steps: list[LayerOp]


@dataclass(frozen=True, eq=False)
class ReplicaExchange:
    """Parameters of a rank of a stage, and the steps that exchange them with its replicas."""

    shapes: RankShapes
    stage: int
    job: ParallelPlan  # plan of the whole job, of which the shapes may show a part

    @cached_property
    def chunks(self) -> list[IntArray]:
        """Layers of each of the stage's chunks."""
        return chunk_layers(self.shapes.model, self.shapes.plan, self.stage)

    @cached_property
    def kinds(self) -> IntArray:
        """Number of the kind of every layer of the model, int64 (layers,)."""
        return layer_kinds(self.shapes.model, np.arange(self.shapes.model.layers))

    @cached_property
    def kept(self) -> IntArray:
        """1 for every layer whose activations full recomputation keeps, else 0, int64 (layers,)."""
        return is_kept(self.shapes.plan, np.arange(self.shapes.model.layers))

    @cached_property
    def bucket(self) -> int:
        """Least number of parameters whose gradients are reduced together as a bucket."""
        return bucket_parameters(self.shapes)

    @cached_property
    def owned(self) -> Share:
        """All parameters of the stage that have gradients and optimizer state."""
        return trained_share(self.shapes.model, self.shapes.plan, self.stage)

    @cached_property
    def edges(self) -> Share:
        """Parameters that the stage holds of embedding, final norm and output layer."""
        return edges_of(self.shapes, self.stage)

    @cached_property
    def trained_edges(self) -> Share:
        """Parameters of ``edges`` that are trained."""
        if self.shapes.plan.train_only == "output":
            return self.owned
        return self.edges if whole(self.shapes.plan) else NOTHING

    @cached_property
    def _of_kinds(self) -> tuple[Share, ...]:
        return kind_shares(self.shapes.model, self.shapes.plan)

    def held(self, layers: IntArray) -> list[Share]:
        """Parameters of each of these layers."""
        return [self._of_kinds[kind] for kind in self.kinds[layers].tolist()]

    def trained(self, layers: IntArray) -> list[Share]:
        """Parameters of each of these layers that are trained."""
        if whole(self.shapes.plan):
            return self.held(layers)
        # What is trained of a stage is the same part of each of its layers.
        in_layers = NOTHING if self.shapes.plan.train_only == "output" else self.owned
        count = max(1, sum(len(chunk) for chunk in self.chunks))
        return [Share(in_layers.dense // count, in_layers.experts // count)] * len(layers)

    def stretches(self, layers: IntArray, *, reduces: bool) -> tuple[list[Stretch], Share]:
        """Divide layers into stretches, each of which ends with a bucket of gradients."""
        # Under ZeRO-2 and 3 every layer is a bucket, as no rank has memory for the gradients of
        # more. ``layers`` (layers,) are in the order of the pass. The second result are the
        # parameters whose gradients fill no bucket.
        plan, shares = self.shapes.plan, self.trained(layers)
        least = 1 if plan.sharding >= 2 else self.bucket
        runs = [range(len(layers))]
        if reduces or plan.sharding == 3:
            runs = buckets([share.total for share in shares], least)
        stretches, left = [], NOTHING
        for run in runs:
            bucket, leaving = total(shares[run.start : run.stop]), list[LayerOp]()
            if reduces and bucket.total >= least:
                leaving = reduce_gradients(self.shapes, "bucket", bucket)
            else:
                left = bucket
            stretches.append(Stretch(layers[run.start : run.stop], leaving))
        return stretches, left

    def reduced(self, left: Share, *, edges: bool) -> list[LayerOp]:
        """Reduce gradients that fill no bucket, with embedding and output layer if ``edges``."""
        # Without overlap the next pass waits for this reduction.
        rest = total([left, self.trained_edges if edges else NOTHING])
        steps = reduce_gradients(self.shapes, "bucket", rest)
        waits = steps and self.shapes.plan.overlap == "none"
        return [*steps, kernel("gradients.wait", Timing(0.0, "measured"))] if waits else steps

    def gathered(self, layers: IntArray) -> list[LayerOp]:
        """Gather the parameters of a stretch of layers."""
        # Under ZeRO-1 and 2 only updated parameters differ between ranks, so frozen ones are not
        # gathered.
        shares = self.held if self.shapes.plan.sharding == 3 else self.trained
        return gather_parameters(self.shapes, "bucket", total(shares(layers)))

    def gathered_edges(self) -> list[LayerOp]:
        """Gather embedding, final norm and output layer, or what is trained of them."""
        edges = self.edges if self.shapes.plan.sharding == 3 else self.trained_edges
        return gather_parameters(self.shapes, "rest", edges)

    def gathered_ahead(self) -> list[Stretch]:
        """Gather, bucket by bucket, the layers' parameters that the step before updated."""
        return [
            Stretch(layers[run.start : run.stop], self.gathered(layers[run.start : run.stop]))
            for layers in self.chunks
            for run in buckets([weights.total for weights in self.trained(layers)], self.bucket)
        ]

    def waits(self, layers: IntArray, *, gathers: bool, reduces: bool) -> list[LayerOp]:
        """Return the time for which kernels wait for shards of other ranks, as a step."""
        rate_bytes_per_s = sharded_bytes_per_s(self.shapes, self.job)
        if not rate_bytes_per_s or not len(layers):
            return []
        gradient_bytes = self.shapes.catalogue.integer("training", "reduced_bytes")
        exchanged = gathers * WEIGHT_BYTES * self._from_others(total(self.held(layers)))
        exchanged += reduces * gradient_bytes * self._from_others(total(self.trained(layers)))
        waiting_s = exchanged / rate_bytes_per_s
        return [kernel("shards.wait", Timing(waiting_s, "assumed"), "dp")] if waiting_s else []

    def _from_others(self, share: Share) -> float:
        """Parameters of a share that other ranks hold: (r - 1) / r of those of r replicas."""
        plan = self.shapes.plan
        dense = share.dense * (1 - 1 / plan.replicas)
        return dense + share.experts * (1 - 1 / plan.expert_replicas)

    def finish(self) -> list[LayerOp]:
        """Return the end of an iteration: reduce, clip, update, and gather updated parameters."""
        # Gradients that were reduced beside the backward pass, and parameters that the next
        # iteration gathers beside its forward pass, are not exchanged here again.
        plan, shapes, owned = self.shapes.plan, self.shapes, self.owned
        reduced, gathered = list[LayerOp](), list[LayerOp]()
        if plan.overlap == "none" and plan.sharding < 2:
            reduced = reduce_gradients(shapes, "all", owned)
        if plan.overlap == "none" and plan.sharding < 3:
            gathered = gather_parameters(shapes, "all", owned)
        tied, edges = tie(shapes, self.stage), self.trained_edges
        layers = sum(len(chunk) for chunk in self.chunks)
        if waited_s := start_s(shapes, layers, "update") + traced_update_s(
            shapes, self.job, layers
        ):
            gathered = [LayerOp("host.update", "host", ENGINE, waited_s), *gathered]
        updated = [*orthogonalized(shapes, owned, edges), update(shapes, owned, edges)]
        return [*tied, *reduced, *clip(shapes, owned), *updated, *gathered]


# Time of a step besides its kernels: the host that issues them, and unexplained time.
#
# A framework that traces programs lazily (torch-xla, on which the Neuron fine-tuning libraries
# stand) builds the program of every microbatch anew on the host, in a time that is proportional to
# the layers and to the passes over them, whatever the sequence is, and to the operations in a
# layer: one without a gated feed-forward has fewer. Meanwhile the device runs the program before
# it, so a microbatch takes the longer of the two. This was observed in fine-tuning on one chip. An
# eager host dispatches the operations that torch-xla traces, assumed in the same time, and in no
# less than its kernels take to issue. A compiled step is built once, and no host issues it.
# PyTorch's own backend for Neuron compiles the layers alone: the chip waits while the host starts a
# pass, and while it issues the update.

COMPILED = "xla"
"""Runtime of chips whose step is one compiled program, which no host issues kernel by kernel."""


def host_s(shapes: RankShapes, job: ParallelPlan, kernels: float, kinds: IntArray) -> float:
    """Time in which the host issues a pass over a layer of each of these kinds [s]."""
    plan, chip = shapes.plan, shapes.chip
    chips = chip_family(chip, shapes.catalogue)
    if chips.runtime == COMPILED or (chips.is_neuron and job.runtime == "compiled"):
        return 0.0
    if not chips.is_neuron:
        return kernels * host_dispatch_s(chip, catalogue=shapes.catalogue)
    rank = rank_of(chip, "bf16", plan.ranks_per_chip, shapes.catalogue)
    layer_pass_s = rank.constant("host_layer_pass")
    if not shapes.model.gated_mlp:
        layer_pass_s *= rank.constant("host_plain_layer")
    operations = [_operations(shapes.of_kind(kind)) for kind in shapes.model.kinds]
    layers_s = layer_pass_s * float(np.take(operations, kinds).sum())
    if plan.lora_rank:
        layers_s += len(kinds) * rank.constant("host_adapter_pass")
    # Tracing a layer takes longer in a model of more layers.
    depth = shapes.model.layers / rank.constant("host_trace_layers")
    traced_s = layers_s * depth ** rank.constant("host_trace_growth")
    return float(max(traced_s, kernels * shapes.catalogue.value(PART, "eager_added")))


def _operations(shapes: RankShapes) -> float:
    """Operations that PyTorch dispatches in a pass over a layer, over those of a usual one."""
    # Gated-delta layers loop in Python, as their kernels exist for GPUs alone.
    mixer, numbers = shapes.model.recurrence, shapes.catalogue
    if shapes.model.mixer != "recurrence" or not mixer or mixer.name != "gated-delta":
        return 1.0
    chunks = -(-shapes.plan.local_seq // numbers.integer(PART, "delta_chunk"))
    count = chunks * numbers.value(PART, "delta_chunk_operations")
    count += numbers.value(PART, "delta_operations")
    return count / numbers.value(PART, "layer_operations")


def occupied_share(shapes: RankShapes) -> float:
    """Return the share of a chip's multiprocessors that an exchange of a whole server takes."""
    # NCCL runs a block for each of its channels, two for each adapter, on a multiprocessor that it
    # shares with no kernel. Trainium has cores for collectives, and TPUs move data by themselves.
    chips = chip_family(shapes.chip, shapes.catalogue)
    name = chips.kernels
    if chips.runtime == COMPILED or not shapes.catalogue.has(name, "exchange_processors"):
        return 0.0
    count = SERVER * shapes.catalogue.value(name, "exchange_processors")
    return count / shapes.catalogue.value(name, "processors")


def issued_s(shapes: RankShapes) -> float:
    """Time in which the host of a GPU issues one step of an update that is not fused [s]."""
    chips = chip_family(shapes.chip, shapes.catalogue)
    idle = chips.runtime == COMPILED or chips.is_neuron
    return 0.0 if idle else host_dispatch_s(shapes.chip, catalogue=shapes.catalogue)


def issued_ahead(shapes: RankShapes) -> float:
    """Share of the time to issue kernels for which the host runs ahead of the chip."""
    # It is 1 unless launches block the host until the chip has run the kernel
    # (``CUDA_LAUNCH_BLOCKING``). Then the chip idles while the host issues the next one.
    chips = chip_family(shapes.chip, shapes.catalogue)
    if chips.runtime == COMPILED or chips.is_neuron:
        return 1.0
    return shapes.catalogue.value("training", "issued_ahead")


def start_s(shapes: RankShapes, layers: int, of: str) -> float:
    """Time for which a Neuron chip waits until the host has started work on some layers [s]."""
    # ``of`` ("pass", "update").
    if not chip_family(shapes.chip, shapes.catalogue).is_neuron:
        return 0.0
    return layers * shapes.catalogue.value(PART, f"layer_{of}_start")


def traced_update_s(shapes: RankShapes, job: ParallelPlan, layers: int) -> float:
    """Time in which an eager host, or torch-xla's, issues the update of some layers [s]."""
    # Tensor by tensor: two of each adapter, or seven products and two norms, or biases as well.
    if job.runtime == "compiled":
        return 0.0
    tensors = 14 if shapes.plan.lora_rank else 9 if shapes.model.gated_mlp else 16
    rank = rank_of(shapes.chip, "bf16", shapes.plan.ranks_per_chip, shapes.catalogue)
    return layers * tensors * rank.constant("host_update_tensor") * rank.constant("host_layer_pass")


def sharded_bytes_per_s(shapes: RankShapes, job: ParallelPlan) -> float:
    """Rate at which a rank's kernels wait for sharded parameters; 0 for no waiting [B/s]."""
    # Under ZeRO-3 across several Trainium chips, kernels were seen to wait for gathered parameters
    # and reduced gradients however much there was to compute meanwhile: of two models, one with ten
    # times the parameters and eight times the kernels took ten times as long beyond its kernels.
    if job.sharding != 3:
        return 0.0
    return constant_across_chips(shapes, job, "sharded_rate") / job.ranks_per_chip


def constant_across_chips(shapes: RankShapes, job: ParallelPlan, name: str) -> float:
    """Constant of a chip's training that applies to plans on several chips; 0 on a single chip."""
    quantity = f"{name}_{shapes.chip}"
    if job.ranks <= job.ranks_per_chip:
        return 0.0
    return shapes.catalogue.value("training", quantity, 0.0)
