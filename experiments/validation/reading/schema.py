"""Kinds of measurement: the columns of each, their types and their allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cluster_sim.collectives.duration.expert_library import LIBRARIES, WAYS
from topologies.errors import InputError, suggestion
from workloads.kernels.precision import CASTS
from workloads.training.plan.schedules.registry import all_schedules, schedule_names

Value = int | float | str | None
Holds = Literal["text", "count", "number", "flag"]


@dataclass(frozen=True)
class Column:
    """One column.

    ``holds``: ``text``, ``count`` (a whole number), ``number`` or ``flag`` (0 or 1).
    ``required``: whether a row without it cannot be predicted.
    ``least``: smallest value of a count or a number; numbers must be above 0 where it is 0.
    ``choices``: texts that are allowed; any where empty.
    ``also``: other spellings of the choices, in small letters with hyphens.
    """

    name: str
    holds: Holds
    required: bool = False
    least: float = 1
    choices: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of measurement, and the columns of its rows.

    ``name``: ``training``, ``memory``, ``layer``, ``collective``, ``serving``, ``kernel`` or
        ``job``.
    ``published``: columns of measured values; the error of a row is that of the first that it
        states.
    """

    name: str
    columns: tuple[Column, ...]
    published: tuple[str, ...]

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a file of this kind must have."""
        return tuple(column.name for column in self.columns if column.required)

    def column(self, name: str) -> Column | None:
        """Return the column of a name, if the kind has it."""
        return next((column for column in self.columns if column.name == name), None)


def _counts(*names: str, least: float = 1) -> tuple[Column, ...]:
    return tuple(Column(name, "count", least=least) for name in names)


def _spellings(**names: str) -> dict[str, str]:
    """Choices by their other spellings, read from a text that lists these beside each choice."""
    return {other: choice for choice, others in names.items() for other in others.split()}


TOOLS = (
    *("nccl-tests", "nccom-test", "nccom-first", "nvshmem"),
    *("pytorch", "pytorch-waited", "pytorch-called"),
    *("deepep", "deepep-low-latency", "trtllm"),
)
"""Tools and libraries by which a collective or kernel was timed;
see :mod:`workloads.confidence.answers`."""
SCHEDULE = Column(
    "schedule",
    "text",
    choices=schedule_names(),
    also={other: schedule.name for schedule in all_schedules() for other in schedule.aliases},
)
RECOMPUTE = Column(
    "recompute",
    "text",
    choices=("none", "selective", "full"),
    also=_spellings(
        none="no off false 0",
        selective="attention core-attn core-attention selective-attention",
        full="yes on true 1 uniform block all layers full-layer activation",
    ),
)
OVERLAP = Column(
    "overlap",
    "text",
    choices=("none", "dp", "all"),
    also=_spellings(none="no off false 0", dp="yes on true 1 grad", all="tp tp+dp dp+tp full"),
)
ATTENTION = Column(
    "attention",
    "text",
    choices=("fused", "unfused"),
    also=_spellings(fused="flash flash-attention flash-2 flash-3 sdpa cudnn", unfused="eager core"),
)
FP8_RECIPE = Column(
    "fp8_recipe",
    "text",
    choices=tuple(CASTS),
    also=_spellings(
        tensorwise="tensor per-tensor delayed current",
        rowwise="row per-row axiswise",
        blockwise="block subchannel",
    ),
)
PLAN = (
    Column("name", "text"),
    Column("cluster", "text", required=True),
    Column("chips", "count", required=True),
    *(Column(name, "count", required=True) for name in ("layers", "hidden", "heads", "seq")),
    *_counts("ffn", "kv_heads", "head_dim", "vocab"),
    Column("gated_mlp", "flag"),
    Column("parallel_layers", "flag"),
    Column("tied_embeddings", "flag"),
    *_counts("experts", "experts_per_token", "moe_ffn", "shared_experts", least=0),
    *_counts("dense_layers", least=0),
    *_counts("tp", "pp", "vpp", "dp", "cp", "ep", "etp"),
    Column("zero", "count", least=0),
    Column("sequence_parallel", "flag"),
    SCHEDULE,
    *_counts("microbatch", "global_batch"),
    Column("precision", "text"),
    FP8_RECIPE,
    RECOMPUTE,
    OVERLAP,
    *_counts("lora_rank", "prediction_heads", least=0),
    Column("lora_on", "text", choices=("all", "attention")),
    ATTENTION,
    Column("compiled", "flag"),
    Column("graphs", "flag"),
    Column("launch_blocking", "flag"),
    Column("date", "text"),
    Column("power_limit_w", "number", least=0),
    Column("train_only", "text", choices=("attention", "mlp", "output")),
    *_counts("routed_nodes", least=0),
    Column("fp8_exchange", "flag"),
    Column("capacity_factor", "number", least=0),
    Column("model", "text"),
    Column("runtime", "text", choices=("compiled", "eager", "xla")),
    Column("optimizer", "text", choices=("adamw", "muon", "adafactor", "sgd")),
    Column("framework", "text"),
    Column("variant", "text"),
    Column("source", "text"),
)
"""Model, machine and plan of a training run."""


def _sizes(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "number", least=0) for name in names)


TRAINING = Kind(
    "training",
    columns=(
        *PLAN,
        Column("held_out", "flag"),
        Column("iteration_s", "number", least=0),
        *_sizes("memory_bytes", "reserved_bytes"),
    ),
    published=("iteration_s", "memory_bytes", "reserved_bytes"),
)
MEMORY = Kind(
    "memory",
    columns=(
        *PLAN,
        Column("fits", "flag"),
        *_sizes("memory_bytes", "reserved_bytes", "activation_bytes", "states_bytes"),
    ),
    published=("memory_bytes", "reserved_bytes", "activation_bytes", "states_bytes"),
)
LAYER = Kind(
    "layer",
    columns=(*PLAN, *_sizes("forward_s", "backward_s")),
    published=("forward_s", "backward_s"),
)
KERNELS = (
    "gemm", "attention", "decode-attention", "elementwise", "gather", "copy", "launch", "layer",
)  # fmt: skip
COLLECTIVE = Kind(
    "collective",
    columns=(
        Column("collective", "text", required=True),
        Column("cluster", "text", required=True),
        Column("chips", "count", required=True),
        Column("ranks", "count"),
        Column("algorithm", "text"),
        Column("size_bytes", "count", required=True, least=0),
        Column("group", "text"),
        Column("runtime", "text", choices=("compiled", "eager", "xla", "pytorch")),
        Column("call_s", "number", least=0),
        Column("library", "text", choices=LIBRARIES),
        Column("way", "text", choices=WAYS),
        *_counts("experts_per_token"),
        Column("what", "text"),
        Column("time_s", "number", least=0),
        Column("tool", "text", choices=TOOLS),
        Column("source", "text"),
    ),
    published=("time_s",),
)
SERVING = Kind(
    "serving",
    columns=(
        Column("model", "text", required=True),
        Column("cluster", "text", required=True),
        *_counts("chips", "tp", "pp", "ep"),
        Column("precision", "text"),
        Column("prompt_tokens", "count", required=True),
        Column("output_tokens", "count", required=True),
        *_counts("concurrency", "rounds"),
        Column("shortest_lengths", "number", least=0),
        Column("batching", "text", choices=("static", "continuous")),
        Column("scheduler", "text", choices=("vllm", "sglang", "tensorrt-llm")),
        *_counts("chunk_tokens", "poll_passes"),
        Column("overlapped", "flag"),
        Column("mixed_chunk", "flag"),
        Column("gather", "text"),
        Column("speculate", "text"),
        *_counts("attention_dp"),
        Column("cache_precision", "text", choices=("bf16", "fp8")),
        Column("memory_share", "number", least=0),
        *_counts("graph_tokens"),
        Column("block_scaled", "flag"),
        Column("date", "text"),
        *(Column(name, "number", least=0) for name in ("ttft_s", "tpot_s", "tokens_per_s")),
    ),
    published=("tpot_s", "ttft_s", "tokens_per_s"),
)
KERNEL = Kind(
    "kernel",
    columns=(
        Column("kernel", "text", required=True, choices=KERNELS),
        Column("chip", "text", required=True),
        Column("work", "text"),
        *_counts("cores"),
        Column("load", "text", choices=("alone", "loaded")),
        Column("runtime", "text", choices=("graph", "compiled", "eager", "xla")),
        Column("precision", "text"),
        *_counts("m", "n", "k", "batch", "seq", "kv_seq", "heads", "kv_heads", "head_dim"),
        Column("direction", "text", choices=("forward", "backward", "forward+backward")),
        Column("writes_cache", "flag"),
        Column("casts", "flag"),
        *_counts("size_bytes", "rows"),
        Column("tool", "text", choices=TOOLS),
        Column("source", "text"),
        Column("kernel_s", "number", least=0),
    ),
    published=("kernel_s",),
)
JOB = Kind(
    "job",
    columns=(
        Column("study", "text", required=True),
        Column("name", "text"),
        Column("cluster", "text", required=True),
        Column("chips", "count", required=True),
        *_sizes("server_failures_per_1000_days", "checkpoint_interval_s", "checkpoint_stall_s"),
        *_sizes("restart_s", "detection_s", "peer_copy_interval_s"),
        Column("warm_spares", "flag"),
        *_sizes("mtbf_s", "goodput"),
        Column("source", "text"),
    ),
    published=("mtbf_s", "goodput"),
)
"""A training job of weeks: mean time between failures, and share of useful time."""
KINDS = (COLLECTIVE, KERNEL, SERVING, TRAINING, MEMORY, LAYER, JOB)


def kind_of(header: list[str], name: str) -> Kind:
    """Kind of the rows under a header: the one whose required columns are all present.

    >>> kind_of(["collective", "cluster", "chips", "size_bytes", "time_s", "mine"], "a.csv").name
    'collective'
    """
    lacking = {kind.name: [need for need in kind.required if need not in header] for kind in KINDS}
    fitting = [kind for kind in KINDS if not lacking[kind.name]]
    if fitting:
        return max(fitting, key=lambda kind: sum(column.name in header for column in kind.columns))
    near = min(KINDS, key=lambda kind: len(lacking[kind.name]) / len(kind.required))
    wanted = lacking[near.name]
    strange = [cell for cell in header if near.column(cell) is None]
    near_name = next((close for cell in strange if (close := suggestion(cell.lower(), wanted))), "")
    kinds = ", ".join(kind.name for kind in KINDS)
    raise InputError(
        f"{name} line 1: the columns are of no known kind ({kinds}); "
        f"a {near.name} file also needs {', '.join(wanted)}.{near_name}"
    )
