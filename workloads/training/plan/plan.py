"""The ``ParallelPlan``: how an iteration is divided among ranks, checked when it is constructed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Literal

from topologies.support import display
from topologies.support.arguments import fitting
from topologies.support.errors import EXCERPT, InputError, excerpt, suggestion
from topologies.support.options import documented, setting
from workloads.kernels.precision import CASTS, TRAINING
from workloads.training.plan.schedules import registry
from workloads.training.plan.schedules.schedule import PipelineSchedule

# Values that each field of a plan may have, whatever the other fields are.

Recompute = Literal["none", "selective", "full"]
Overlap = Literal["none", "dp", "all"]
CpExchange = Literal["ring", "all-gather"]

CHOICES = {
    "recompute": ("none", "selective", "full"),
    "overlap": ("none", "dp", "all"),
    "precision": TRAINING,
    "fp8_recipe": tuple(CASTS),
    "attention": ("fused", "unfused"),
    "zero": (0, 1, 2, 3),
    "cp_exchange": ("ring", "all-gather"),
    "lora_on": ("all", "attention"),
    "train_only": ("", "attention", "mlp", "output"),
    "optimizer": ("adamw", "muon", "adafactor", "sgd"),
    "runtime": ("compiled", "eager", "xla"),
}
"""Allowed values of fields with a fixed list; ``schedule`` may have any name of the registry."""


@cache
def framework_names() -> tuple[str, ...]:
    """Return the names of the shipped frameworks, sorted."""
    folder = files("workloads.training") / "frameworks"
    stems = (entry.name for entry in folder.iterdir())
    return tuple(sorted(stem.removesuffix(".yaml") for stem in stems if stem.endswith(".yaml")))


ORDER = ("tp", "cp", "dp", "pp")  # axes of ranks in their default order, the fastest-changing first
SEARCHED = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero", "sequence_parallel",
    "schedule", "recompute", "order",
)  # fmt: skip
"""Fields of a plan that a search varies unless they are stated."""
MOST_CAPACITY = 1024
"""Largest capacity factor and skew: with it, each of 1,024 experts has room for all tokens."""


def check_field(name: str, value: object) -> None:
    """Refuse a value that a field of a plan cannot have, whatever the other fields are."""
    # Its kind follows from the default: a whole number, of which 0 stands for the default where it
    # is 0, a flag, a number or a text.
    usual, fits, must = getattr(ParallelPlan, name, None), True, ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in CHOICES:
        fits = isinstance(value, str | int) and value in CHOICES[name]
        if not fits:
            texts = [str(choice) for choice in CHOICES[name] if choice != ""]
            must = f"one of {', '.join(texts)}.{suggestion(str(value), texts)}"
    elif name == "schedule":
        registry.pipeline_schedule(" ".join(str(value).split()))
    elif name == "order":
        axes = [str(each) for each in value] if isinstance(value, tuple | list) else []
        if sorted(axes) != sorted(ORDER):
            raise InputError(
                f"rank order {('-'.join(axes) or excerpt(value))[:EXCERPT]} does not name each of "
                f"{', '.join(ORDER)} once. Write it as {'-'.join(ORDER)}."
            )
    elif name == "stage_layers":
        fits, must = isinstance(value, tuple), "a tuple, such as (9, 7)."
        for layers in value if isinstance(value, tuple) else ():
            _check_whole(name, layers, least=0)
    elif isinstance(usual, bool):
        fits, must = isinstance(value, bool), "true or false."
    elif isinstance(usual, float):
        limits = f"at least {usual:g} and" if usual else "0, for no limit, or"
        kind = f"a number of at least {usual:g}." if usual else "a number."
        must = f"{limits} at most {MOST_CAPACITY}." if number else kind
        fits = isinstance(value, int | float) and number and usual <= value <= MOST_CAPACITY
    elif isinstance(usual, int):
        _check_whole(name, value, most=2**31 if usual else 2**50, or_nothing=not usual)
    elif isinstance(usual, str):
        fits, must = isinstance(value, str), "a text."
    if not fits:
        raise InputError(f"{name} is {excerpt(value)}; it must be {must}")


def _check_whole(
    name: str, value: object, *, most: int = 2**31, least: int = 1, or_nothing: bool = False
) -> None:
    if or_nothing and type(value) is int and value == 0:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        above = f" and at most {most:,}" if isinstance(value, int) and value > most else ""
        raise InputError(
            f"{name} is {excerpt(value)}; it must be a whole number of at least {least}{above}"
            f"{', or 0' * or_nothing}."
        )


def nearest(degree: int, size: int, heads: int = 1) -> int:
    """Return the degree nearest to the stated one that divides a size, for a message's remedy."""
    # Of two that are equally near, it is the smaller one.
    divisors = [d for d in range(1, min(size, 4 * degree) + 1) if size % d == 0]
    fitting = [d for d in divisors if heads % d == 0 or d % heads == 0]
    return min(fitting, key=lambda d: abs(d - degree))


