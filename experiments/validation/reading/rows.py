"""Rows of measurements, read from files and shipped tables, and the predictions of rows.

A source that begins with ``memory:`` was not read from a document.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from cluster_sim.collectives.duration.expert_library import LIBRARIES, WAYS
from experiments.validation.reading.tool_outputs import NEEDED, load_test_rows
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import FILES, GRAPHS, cluster
from topologies.support.arguments import check_names
from topologies.support.errors import InputError, check_choice, excerpt, suggestion
from topologies.support.files.reading import csv_lines, csv_rows, decoded, read_bytes
from topologies.support.files.table import check_no_metrics
from workloads.models.huggingface import model, models
from workloads.models.model import Model
from workloads.training.plan.schedules.registry import SCHEDULES, schedule_names

Value = int | float | str | None
Holds = Literal["text", "count", "number", "flag"]


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    holds: Holds  # ``text``, ``count`` (a whole number), ``number`` or ``flag`` (0 or 1)
    required: bool = False  # whether a row without it cannot be predicted
    least: float = 1  # smallest value of a count or a number; numbers must be above 0 where it is 0
    choices: tuple[str, ...] = ()  # texts that are allowed; any where empty
    # Other spellings of the choices, in small letters with hyphens
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of measurement, and the columns of its rows."""

    # ``training``, ``memory``, ``layer``, ``collective``, ``serving``, ``kernel`` or ``job``
    name: str
    columns: tuple[Column, ...]
    # Columns of measured values; the error of a row is that of the first that it states
    published: tuple[str, ...]

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a file of this kind must have."""
        return tuple(column.name for column in self.columns if column.required)

    def column(self, name: str) -> Column | None:
        """Return the column of a name, if the kind has it."""
        return next((column for column in self.columns if column.name == name), None)


def _columns(
    holds: Holds, *names: str, required: bool = False, least: float = 0
) -> tuple[Column, ...]:
    return tuple(Column(name, holds, required, least) for name in names)


def _counts(*names: str, least: float = 1) -> tuple[Column, ...]:
    return _columns("count", *names, least=least)


def _choice(column: str, **names: str) -> Column:
    """Return a column of choices, from a text for each that lists its other spellings."""
    also = {other: choice for choice, others in names.items() for other in others.split()}
    return Column(column, "text", choices=tuple(names), also=also)


TOOLS = (
    *("nccl-tests", "nccl-tests-one-process", "nccom-test", "nccom-first", "nvshmem"),
    *("pytorch", "pytorch-waited", "pytorch-called"),
    *("deepep", "deepep-low-latency", "trtllm"),
)
"""Tools and libraries by which a collective or kernel was timed;
see :mod:`workloads.confidence.answers`."""
SCHEDULE = Column(
    "schedule",
    "text",
    choices=schedule_names(),
    also={other: schedule.name for schedule in SCHEDULES for other in schedule.aliases},
)
RECOMPUTE = _choice(
    "recompute",
    none="no off false 0",
    selective="attention core-attn core-attention selective-attention",
    full="yes on true 1 uniform block all layers full-layer activation",
)
OVERLAP = _choice(
    "overlap", none="no off false 0", dp="yes on true 1 grad", all="tp tp+dp dp+tp full"
)
ATTENTION = _choice(
    "attention", fused="flash flash-attention flash-2 flash-3 sdpa cudnn", unfused="eager core"
)
FP8_RECIPE = _choice(
    "fp8_recipe",
    tensorwise="tensor per-tensor delayed current",
    rowwise="row per-row axiswise",
    blockwise="block subchannel",
)
PLAN = (
    Column("name", "text"),
    Column("cluster", "text", required=True),
    *_columns("count", "chips", "layers", "hidden", "heads", "seq", required=True, least=1),
    *_counts("ffn", "kv_heads", "head_dim", "vocab"),
    *_columns("flag", "gated_mlp", "parallel_layers", "tied_embeddings"),
    *_counts("experts", "experts_per_token", "moe_ffn", "shared_experts", "dense_layers", least=0),
    *_counts("tp", "pp", "vpp", "dp", "cp", "ep", "etp"),
    Column("zero", "count", least=0),
    Column("sequence_parallel", "flag"),
    SCHEDULE,
    *_counts("microbatch", "global_batch", "sample_tokens"),
    Column("precision", "text"),
    FP8_RECIPE,
    RECOMPUTE,
    OVERLAP,
    *_counts("lora_rank", "prediction_heads", least=0),
    Column("lora_on", "text", choices=("all", "attention")),
    ATTENTION,
    *_columns("flag", "compiled", "graphs", "launch_blocking"),
    Column("date", "text"),
    Column("power_limit_w", "number", least=0),
    Column("train_only", "text", choices=("attention", "mlp", "output")),
    *_counts("routed_nodes", least=0),
    *_counts("ranks_per_chip"),
    Column("fp8_exchange", "flag"),
    Column("capacity_factor", "number", least=0),
    Column("routing_skew", "number", least=1),
    Column("model", "text"),
    Column("runtime", "text", choices=("compiled", "eager", "xla")),
    Column("optimizer", "text", choices=("adamw", "muon", "adafactor", "sgd")),
    *_columns("text", "framework", "variant", "source"),
)
"""Model, machine and plan of a training run."""
OF_MODEL = ("layers", "hidden", "heads")  # columns that may be empty in a row that names its model


TRAINING = Kind(
    "training",
    columns=(
        *PLAN,
        Column("held_out", "flag"),
        *_columns("number", "iteration_s", "memory_bytes", "reserved_bytes"),
    ),
    published=("iteration_s", "memory_bytes", "reserved_bytes"),
)
MEMORY = Kind(
    "memory",
    columns=(
        *PLAN,
        Column("fits", "flag"),
        *_columns("number", "memory_bytes", "reserved_bytes", "activation_bytes", "states_bytes"),
    ),
    published=("memory_bytes", "reserved_bytes", "activation_bytes", "states_bytes"),
)
LAYER = Kind(
    "layer",
    columns=(*PLAN, *_columns("number", "forward_s", "backward_s")),
    published=("forward_s", "backward_s"),
)
KERNELS = (
    "gemm", "attention", "decode-attention", "elementwise", "gather", "copy", "launch", "layer",
)  # fmt: skip
COLLECTIVE = Kind(
    "collective",
    columns=(
        *_columns("text", "collective", "cluster", required=True),
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
        *_columns("text", "model", "cluster", required=True),
        *_counts("chips", "tp", "pp", "ep"),
        Column("precision", "text"),
        *_columns("count", "prompt_tokens", "output_tokens", required=True, least=1),
        *_counts("concurrency", "slots", "rounds", "requests"),
        *_columns("number", "arrivals_per_s", "shortest_lengths"),
        Column("batching", "text", choices=("static", "continuous")),
        Column("scheduler", "text", choices=("vllm", "sglang", "tensorrt-llm")),
        *_counts("chunk_tokens", "poll_passes"),
        *_columns("flag", "overlapped", "mixed_chunk"),
        *_columns("text", "gather", "speculate"),
        *_counts("attention_dp"),
        Column("cache_precision", "text", choices=("bf16", "fp8")),
        Column("memory_share", "number", least=0),
        *_counts("graph_tokens"),
        Column("block_scaled", "flag"),
        Column("date", "text"),
        *_columns("number", "ttft_s", "tpot_s", "tokens_per_s"),
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
        *_columns("flag", "writes_cache", "casts"),
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
        *_columns("number", "server_failures_per_1000_days", "checkpoint_interval_s"),
        *_columns("number", "checkpoint_stall_s", "restart_s", "detection_s"),
        Column("peer_copy_interval_s", "number", least=0),
        Column("warm_spares", "flag"),
        *_columns("number", "mtbf_s", "goodput"),
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
    stated = {*header, *(OF_MODEL if "model" in header else ())}
    lacking = {kind.name: [need for need in kind.required if need not in stated] for kind in KINDS}
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


LARGEST_FILE_BYTES = 50_000_000
LONGEST_HEADER = 500
NOTHING: Mapping[str, str] = {}
SEPARATORS = (",", ";", "\t")
"""Separators of cells; spreadsheets in some languages write the latter two in CSV files."""


@dataclass(frozen=True)
class Row:
    """One row of a file."""

    line: int  # number of its last line in the file, from 1
    cells: Mapping[str, str]  # as read, columns that are not ours included
    # Values of our columns; None where a cell is empty or the file has no such column
    values: Mapping[str, Value]
    mistakes: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one file."""

    kind: Kind
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)


