"""Time of a step beside its kernels: the host that issues them, and unexplained time.

An eager host issues kernel after kernel. A framework that traces programs lazily (torch-xla, on
which the Neuron fine-tuning libraries stand) builds the program of every microbatch anew on the
host: so many milliseconds for each layer and pass over it, whatever the sequence is. The device
runs the program before meanwhile, so that a microbatch takes the longer of the two. This was seen
where people fine-tune on one chip; it is taken to hold there, for adapters, and where a plan asks
for the runtime ``xla``. Elsewhere a program is taken to be built once.
"""

from __future__ import annotations

from topologies.catalogue.families import chip_family
from workloads.kernels.chip_share import rank_of
from workloads.kernels.runtime import NEURON, PART
from workloads.kernels.times import host_dispatch_s
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.plan import ParallelPlan

COMPILED = "xla"
"""Runtime of chips whose step is one compiled program, which no host issues kernel by kernel."""


def traces_lazily(plan: ParallelPlan) -> bool:
    """Return whether the host builds the program of every microbatch anew."""
    one_chip = 1 < plan.ranks_per_chip >= plan.ranks
    return plan.runtime == "xla" or one_chip or plan.lora_rank > 0


def host_s(
    shapes: RankShapes, job: ParallelPlan, kernels: float, layers: int, passes: int
) -> float:
    """Time in which the host issues passes over some layers [s].

    Parameters
    ----------
    shapes : RankShapes
    job : ParallelPlan
        Plan of the whole job, of which the shapes may show a part.
    kernels : float
        Steps of the host for the kernels and communications of all passes.
    layers, passes : int
        Layers, and how often each is traced: recomputation is a pass of its own.
    """
    plan, chip = shapes.plan, shapes.chip
    if chip_family(chip, shapes.catalogue).runtime == COMPILED:
        return 0.0
    if not chip.startswith(NEURON):
        return kernels * host_dispatch_s(chip, catalogue=shapes.catalogue)
    if job.runtime == "eager":
        return kernels * shapes.catalogue.value(PART, "eager_added")
    if not traces_lazily(job):
        return 0.0
    rank = rank_of(chip, "bf16", plan.ranks_per_chip, shapes.catalogue)
    each_s = rank.constant("host_layer_pass")
    if plan.lora_rank:
        each_s += rank.constant("host_adapter_pass")
    deeper = shapes.model.layers / rank.constant("host_trace_layers")
    traced_s = layers * passes * each_s * deeper ** rank.constant("host_trace_growth")
    started_s = shapes.catalogue.value(PART, "xla_least") if job.runtime == "xla" else 0.0
    return float(max(traced_s, started_s))


def scheduling_share(shapes: RankShapes, job: ParallelPlan) -> float:
    """Unexplained time as a share of the kernels' own; 0 inside one chip."""
    return _over_chips(shapes, job, "scheduling")


def sharded_bytes_per_s(shapes: RankShapes, job: ParallelPlan) -> float:
    """Rate at which sharded parameters reach a rank while its kernels wait; 0 where none do [B/s].

    Under ZeRO-3 over several Trainium chips kernels were seen to wait for what is gathered and
    reduced, however much there was to compute meanwhile: two models of which one has ten times the
    parameters and eight times the kernels took ten times as long beyond their kernels.
    """
    if job.sharding != 3:
        return 0.0
    return _over_chips(shapes, job, "sharded_rate") / job.ranks_per_chip


def _over_chips(shapes: RankShapes, job: ParallelPlan, name: str) -> float:
    """Constant of training of a chip where a plan spans several; else 0."""
    stated = f"{name}_{shapes.chip}"
    if job.ranks <= job.ranks_per_chip or not shapes.catalogue.has("training", stated):
        return 0.0
    return shapes.catalogue.value("training", stated)