@documented
@fitting("Plan")
@dataclass(frozen=True)
class ParallelPlan:
    """Plan of a training step: degrees of parallelism, pipeline, memory savings and overlap.

    Raises
    ------
    InputError
        For a value that its field cannot have, and for fields that contradict each other.

    Examples
    --------
    >>> plan = ParallelPlan(tp=8, pp=2, dp=4, global_batch=64)
    >>> plan, plan.ranks
    (Plan(tp=8, pp=2, dp=4, global_batch=64), 64)

    Attributes
    ----------
    assumed : tuple of str
        Fields that nobody stated, whose values are usual ones. Plans that differ in nothing else
        are equal.
    """

    tp: int = setting(1, "Tensor-parallel degree")
    pp: int = setting(1, "Pipeline-parallel degree: number of stages")
    dp: int = setting(1, "Data-parallel degree", default="fills the cluster")
    cp: int = setting(1, "Context-parallel degree")
    # Experts divide the tp · cp · dp ranks of a stage anew.
    ep: int = setting(1, "Expert-parallel degree")
    etp: int = setting(0, "Tensor-parallel degree of experts", default="that of --tp")
    vpp: int = setting(1, "Model chunks of a pipeline stage")
    microbatch: int = setting(
        1,
        "Sequences that a rank processes at once",
        default="1, or with --tp alone up to 4 that fit",
    )
    global_batch: int = setting(
        1,
        "Sequences of one optimizer step: its tokens divided by --seq",
        default="16 microbatches for each replica, or a sequence for each chip where the plan is "
        "searched",
    )
    seq: int = setting(4096, "Tokens of a sequence", default="4096, or the model's most")
    sample_tokens: int = setting(
        0,
        "Tokens of each of the samples that are packed into a sequence, or for samples of unequal "
        "lengths the sum of their squares over their sum; attention stays within a sample",
        default="one sample for each sequence",
    )
    # arXiv 1910.02054; stages count over dp and cp, and stage 3 gathers parameters for each pass.
    zero: int = setting(
        1,
        "ZeRO stage: 1 shards the optimizer state, 2 gradients as well, 3 parameters as well",
        choices=CHOICES["zero"],
    )
    # Otherwise both stay whole over a step, as in PyTorch's FSDP across a pipeline.
    reshard: bool = setting(
        True, "Shard parameters and gradients again after each pass (ZeRO-2 and 3)"
    )
    sequence_parallel: bool = setting(
        True,
        "Split norms and residuals along the sequence over --tp",
        default="on where --tp divides the sequence",
    )
    schedule: str = setting(registry.DEFAULT, "Pipeline schedule", choices=registry.schedule_names)
    recompute: Recompute = setting(
        "selective",
        "Activations to recompute: those of attention's core (selective) or of layers (full)",
        choices=CHOICES["recompute"],
    )
    recompute_every: int = setting(1, "Under full recomputation, recompute only every N-th layer")
    precision: str = setting("bf16", "Precision of matrix products", choices=CHOICES["precision"])
    fp8_recipe: str = setting(
        "tensorwise", "Granularity of the scales of fp8", choices=CHOICES["fp8_recipe"]
    )
    overlap: Overlap = setting(
        "dp",
        "Communication that runs beside compute: that of gradients and parameters (dp), or also "
        "that of tensor and pipeline parallelism (all)",
        choices=CHOICES["overlap"],
    )
    attention: str = setting("fused", "Attention kernel", choices=CHOICES["attention"])
    ranks_per_chip: int = setting(1, "Ranks on a chip", default="1, on Trainium1 2")
    order: tuple[str, ...] = setting(
        ORDER, "Axes from the one along which rank numbers change fastest", kind=str
    )
    # Passed round a ring beside attention (arXiv 2310.01889), or gathered before it (arXiv
    # 2407.21783, section 3.3.2)
    cp_exchange: CpExchange = setting(
        "ring", "Context parallelism's exchange of keys", choices=CHOICES["cp_exchange"]
    )
    routing_skew: float = setting(1.0, "Tokens of the busiest expert-parallel rank over the mean")
    # Tokens beyond it are dropped (GShard, arXiv 2006.16668).
    capacity_factor: float = setting(
        0.0,
        "Capacity of each expert over its mean number of tokens; empty slots are computed too",
        default="0: no limit",
    )
    routed_nodes: int = setting(
        0,
        "Most servers to which a token is sent for its experts, once to each",
        default="0: no limit, a copy for each expert",
    )
    fp8_exchange: bool = setting(False, "Send tokens to experts in fp8; results return in bf16")
    stage_layers: tuple[int, ...] = setting(
        (), "Layers of each model chunk", kind=str, metavar="N-N-…", default="as even as possible"
    )
    bucket_bytes: int = setting(
        0,
        "Bytes of gradients that are reduced together during the backward pass, such as 160MB",
        name="bucket",
        kind=str,
        default="that of the training library",
    )
    lora_rank: int = setting(
        0, "Rank of trained adapters (LoRA), beside frozen weights", default="0: no adapters"
    )
    lora_on: str = setting("all", "Matrix products that have adapters", choices=CHOICES["lora_on"])
    train_only: str = setting(
        "",
        "The only part of the model that is trained",
        kind=str,
        choices=CHOICES["train_only"][1:],
        default="all of it",
    )
    optimizer: str = setting(
        "adamw", "Optimizer, which sets state and update", choices=CHOICES["optimizer"]
    )
    runtime: str = setting(
        "compiled",
        "Way in which Trainium's host issues work: as compiled graphs, operation by operation, or "
        "through torch-xla",
        choices=CHOICES["runtime"],
    )
    framework: str = setting(
        "",
        "Training stack that runs the plan, with settings as in megatron-lm:2020, or FILE.yaml",
        metavar="NAME",
        choices=framework_names,
        default="the usual one of the chip and the kind of plan",
    )
    assumed: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        stated = display.stated_fields(self).items()
        return f"Plan({', '.join(f'{name}={value!r}' for name, value in stated)})"

    def _repr_html_(self) -> str:
        return display.table("Plan", {"ranks": f"{self.ranks:,}", **display.stated_fields(self)})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not getattr(ParallelPlan, name):  # a default needs no check
                check_field(name, value)
        _check_pipeline(self)
        if CASTS[self.fp8_recipe] and self.precision != "fp8":
            raise InputError(
                f"fp8 recipe {self.fp8_recipe} is about scales in fp8, but precision is "
                f"{self.precision}. Use precision fp8, or leave it out."
            )
        _check_experts(self)
        _check_samples(self)
        sequences = self.dp * self.microbatch
        if self.global_batch % sequences:
            below = self.global_batch // sequences * sequences
            near = f"{below} or {below + sequences}" if below else f"{sequences}"
            raise InputError(
                f"global batch {self.global_batch} is not a multiple of dp {self.dp} × microbatch "
                f"{self.microbatch} = {sequences}. Use {near}."
            )
        _check_trained(self)

    @property
    def pipeline(self) -> PipelineSchedule:
        """The pipeline schedule that ``schedule`` names; one stage runs the usual of most."""
        named = registry.pipeline_schedule(self.schedule)
        # One stage has passes of several microbatches to pair, but no other chunk of DualPipe.
        acts = self.pp > 1 or (named.pairs_passes and not named.splits_weights)
        return named if acts else registry.pipeline_schedule(registry.DEFAULT)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def ranks_of_chip(self) -> int:
        """Ranks of a chip that have work; others of a single chip may be idle."""
        return min(self.ranks, self.ranks_per_chip)

    @property
    def stage_ranks(self) -> int:
        """Number of ranks of a pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree of experts."""
        return self.etp or self.tp

    @property
    def sharding(self) -> int:
        """ZeRO stage of an iteration's passes."""
        # Without resharding, gradients and parameters stay whole until the end of the step, so its
        # passes exchange them as under ZeRO-1. A single replica has nobody to share with.
        if self.replicas == 1:
            return 0
        return self.zero if self.reshard else min(self.zero, 1)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, experts aside, and among which ZeRO shards them."""
        return self.dp * self.cp

    @property
    def exchange_bytes(self) -> float:
        """Bytes of an element of a token on its way to experts."""
        # In fp8, 128 elements share a scale in fp32.
        return 1 + 4 / 128 if self.fp8_exchange else 2.0

    @property
    def expert_load(self) -> float:
        """Tokens that the busiest rank's experts compute, over the mean of all ranks."""
        if self.capacity_factor:
            return self.capacity_factor
        return self.routing_skew if self.ep > 1 else 1.0

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.stage_ranks // (self.ep * self.expert_tp))

    @property
    def names_framework(self) -> bool:
        """Return whether the framework was stated by its name, not taken for the usual one."""
        return "framework" not in self.assumed and self.framework[:1] not in ("", ":")

    @property
    def norm_axes(self) -> tuple[str, ...]:
        """Axes along which ranks add up the squares of their gradients for the global norm."""
        # Gradients that replicas have in common must count once, so dp and cp are among the axes
        # only where ranks along them hold different gradients: shards of them, or other experts.
        same_on_replicas = self.sharding == 0 and self.ep == 1
        return ("pp", "tp") if same_on_replicas else ("pp", "dp", "cp", "tp")

    @property
    def norm_ranks(self) -> int:
        """Ranks of the all-reduce of the gradients' norm."""
        return math.prod(getattr(self, axis) for axis in self.norm_axes)

    @property
    def local_seq(self) -> int:
        """Tokens of a sequence on one rank."""
        return self.seq // self.cp

    @property
    def context(self) -> int:
        """Tokens that attention looks among: those of a sequence, or of a sample packed into it."""
        return self.sample_tokens or self.seq

    @property
    def microbatches(self) -> int:
        """Microbatches of one iteration on each rank."""
        return self.global_batch // (self.dp * self.microbatch)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch * self.seq

    @property
    def sp(self) -> int:
        """Parts of a sequence among which sequence parallelism divides norms and residuals."""
        return self.tp if self.sequence_parallel else 1