def read_file(path: Path | str, stated: Mapping[str, str] = NOTHING) -> Rows:
    """Read measurements, or a load generator's results; ``stated`` cells hold for all."""
    name = str(path)
    content = read_bytes(Path(path), limit_bytes=LARGEST_FILE_BYTES, remedy="Split it.")
    text = decoded(content, name)
    runs = load_test_rows(text, name)
    rows = read_text(text, name, stated) if runs is None else read_runs(runs, stated)
    return replace(rows, rows=tuple(_beside(row, Path(path).parent) for row in rows.rows))


FILES_OF_ROWS = ("model", "cluster")
"""Columns whose cells may name a file, by one of ``ENDINGS`` or the folder of a model."""


ENDINGS = (*FILES, *GRAPHS, ".json")


def _beside(row: Row, folder: Path) -> Row:
    """Row whose files are looked for in the folder of its table, wherever the command runs."""
    places = {
        name: str(folder / value)
        for name in FILES_OF_ROWS
        if isinstance(value := row.values.get(name), str)
        and (value.endswith(ENDINGS) or ("/" in value and (folder / value).exists()))
    }
    return replace(row, values={**row.values, **places}) if places else row


def read_runs(runs: Sequence[Mapping[str, Any]], stated: Mapping[str, str]) -> Rows:
    """Return the rows of a load generator's runs, which need a model, a cluster and a degree."""
    check_stated(stated, SERVING)
    header = list(dict.fromkeys([*(name for run in runs for name in run), *stated]))
    header = [name for name in header if name != "mistake"]
    rows = []
    for line, run in enumerate(runs, 1):
        whole = {**run, **stated}
        row = _row(SERVING, header, line, [str(whole.get(name, "")) for name in header])
        lacking = [
            f"{name} is not in the file. State it, as --column {name}=…."
            for name in NEEDED
            if not whole.get(name)
        ]
        proposes = [run["mistake"]] if "mistake" in run and "speculate" not in stated else []
        wrong = [each for each in row.mistakes if not each.endswith(" is empty. State it.")]
        rows.append(replace(row, mistakes=(*wrong, *lacking, *proposes)))
    return Rows(SERVING, tuple(rows))


