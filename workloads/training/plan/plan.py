"""The ParallelPlan: how an iteration is divided among ranks, checked before anything is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from topologies import display
from topologies.errors import InputError
from topologies.options import option
from workloads.kernels.precision import CASTS
from workloads.training.plan.fields import (
    CHOICES,
    ORDER,
    CpExchange,
    Overlap,
    Recompute,
    check_field,
    nearest,
)
from workloads.training.plan.schedules.registry import (
    DEFAULT,
    pipeline_schedule,
    schedule_names,
    schedule_of_chunks,
)
from workloads.training.plan.schedules.schedule import PipelineSchedule


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
        States that are sharded over dp and cp: 0 none, 1 the optimizer's state, 2 also gradients,
        3 also parameters (arXiv 1910.02054), which are gathered for each pass and dropped after.
    reshard : bool
        Under ZeRO-2 and 3 whether each pass leaves but the shards; if not, gradients and parameters
        stay whole over a step, as in PyTorch's FSDP across a pipeline.
    sequence_parallel : bool
        Whether norms and residuals are split along the sequence over tp (arXiv 2205.05198).
    schedule : str
        Name of a pipeline schedule, see :mod:`workloads.training.plan.schedules`.
    recompute : {"none", "selective", "full"}
        ``selective``: the attention core; ``full``: whole layers.
    recompute_every : int
        Under full recomputation one layer in so many is computed again: 1 for each, 2 for every
        second one, which FSDP calls selective.
    precision : {"bf16", "fp8", "mxfp8", "mxfp4"}
        Precision of the inputs of the layers' matrix products, and of what is gathered for them.
    fp8_recipe : {"tensorwise", "rowwise", "blockwise"}
        Values that share a scale in fp8. Inputs with scales of rows or blocks are gathered in bf16
        and cast for each product, see :data:`workloads.kernels.precision.CASTS`.
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
        Way in which ranks of one sequence see each other's keys and values: in a ring, beside
        attention (arXiv 2310.01889), or all of them before it (arXiv 2407.21783, section 3.3.2).
    routing_skew : float
        Tokens that the busiest expert-parallel rank receives over the mean.
    capacity_factor : float
        Room of each expert over the mean number of its tokens; tokens beyond it are dropped, and
        room that is left is computed all the same (GShard, arXiv 2006.16668). 0 has no limit.
    routed_nodes : int
        Servers on which the experts of a token lie at most, each of which is sent the token once;
        0 sends a copy for each expert, wherever it is.
    fp8_exchange : bool
        Whether tokens, and gradients of outputs, travel to experts in fp8; results come back in
        bf16 (arXiv 2412.19437, section 3.3.3).
    stage_layers : tuple of int
        Layers of each chunk in order of the model; as even as possible where it is empty.
    bucket_bytes : int
        Gradients that are reduced together beside the backward pass, at least [B]; 0 for the
        library's default, see :func:`workloads.training.layers.data_parallel.bucket_parameters`.
    lora_rank : int
        Rank of the adapters that are trained beside frozen weights; 0 trains the weights.
    lora_on : {"all", "attention"}
        Products that have adapters.
    train_only : {"", "attention", "mlp", "output"}
        The one part of the model that is trained; empty for all of it.
    runtime : {"compiled", "eager", "xla"}
        Trainium's host issues whole microbatches, single operations, or programs of torch-xla.

    Raises
    ------
    InputError
        For a value that its field cannot have, and for fields that contradict one another.

    Examples
    --------
    >>> plan = ParallelPlan(tp=8, pp=2, dp=4, global_batch=64)
    >>> plan, plan.ranks
    (Plan(tp=8, pp=2, dp=4, global_batch=64), 64)
    """

    tp: int = field(default=1, metadata=option("Tensor-parallel degree"))
    pp: int = field(default=1, metadata=option("Pipeline-parallel degree: number of stages"))
    dp: int = field(
        default=1,
        metadata=option("Data-parallel degree", default="fills the cluster"),
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
        metadata=option("Activations to recompute", choices=CHOICES["recompute"]),
    )
    recompute_every: int = field(
        default=1, metadata=option("Under full recomputation, recompute only every N-th layer")
    )
    precision: str = field(
        default="bf16",
        metadata=option("Precision of matrix products", choices=CHOICES["precision"]),
    )
    fp8_recipe: str = field(
        default="tensorwise",
        metadata=option("Granularity of scales in fp8", choices=CHOICES["fp8_recipe"]),
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
    capacity_factor: float = field(
        default=0.0,
        metadata=option(
            "Room of each expert over its mean tokens, all of it computed", default="0: no limit"
        ),
    )
    routed_nodes: int = field(
        default=0,
        metadata=option(
            "Servers of a token's experts at most, each sent the token once",
            default="0: a copy for each expert",
        ),
    )
    fp8_exchange: bool = field(
        default=False, metadata=option("Send tokens to experts in fp8; results return in bf16")
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
    lora_rank: int = field(
        default=0,
        metadata=option("Rank of trained adapters; weights are frozen", default="0, no adapters"),
    )
    lora_on: str = field(
        default="all", metadata=option("Products with adapters", choices=CHOICES["lora_on"])
    )
    train_only: str = field(
        default="",
        metadata=option(
            "The only part of the model that is trained",
            kind=str,
            choices=CHOICES["train_only"][1:],
            default="all of it",
        ),
    )
    runtime: str = field(
        default="compiled",
        metadata=option("Way in which work is issued to Trainium", choices=CHOICES["runtime"]),
    )

    def __repr__(self) -> str:
        stated = display.stated_fields(self).items()
        return f"Plan({', '.join(f'{name}={value!r}' for name, value in stated)})"

    def _repr_html_(self) -> str:
        return display.table("Plan", {"ranks": f"{self.ranks:,}", **display.stated_fields(self)})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_field(name, value)
        self._check_pipeline()
        self._check_recipe()
        self._check_experts()
        self._check_batch()
        if self.lora_rank and self.train_only:
            raise InputError(
                f"lora rank {self.lora_rank} freezes all weights, so train only "
                f"{self.train_only} cannot hold as well. State one of them."
            )

    def _check_batch(self) -> None:
        once = self.dp * self.microbatch
        if self.global_batch % once:
            below = self.global_batch // once * once
            near = f"{below} or {below + once}" if below else f"{once}"
            raise InputError(
                f"global batch {self.global_batch} is not a multiple of dp {self.dp} × microbatch "
                f"{self.microbatch} = {once}. Use {near}."
            )

    def _check_recipe(self) -> None:
        if CASTS[self.fp8_recipe] and self.precision != "fp8":
            raise InputError(
                f"fp8 recipe {self.fp8_recipe} is about scales in fp8, but precision is "
                f"{self.precision}. Use precision fp8, or leave it out."
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

    def _check_chunks(self) -> None:
        allowed = self.pipeline.chunks_allowed
        if self.vpp in allowed or self.pp == 1:
            return
        has = f"{allowed[0]} to {allowed[-1]} chunks"
        if len(allowed) == 1:
            has = "one chunk" if allowed[0] == 1 else f"{allowed[0]} chunks"
        raise InputError(
            f"schedule {self.schedule} has {has} a stage, not vpp {self.vpp}. "
            f"Use vpp {allowed[0]} or --schedule {schedule_of_chunks(self.vpp)}."
        )

    def _check_experts(self) -> None:
        inner, room = self.ep * self.expert_tp, self.tp * self.cp * self.dp
        exchanges = {"routed nodes": self.routed_nodes, "fp8 exchange": self.fp8_exchange}
        for name, value in exchanges.items():
            if value and self.ep == 1:
                raise InputError(
                    f"{name} is about exchanges between ranks with other experts, but ep is 1. "
                    f"Use ep above 1, or leave it out."
                )
        if self.ep > 1 and room % inner:
            raise InputError(
                f"ep {self.ep} × etp {self.expert_tp} = {inner} does not divide the tp {self.tp} × "
                f"cp {self.cp} × dp {self.dp} = {room} ranks of a stage. "
                f"Use ep {nearest(self.ep, room // math.gcd(room, self.expert_tp))}."
            )

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
        """ZeRO level in effect within an iteration: parts that stay whole in it are not sharded."""
        return self.zero if self.reshard else min(self.zero, 1)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, experts aside, and share what ZeRO shards."""
        return self.dp * self.cp

    @property
    def exchange_bytes(self) -> float:
        """Bytes of an element of a token on its way to experts; fp8 has a scale for each 128."""
        return 1 + 4 / 128 if self.fp8_exchange else 2.0

    @property
    def expert_load(self) -> float:
        """Rows that the busiest rank's experts compute over the mean number of their tokens."""
        if self.capacity_factor:
            return self.capacity_factor
        return self.routing_skew if self.ep > 1 else 1.0

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