PLAN_FIELDS = tuple(entry.name for entry in fields(ParallelPlan) if entry.compare)
"""Names of the fields that a user may state."""


# Agreement between the fields of a plan, each of which may have its value by itself.


def _check_samples(plan: ParallelPlan) -> None:
    """Refuse packed samples that a sequence has no room for, or whose mask saves no work."""
    if plan.sample_tokens > plan.seq:
        raise InputError(
            f"sample_tokens {plan.sample_tokens} is more than the {plan.seq} tokens of a sequence "
            f"(seq). Use at most {plan.seq}."
        )
    if 0 < plan.sample_tokens < 2 * plan.cp and plan.cp > 1:
        raise InputError(
            f"sample_tokens {plan.sample_tokens} cannot be divided over cp {plan.cp}, of which "
            f"each rank takes two parts of a sample. Use at least {2 * plan.cp}."
        )
    if plan.sample_tokens and plan.attention == "unfused":
        raise InputError(
            f"sample_tokens {plan.sample_tokens} needs fused attention: unfused kernels compute "
            "the scores of the whole sequence and mask them. Leave out sample_tokens, or use "
            "attention fused."
        )


def _check_pipeline(plan: ParallelPlan) -> None:
    """Refuse chunks of stages that the pipeline or its schedule does not have."""
    schedule, pp, vpp = plan.pipeline, plan.pp, plan.vpp
    if vpp > 1 and pp == 1:
        raise InputError(f"vpp {vpp} divides the stages of a pipeline, but pp is 1. Use vpp 1.")
    allowed = schedule.chunks_allowed
    if vpp not in allowed and pp > 1:
        has = f"at least {allowed[0]} chunks"  # the only other ranges have no end
        if len(allowed) == 1:
            has = "one chunk" if allowed[0] == 1 else f"{allowed[0]} chunks"
        raise InputError(
            f"schedule {schedule.name} has {has} a stage, not vpp {vpp}. "
            f"Use vpp {allowed[0]} or --schedule {registry.schedule_of_chunks(vpp)}."
        )
    chunks = pp * vpp
    if plan.stage_layers and len(plan.stage_layers) != chunks:
        raise InputError(
            f"stage_layers names {len(plan.stage_layers)} chunks, but pp {pp} × vpp {vpp} = "
            f"{chunks}. Name the layers of each."
        )