def read_text(text: str, name: str, stated: Mapping[str, str] = NOTHING) -> Rows:
    """Read the text of such a file; ``stated`` as of :func:`read_file`."""
    check_no_metrics(
        text.partition("\n")[0], name, "give rows, or the results that a load generator writes"
    )
    separator = max(SEPARATORS, key=text.lstrip().partition("\n")[0].count)
    all_lines = csv_lines(text, name, delimiter=separator)
    lines = [(line, cells) for line, cells in all_lines if any(map(str.strip, cells))]
    if not lines:
        raise InputError(f"{name} is empty. The first line names the columns.")
    header = [cell.strip() for cell in lines[0][1]]
    if len(header) > LONGEST_HEADER:
        raise InputError(f"{name} line 1 has {len(header)} columns, the limit is {LONGEST_HEADER}.")
    if twice := next((cell for cell in header if cell and header.count(cell) > 1), None):
        raise InputError(f"{name} line 1: the column {twice[:40]!r} appears twice. Remove one.")
    kept = [place for place, column in enumerate(header) if column not in stated]
    width, header = len(header), [*(header[place] for place in kept), *stated]
    kind = kind_of(header, name)
    check_stated(stated, kind)
    rows = []
    for line, cells in lines[1:]:
        left = [*(cells[place] for place in kept if place < len(cells)), *cells[width:]]
        rows.append(_row(kind, header, line, [*left, *stated.values()]))
    return Rows(kind, tuple(rows))


def check_stated(stated: Mapping[str, str], kind: Kind) -> None:
    """Refuse cells of a column that the kind of a file does not have."""
    names = [column.name for column in kind.columns]
    check_names(f"--column: a row of {kind.name}", stated, names)


