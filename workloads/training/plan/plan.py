"""The ParallelPlan: how an iteration is divided among ranks, checked before anything is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from topologies.errors import InputError, suggestion
from topologies.options import option
from workloads.training.plan.schedules.registry import (
    DEFAULT,
    pipeline_schedule,
    schedule_names,
    schedule_of_chunks,
)
from workloads.training.plan.schedules.schedule import PipelineSchedule

if TYPE_CHECKING:
    from workloads.models.model import Model

Recompute = Literal["none", "selective", "full"]
Overlap = Literal["none", "dp", "all"]
CpExchange = Literal["ring", "all-gather"]

CHOICES = {
    "recompute": ("none", "selective", "full"),
    "overlap": ("none", "dp", "all"),
    "precision": ("bf16", "fp8"),
    "attention": ("fused", "unfused"),
    "zero": (0, 1, 2, 3),
    "cp_exchange": ("ring", "all-gather"),
}
"""Choices of each field that has some; ``schedule`` has those of the registry."""

ORDER = ("tp", "cp", "dp", "pp")
ENDS = 2
"""Chunks that need no layer: the first, with the embedding, and the last, with the output layer."""


@dataclass(frozen=True)
class ParallelPlan:
    """Degrees of parallelism, the pipeline, memory savings and overlap.

    Attributes
    ----------
    tp, pp, dp, cp : int
        Tensor, pipeline, data, context parallel degree: their product is the number of ranks.
    ep, etp : int
        Expert parallel degree and tensor parallel degree of experts, which divide the tp · cp · dp
        ranks of a stage anew; etp 0 is that of tp.
    vpp : int
        Model chunks of one pipeline stage.
    microbatch : int
        Sequences that one rank works on at once.
    global_batch : int
        Sequences of one optimizer step.
    seq : int
        Tokens of a sequence.
    zero : int
        What is sharded over dp and cp: 0 nothing, 1 the optimizer's state, 2 also gradients,
        3 also parameters (arXiv 1910.02054), which are gathered for each pass and dropped after.
    reshard : bool
        Under ZeRO-2 and 3 whether each pass leaves but the shards; if not, gradients and parameters
        stay whole from a step's first microbatch to its last, as in PyTorch's FSDP across a
        pipeline.
    sequence_parallel : bool
        Whether norms and residuals are split along the sequence over tp (arXiv 2205.05198).
    schedule : str
        Name of a pipeline schedule, see :mod:`workloads.training.plan.schedules`.
    recompute : {"none", "selective", "full"}
        ``selective``: the attention core; ``full``: whole layers.
    recompute_every : int
        Under full recomputation, every how many-th layer is computed again: 2 is what frameworks of
        FSDP call selective.
    precision : {"bf16", "fp8"}
        Of the inputs of the layers' matrix products.
    overlap : {"none", "dp", "all"}
        Which communication runs beside compute: none; that of gradients and parameters, as data
        parallelism of PyTorch does unasked; or also that of tensor, expert and pipeline parallelism
        where the data allow it.
    attention : {"fused", "unfused"}
        One kernel that keeps no scores, or one for each step.
    ranks_per_chip : int
        Ranks (logical cores) of one chip.
    order : tuple of str
        Axes from the fastest changing rank number to the slowest.
    cp_exchange : {"ring", "all-gather"}
        How ranks of one sequence see each other's keys and values: in a ring, beside attention
        (arXiv 2310.01889), or all of them before it (arXiv 2407.21783, section 3.3.2).
    routing_skew : float
        Tokens that the busiest expert-parallel rank receives over the mean.
    stage_layers : tuple of int
        Layers of each chunk in order of the model; as even as possible where it is empty.
    bucket_bytes : int
        Gradients that are reduced together beside the backward pass, at least [B]; 0 for the
        library's default, see :func:`workloads.training.layers.data_parallel.bucket_parameters`.
    """

    tp: int = field(default=1, metadata=option("Tensor-parallel degree"))
    pp: int = field(default=1, metadata=option("Pipeline-parallel degree: number of stages"))
    dp: int = field(
        default=1, metadata=option("Data-parallel degree", default="what fills the cluster")
    )
    cp: int = field(default=1, metadata=option("Context-parallel degree"))
    ep: int = field(default=1, metadata=option("Expert-parallel degree"))
    etp: int = field(
        default=0, metadata=option("Tensor-parallel degree of experts", default="that of --tp")
    )
    vpp: int = field(default=1, metadata=option("Model chunks of a pipeline stage"))
    microbatch: int = field(default=1, metadata=option("Sequences that a rank processes at once"))
    global_batch: int = field(
        default=1,
        metadata=option("Sequences of one optimizer step", default="16 microbatches a rank"),
    )
    seq: int = field(
        default=4096, metadata=option("Tokens of a sequence", default="4096, or all of the model's")
    )
    zero: int = field(
        default=1,
        metadata=option(
            "ZeRO stage: 1 shards the optimizer state, 2 gradients as well, 3 parameters as well",
            choices=CHOICES["zero"],
        ),
    )
    reshard: bool = field(
        default=True,
        metadata=option("Shard parameters and gradients again after each pass (ZeRO-2 and 3)"),
    )
    sequence_parallel: bool = field(
        default=True,
        metadata=option(
            "Split norms and residuals along the sequence over --tp",
            default="on where --tp divides the sequence",
        ),
    )
    schedule: str = field(
        default=DEFAULT, metadata=option("Pipeline schedule", choices=schedule_names)
    )
    recompute: Recompute = field(
        default="selective",
        metadata=option("Activations to compute again", choices=CHOICES["recompute"]),
    )
    recompute_every: int = field(
        default=1, metadata=option("Under full recomputation, compute each N-th layer again")
    )
    precision: str = field(
        default="bf16",
        metadata=option("Precision of matrix products", choices=CHOICES["precision"]),
    )
    overlap: Overlap = field(
        default="dp",
        metadata=option("Communication that runs beside compute", choices=CHOICES["overlap"]),
    )
    attention: str = field(
        default="fused", metadata=option("Attention kernel", choices=CHOICES["attention"])
    )
    ranks_per_chip: int = field(
        default=1, metadata=option("Ranks of a chip", default="1; on Trainium1 2")
    )
    order: tuple[str, ...] = field(
        default=ORDER,
        metadata=option("Axes from the fastest-changing rank number to the slowest", kind=str),
    )
    cp_exchange: CpExchange = field(
        default="ring",
        metadata=option("Exchange of keys and values", choices=CHOICES["cp_exchange"]),
    )
    routing_skew: float = field(
        default=1.0, metadata=option("Tokens of the busiest expert-parallel rank over the mean")
    )
    stage_layers: tuple[int, ...] = field(
        default=(),
        metadata=option(
            "Layers of each model chunk", kind=str, metavar="N-N-…", default="as even as possible"
        ),
    )
    bucket_bytes: int = field(
        default=0,
        metadata=option(
            "Gradients reduced together beside the backward pass, such as 160MB",
            name="bucket",
            kind=str,
            default="that of the training library",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "global_batch", "seq"):
            _positive(name, getattr(self, name))
        _positive("ranks_per_chip", self.ranks_per_chip)
        _positive("recompute_every", self.recompute_every)
        for name, known in CHOICES.items():
            _choice(name, getattr(self, name), known)
        pipeline_schedule(self.schedule)
        for name in ("etp", "bucket_bytes"):
            if getattr(self, name) != 0:
                _positive(name, getattr(self, name), most=2**50)
        self._check_pipeline()
        self._check_experts()
        if sorted(self.order) != sorted(ORDER):
            raise InputError(
                f"rank order {'-'.join(self.order)} does not name each of {', '.join(ORDER)} "
                f"once. Write it as {'-'.join(ORDER)}."
            )
        self._check_batch()

    def _check_batch(self) -> None:
        once = self.dp * self.microbatch
        if self.global_batch % once:
            below = self.global_batch // once * once
            near = f"{below} or {below + once}" if below else f"{once}"
            raise InputError(
                f"global batch {self.global_batch} is not a multiple of dp {self.dp} × microbatch "
                f"{self.microbatch} = {once}. Use {near}."
            )

    def _check_pipeline(self) -> None:
        if self.vpp > 1 and self.pp == 1:
            raise InputError(
                f"vpp {self.vpp} divides the stages of a pipeline, but pp is 1. Use vpp 1."
            )
        self._check_chunks()
        chunks = self.pp * self.vpp
        if self.stage_layers and len(self.stage_layers) != chunks:
            raise InputError(
                f"stage_layers names {len(self.stage_layers)} chunks, but pp {self.pp} × vpp "
                f"{self.vpp} = {chunks}. Name the layers of each."
            )
        for number in self.stage_layers:
            _positive("stage_layers", number)

    def _check_chunks(self) -> None:
        allowed = self.pipeline.chunks_allowed
        if self.vpp in allowed or self.pp == 1:
            return
        has = "one chunk" if allowed[-1] == 1 else f"{allowed[0]} to {allowed[-1]} chunks"
        raise InputError(
            f"schedule {self.schedule} has {has} a stage, not vpp {self.vpp}. "
            f"Use vpp {allowed[0]} or --schedule {schedule_of_chunks(self.vpp)}."
        )

    def _check_experts(self) -> None:
        inner, room = self.ep * self.expert_tp, self.tp * self.cp * self.dp
        if self.ep > 1 and room % inner:
            raise InputError(
                f"ep {self.ep} × etp {self.expert_tp} = {inner} does not divide the tp {self.tp} × "
                f"cp {self.cp} × dp {self.dp} = {room} ranks of a stage. "
                f"Use ep {nearest(self.ep, room // math.gcd(room, self.expert_tp))}."
            )
        if not 1.0 <= self.routing_skew < float("inf"):
            raise InputError(f"routing_skew is {self.routing_skew}; it must be at least 1.")

    @property
    def pipeline(self) -> PipelineSchedule:
        """The pipeline schedule of that name."""
        return pipeline_schedule(self.schedule)

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def expert_tp(self) -> int:
        """Tensor parallel degree of experts."""
        return self.etp or self.tp

    @property
    def sharding(self) -> int:
        """ZeRO level in effect within an iteration: what stays whole in it is not sharded there."""
        return self.zero if self.reshard else min(self.zero, 1)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, experts aside, and share what ZeRO shards."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.tp * self.cp * self.dp // (self.ep * self.expert_tp))

    @property
    def norm_axes(self) -> tuple[str, ...]:
        """Axes of ranks whose gradients are different parts of the model's, where they are summed.

        Those that replicas have in common are counted once; experts lie across dp and cp.
        """
        whole = self.sharding == 0 and self.ep == 1
        return ("pp", "tp") if whole else ("pp", "dp", "cp", "tp")

    @property
    def norm_ranks(self) -> int:
        """Ranks that tell each other of their part of the gradients' norm."""
        return math.prod(getattr(self, axis) for axis in self.norm_axes)

    @property
    def local_seq(self) -> int:
        """Tokens of a sequence on one rank."""
        return self.seq // self.cp

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
        """Parts that norms and residuals are split into along the sequence."""
        return self.tp if self.sequence_parallel else 1