def _check_experts(plan: ParallelPlan) -> None:
    """Refuse an exchange where no rank has other experts, and degrees that divide no stage."""
    exchanges = {"routed nodes": plan.routed_nodes, "fp8 exchange": plan.fp8_exchange}
    for name, value in exchanges.items():
        if value and plan.ep == 1:
            raise InputError(
                f"{name} is about exchanges between ranks with other experts, but ep is 1. "
                "Use ep above 1, or leave it out."
            )
    expert_ranks = plan.ep * plan.expert_tp
    if plan.stage_ranks % expert_ranks:
        others, further = divmod(plan.stage_ranks, plan.expert_tp)
        near = f"ep {nearest(plan.ep, max(1, others))}"
        if further:
            near = f"etp {nearest(plan.expert_tp, plan.stage_ranks)}"
        elif plan.expert_tp > 1 and plan.stage_ranks % plan.ep == 0:
            near += " or etp 1"
        raise InputError(
            f"ep {plan.ep} × etp {plan.expert_tp} = {expert_ranks} does not divide the tp "
            f"{plan.tp} × cp {plan.cp} × dp {plan.dp} = {plan.stage_ranks} ranks of a stage. "
            f"Use {near}."
        )


def _check_trained(plan: ParallelPlan) -> None:
    """Refuse adapters, which freeze all weights, beside trained weights, and Muon without any."""
    # A place for adapters is refused as well where there are none. Muon has only matrices of layers
    # to orthogonalize.
    if plan.lora_rank and plan.train_only:
        raise InputError(
            f"lora rank {plan.lora_rank} freezes all weights, so train only {plan.train_only} "
            "cannot hold as well. State one of them."
        )
    if plan.lora_on != "all" and not plan.lora_rank:
        raise InputError(
            f"lora on {plan.lora_on} says where adapters are, but lora rank is 0, so there are "
            "none. State lora rank, or leave it out."
        )
    output = "the output layer" if plan.train_only == "output" else ""
    trained = "adapters" if plan.lora_rank else output
    if plan.optimizer == "muon" and trained:
        raise InputError(
            f"optimizer muon updates the matrices of layers, and this plan trains {trained} alone. "
            "Use adamw."
        )