def _row(kind: Kind, header: list[str], line: int, cells: list[str]) -> Row:
    mistakes = []
    if len(cells) != len(header):
        mistakes.append(f"it has {len(cells)} cells, the header names {len(header)}. Align it.")
        cells = [*cells, *[""] * len(header)][: len(header)]
    read = dict(zip(header, cells, strict=True))
    values: dict[str, Value] = {}
    for column in kind.columns:
        values[column.name] = None
        try:
            values[column.name] = read_cell(column, read.get(column.name, ""))
        except InputError as mistake:
            mistakes.append(str(mistake))
        else:
            named = column.name in OF_MODEL and read.get("model", "").strip()
            if column.required and values[column.name] is None and not named:
                mistakes.append(f"{column.name} is empty. State it.")
    return Row(line, read, values, tuple(mistakes))


LARGEST_COUNT = 2**62
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-12, 1e25
"""Range of any number in SI units, whatever its quantity."""
LONGEST_CELL = 1000
FLAGS = {"0": 0, "0.0": 0, "false": 0, "no": 0, "1": 1, "1.0": 1, "true": 1, "yes": 1}
"""Values of a flag as people and table programs write them."""


def read_cell(column: Column, text: str) -> Value:
    """Value of a cell; None when it is empty."""
    text = text.strip()
    if not text:
        return None
    shown = excerpt(text)
    if column.holds == "text":
        return _text(column, text, shown)
    if column.holds == "flag":
        if text.lower() not in FLAGS:
            raise InputError(f"{column.name} {shown} is neither 0 nor 1. Write 0 or 1.")
        return FLAGS[text.lower()]
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        raise InputError(f"{column.name} {shown} is not a number. Write digits only.") from None
    if number == 0 and text.lower().partition("e")[0].strip("+-0.,"):
        raise InputError(f"{column.name} {shown} is too small to be a number. Correct it.")
    if column.holds == "count":
        return _count(column, number, shown)
    if not 0 < number < float("inf"):
        raise InputError(f"{column.name} {shown} is not above 0 and finite. State it in SI units.")
    if not SMALLEST_NUMBER <= number <= LARGEST_NUMBER:
        raise InputError(
            f"{column.name} {shown} is not within {SMALLEST_NUMBER:g} to {LARGEST_NUMBER:g}. "
            "State it in SI units."
        )
    return number


def _count(column: Column, number: float, shown: str) -> int | None:
    """Whole number; None for a 0 in an optional column whose values begin above it."""
    if not number.is_integer():
        raise InputError(f"{column.name} {shown} is not a whole number. Write it as digits.")
    if number == 0 < column.least and not column.required:
        return None
    if not column.least <= number <= LARGEST_COUNT:
        raise InputError(
            f"{column.name} {shown} is not between {column.least:g} and 2^62. Correct it."
        )
    return int(number)


def _text(column: Column, text: str, shown: str) -> str:
    if len(text) > LONGEST_CELL:
        raise InputError(f"{column.name} {shown} is over {LONGEST_CELL} characters. Shorten it.")
    if not column.choices:
        return text
    # A choice is spelled as itself, in another way, or by its first word.
    plain = text.lower().replace("_", "-").split("(")[0].strip()
    spellings = {**dict(zip(column.choices, column.choices, strict=True)), **column.also}
    for spelled in (plain, plain.replace(" ", "-"), plain.split(" ")[0]):
        if spelled in spellings:
            return spellings[spelled]
    near = suggestion(text.lower(), column.choices) or " Use one of them."
    raise InputError(f"{column.name} {shown} is none of {', '.join(column.choices)}.{near}")


@dataclass(frozen=True)
class Table:
    """One table of published measurements."""

    name: str
    file: str  # in ``tables``; compressed where the name ends in ``.gz``
    # median_tolerance, p90_tolerance: largest median and 90th percentile of the absolute error at
    # which validation succeeds
    median_tolerance: float
    p90_tolerance: float
    # licence, credit, note: licence and credit of the origin, and remarks on the measurements
    licence: str
    credit: str
    note: str

    def rows(self) -> Rows:
        """Read its rows."""
        path = files("experiments.validation") / "tables" / self.file
        content = path.read_bytes()
        if self.file.endswith(".gz"):
            content = gzip.decompress(content)
        return read_text(content.decode("utf-8"), self.file)