def _positive(name: str, value: object, most: int = 2**31) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        above = f" and at most {most:,}" if isinstance(value, int) and value > most else ""
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1{above}.")


def _choice(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        texts = [str(one) for one in known]
        near = suggestion(str(value), texts)
        raise InputError(f"{name} is {value!r}; it must be one of {', '.join(texts)}.{near}")


def check_model(plan: ParallelPlan, model: Model) -> None:
    """Refuse a plan that does not divide the model.

    Raises
    ------
    InputError
        With the numbers and the nearest that works.
    """
    _check_tp(plan, model)
    _check_cp(plan, model)
    _check_model_experts(plan, model)
    stages = plan.pp * plan.vpp
    if stages > model.layers + ENDS:
        raise InputError(
            f"pp {plan.pp} × vpp {plan.vpp} = {stages} stages, but {model.name} has "
            f"{model.layers} layers. Use pp {nearest(plan.pp, model.layers)} or less."
        )
    if plan.stage_layers and sum(plan.stage_layers) != model.layers:
        raise InputError(
            f"stage_layers sum to {sum(plan.stage_layers)}, but {model.name} has {model.layers} "
            "layers. Correct them or leave them out."
        )


def _check_tp(plan: ParallelPlan, model: Model) -> None:
    """Refuse a tensor parallel degree that leaves a remainder anywhere."""
    sizes = {"attention heads": model.heads}
    if model.moe_layers < model.layers:
        sizes["feed-forward columns"] = model.ffn
    if plan.sequence_parallel:
        sizes["tokens of a sequence (sequence parallel)"] = plan.local_seq
    common = math.gcd(*sizes.values())
    near = nearest(plan.tp, common, model.kv_heads)
    for what, size in sizes.items():
        if size % plan.tp:
            raise InputError(
                f"{size:,} {what} of {model.name} are not divisible by tp {plan.tp}. Use tp {near}."
            )
    if model.kv_heads % plan.tp and plan.tp % model.kv_heads:
        raise InputError(
            f"tp {plan.tp} neither divides the {model.kv_heads} key-value heads of {model.name} "
            f"nor is a multiple of them. Use tp {near}."
        )


def _check_cp(plan: ParallelPlan, model: Model) -> None:
    """Refuse a context parallel degree that does not cut a causal sequence into equal work."""
    if plan.cp == 1:
        return
    _divides("2 × cp", 2 * plan.cp, "tokens of a sequence", plan.seq, model)
    if plan.attention == "unfused":
        raise InputError(f"cp {plan.cp} needs fused attention. Use --attention fused or cp 1.")


def _check_model_experts(plan: ParallelPlan, model: Model) -> None:
    some = model.experts
    if some is None:
        if plan.ep > 1:
            raise InputError(f"ep {plan.ep} divides experts, but {model.name} has none. Use ep 1.")
        return
    _divides("ep", plan.ep, "experts of a layer", some.count, model)
    _divides("etp", plan.expert_tp, "columns of an expert", some.ffn, model)
    _divides("tp", plan.tp, "columns of the shared expert", some.shared_ffn, model)


def _divides(name: str, degree: int, what: str, size: int, model: Model) -> None:
    if size % degree:
        raise InputError(
            f"{size:,} {what} of {model.name} are not divisible by {name} {degree}. "
            f"Use {name} {nearest(degree, size)}."
        )


def nearest(degree: int, size: int, heads: int = 1) -> int:
    """Divisor of a size nearest to a degree, the smaller of two; it divides some heads or they it.

    Examples
    --------
    >>> nearest(3, 8), nearest(6, 24, 8)
    (2, 4)
    """
    divisors = [d for d in range(1, min(size, 4 * degree) + 1) if size % d == 0]
    fitting = [d for d in divisors if heads % d == 0 or d % heads == 0]
    return min(fitting, key=lambda d: abs(d - degree))


def check_ranks(plan: ParallelPlan, chips: int) -> None:
    """Refuse a plan whose degrees do not multiply to the ranks of the cluster.

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_ranks(ParallelPlan(dp=8, tp=4, pp=3, global_batch=8), 64)
    Traceback (most recent call last):
    topologies.errors.InputError: dp 8 × tp 4 × pp 3 = 96 ranks, but the cluster has 64 chips. \
Reduce dp to 5 or use 96 chips.
    """
    room = chips * plan.ranks_per_chip
    if plan.ranks == room:
        return
    each = f" of {plan.ranks_per_chip} ranks" if plan.ranks_per_chip > 1 else ""
    degrees = f"dp {plan.dp} × tp {plan.tp} × pp {plan.pp}" + (f" × cp {plan.cp}" * (plan.cp > 1))
    fits = room * plan.dp // plan.ranks
    wanted = -(-plan.ranks // plan.ranks_per_chip)
    verb = "Reduce" if plan.ranks > room else "Raise"
    remedy = f"{verb} dp to {fits}" if fits and fits != plan.dp else "Change tp or pp"
    raise InputError(
        f"{degrees} = {plan.ranks:,} ranks, but the cluster has {chips:,} chips{each}. "
        f"{remedy} or use {wanted:,} chips."
    )


def filling_dp(tp: int, pp: int, cp: int, chips: int, ranks_per_chip: int) -> int:
    """Data parallel degree that fills a cluster.

    Raises
    ------
    InputError
        When the other degrees do not divide the cluster.
    """
    room, replica = chips * ranks_per_chip, tp * pp * cp
    if replica > room or room % replica:
        near = nearest(replica, room)
        raise InputError(
            f"tp {tp} × pp {pp} × cp {cp} = {replica:,} ranks of one replica do not divide the "
            f"{room:,} ranks of the cluster. Use a product of {near:,}, or state dp."
        )
    return room // replica
