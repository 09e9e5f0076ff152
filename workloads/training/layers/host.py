"""Time of a step besides its kernels: the host that issues them, and unexplained time.

An eager host issues kernel after kernel. A framework that traces programs lazily (torch-xla, on
which the Neuron fine-tuning libraries stand) builds the program of every microbatch anew on the
host, in a time that is proportional to the layers and to the passes over them, whatever the
sequence is, and to the operations in a layer: one without a gated feed-forward has fewer. Meanwhile
the device runs the program before it, so a microbatch takes the longer of the two. This was
observed in fine-tuning on one chip. It is assumed to be no faster than issuing the kernels eagerly.
A compiled step is built once, and no host issues it. PyTorch's own backend for Neuron compiles the
layers alone: the chip waits while the host starts a pass, and while it issues the update.
"""

from __future__ import annotations

from topologies.catalogue.catalogue import chip_family
from workloads.kernels.chip_share import rank_of
from workloads.kernels.runtime import PART
from workloads.kernels.times import host_dispatch_s
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.plan import ParallelPlan

COMPILED = "xla"
"""Runtime of chips whose step is one compiled program, which no host issues kernel by kernel."""


def host_s(
    shapes: RankShapes, job: ParallelPlan, kernels: float, layers: int, passes: int
) -> float:
    """Time in which the host issues passes over some layers [s]."""
    plan, chip = shapes.plan, shapes.chip
    chips = chip_family(chip, shapes.catalogue)
    if chips.runtime == COMPILED:
        return 0.0
    if not chips.is_neuron:
        return kernels * host_dispatch_s(chip, catalogue=shapes.catalogue)
    if job.runtime == "compiled":
        return 0.0
    eager_s = kernels * shapes.catalogue.value(PART, "eager_added")
    if job.runtime == "eager":
        return eager_s
    rank = rank_of(chip, "bf16", plan.ranks_per_chip, shapes.catalogue)
    layer_pass_s = rank.constant("host_layer_pass")
    if not shapes.model.gated_mlp:
        layer_pass_s *= rank.constant("host_plain_layer")
    if plan.lora_rank:
        layer_pass_s += rank.constant("host_adapter_pass")
    # Tracing a layer takes longer in a model of more layers.
    depth = shapes.model.layers / rank.constant("host_trace_layers")
    traced_s = layers * passes * layer_pass_s * depth ** rank.constant("host_trace_growth")
    return float(max(traced_s, eager_s, shapes.catalogue.value(PART, "xla_least")))


def issued_s(shapes: RankShapes) -> float:
    """Time in which the host of a GPU issues one step of an update that is not fused [s]."""
    chips = chip_family(shapes.chip, shapes.catalogue)
    if chips.runtime == COMPILED or chips.is_neuron:
        return 0.0
    return host_dispatch_s(shapes.chip, catalogue=shapes.catalogue)


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


def scheduling_share(shapes: RankShapes, job: ParallelPlan) -> float:
    """Unexplained time of a pass as a share of its kernels' time; 0 within one chip."""
    return _constant_across_chips(shapes, job, "scheduling")


def sharded_bytes_per_s(shapes: RankShapes, job: ParallelPlan) -> float:
    """Rate at which a rank's kernels wait for sharded parameters; 0 for no waiting [B/s]."""
    # Under ZeRO-3 across several Trainium chips, kernels were seen to wait for gathered parameters
    # and reduced gradients however much there was to compute meanwhile: of two models, one with ten
    # times the parameters and eight times the kernels took ten times as long beyond its kernels.
    if job.sharding != 3:
        return 0.0
    return _constant_across_chips(shapes, job, "sharded_rate") / job.ranks_per_chip


def _constant_across_chips(shapes: RankShapes, job: ParallelPlan, name: str) -> float:
    """Constant of a chip's training that applies to plans on several chips; 0 on a single chip."""
    quantity = f"{name}_{shapes.chip}"
    if job.ranks <= job.ranks_per_chip:
        return 0.0
    return shapes.catalogue.value("training", quantity, 0.0)