@cache
def tables() -> dict[str, Table]:
    """Return all shipped tables by name."""
    path = files("experiments.validation") / "tables" / "index.csv"
    _, rows = csv_rows(path.read_text(encoding="utf-8"), "tables/index.csv")
    return {
        row["name"]: Table(
            *(row["name"], row["file"]),
            *(float(row["median_tolerance"]), float(row["p90_tolerance"])),
            *(row["licence"], row["credit"], row["note"]),
        )
        for _, row in rows
    }


def table(name: str) -> Table:
    """Return the table of a name."""
    check_choice("table", name, tables())
    return tables()[name]


def misses(table: Table, summary: dict[str, float | None]) -> str:
    """Describe by how much a summary exceeds the tolerance of a table; empty when it does not."""
    for key, limit in (
        ("median_abs_error", table.median_tolerance),
        ("p90_abs_error", table.p90_tolerance),
    ):
        value = summary[key]
        if value is None and summary.get("fits"):
            continue  # its rows state no quantity, only whether a plan ran
        if value is None:
            return f"table {table.name}: no row could be predicted."
        if value > limit:
            return f"table {table.name}: {key} {value:.1%} is over the tolerance of {limit:.1%}."
    return ""


Status = Literal["ok", "unsupported", "infeasible"]


@dataclass(frozen=True)
class Outcome:
    """Prediction of one row."""

    # By the name of the published column, such as ``iteration_s``, in SI units
    predicted: Mapping[str, float] = field(default_factory=dict)
    # ``ok``; ``unsupported``, the model does not cover the row; ``infeasible``, the machine could
    # not run it by the model, as when it does not fit in memory
    status: Status = "ok"
    why: str = ""
    # By input: measured, interpolated, extrapolated, assumed
    provenance: Mapping[str, str] = field(default_factory=dict)
    # Least and greatest time [s] that the tool may have shown, with what it adds itself, or that
    # fields of a plan without a stated value leave open; None where there is only one
    ends: tuple[float, float] | None = None


def unsupported(why: str) -> Outcome:
    """Outcome of a row that the model does not cover."""
    return Outcome(status="unsupported", why=" ".join(why.split()))


def infeasible(why: str, predicted: Mapping[str, float] | None = None) -> Outcome:
    """Outcome of a row that could not run by the model."""
    return Outcome(predicted or {}, "infeasible", " ".join(why.split()))


# Machines and models that rows name: shipped ones, files, or those shipped with the tables.


def machines_for(name: str, chips: int, catalogue: Catalogue | None = None) -> Cluster:
    """Return enough machines of a name for that many chips; the last may be used in part."""
    # A cluster of a user's file is one machine. The file is read at each call, as it may change.
    place = shipped_clusters().get(name.lower())
    if place is None and name.endswith(FILES + GRAPHS):
        return cluster(name, catalogue=catalogue)
    return _shipped_machines(place or name.lower(), chips, catalogue)


def servers_reach(chips: int, place: str) -> int:
    """Chips that machines must have in all for a group: its number, or its last one and one more.

    >>> servers_reach(2, ""), servers_reach(2, "0,16")
    (2, 17)
    """
    return max([chips, *(int(number) + 1 for number in re.findall(r"\d{1,9}", place))])


@cache
def _shipped_machines(place: str, chips: int, catalogue: Catalogue | None) -> Cluster:
    """Return machines that do not change while the program runs; ``place`` is a name or a file."""
    machine = cluster(place, catalogue=catalogue)
    count = -(-chips // machine.chips)
    return machine if count <= 1 else cluster(f"{place}:{count}", catalogue=catalogue)


def model_for(name: str) -> Model:
    """Return the model of a row: a shipped one, or that of a config, read anew at each call."""
    return _shipped_model(name) if name in _names_of_models() else model(name)


# Shipped models do not change while the program runs.
_shipped_model, _names_of_models = cache(model), cache(models)


@cache
def shipped_clusters() -> dict[str, str]:
    """Files of the slices that come with the tables, by name."""
    places = (files("experiments.validation") / "clusters").iterdir()
    return {item.name.rpartition(".")[0]: str(item) for item in places}
