"""Defaults for the empty cells of a training row, and sizes padded until the plan divides them.

A measured plan did run, so none is refused here for a remainder: frameworks pad sizes and round
batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.validation.conditions.recipes import recipe
from experiments.validation.reading.machines import machines_for
from topologies.errors import InputError
from workloads.training.plan.plan_file import ranks_per_chip
from workloads.training.plan.schedules import pipeline_schedule
from workloads.training.plan.schedules.registry import DEFAULT, schedule_of_chunks

Cells = Mapping[str, Any]

USUAL: Mapping[str, int | str] = {
    "vocab": 51200,
    "tied_embeddings": 0,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "zero": 1,
    "sequence_parallel": 1,
    "microbatch": 1,
    "precision": "bf16",
    "recompute": "none",
    "experts": 0,
    "experts_per_token": 0,
    "shared_experts": 0,
    "dense_layers": 0,
}
"""Values of empty cells: the usual defaults of Megatron-like frameworks."""
SAME_RATE = {
    "fp8": ("fp8", "float8", "e4m3", "hybrid"),
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half", "mixed", "amp"),
}
"""Precisions by rate, each with parts of its spellings; fp8 comes first, so that *mixed fp8*
is fp8."""
MOST = {"chips": 2**20, "layers": 2**12, "hidden": 2**20, "seq": 2**24}
"""Limits of one row: twice the largest machine there is, thirty times the deepest and the widest
model, and longer sequences than any are trained on."""
LAYERS_OF_A_CHUNK = {False: 2, True: 1}
"""Layers of a chunk where an interleaved schedule states none, without and with experts: large
dense models have one to four; the plans of Mixtral 8x7B and 8x22B in Megatron-Core's guide to
mixtures of experts, and in NeMo's recipes, have one."""
CHUNKED = (None, DEFAULT)
"""Schedules of a row that leave the number of chunks open: both are run with one and with more."""
MOST_BUBBLE = 0.25
"""Bubble of 1F1B beyond which a row that states no schedule is taken to interleave. Published plans
of plain 1F1B stay below (GPT-NeoX 9 %, BLOOM 9 %, MT-NLG 14 to 21 %, Falcon 22 %)."""
TUNED = 1024
"""Chips from which a run is assumed to interleave; on fewer, sweeps also measure poor plans."""
WIDE = {False: 8 / 3, True: 7 / 2}
"""Feed-forward over hidden width of gated models, without shared key-value heads (Llama, Llama 2)
and with them (Llama 3, Mistral)."""
WHOLE_COLUMNS = 256
"""Divisor of such a width."""


@dataclass(frozen=True)
class Stated:
    """A row with its empty cells filled in.

    Attributes
    ----------
    values : mapping
    assumed : tuple of str
        Columns that were empty, or that could not be taken as they were.
    """

    values: Cells
    assumed: tuple[str, ...]


def filled(values: Cells) -> Stated:
    """Fill empty cells with the usual values and those that follow from other cells.

    Raises
    ------
    InputError
        When the degrees do not divide the ranks.
    """
    row = {**values}
    for name, limit in MOST.items():
        if row[name] > limit:
            raise InputError(f"{name} {row[name]:,} are over the limit of {limit:,}. Correct it.")
    published = dict(row)
    for complete in (_widths, _usual, _degrees, _batch, _pipeline, _overlap, _padded):
        row |= complete(row)
    return Stated(row, tuple(name for name in row if row[name] != published.get(name)))


def _widths(row: Cells) -> Cells:
    """Heads and feed-forward part; of GPT if of its width and without shared key-value heads."""
    hidden, heads, ffn = row["hidden"], row["heads"], row.get("ffn")
    kv_heads = row.get("kv_heads") or heads
    gated = row.get("gated_mlp")
    if gated is None:
        gated = int(ffn != 4 * hidden or kv_heads < heads or bool(row.get("experts")))
    if ffn is None:
        columns = WIDE[kv_heads < heads] * hidden / WHOLE_COLUMNS
        usual = round(-(-columns // 1)) * WHOLE_COLUMNS if gated else 4 * hidden
        ffn = row.get("moe_ffn") or usual
    head_dim = row.get("head_dim") or max(1, hidden // heads)
    return {"kv_heads": kv_heads, "gated_mlp": gated, "ffn": ffn, "head_dim": head_dim}


def _usual(row: Cells) -> Cells:
    missing = {name: value for name, value in USUAL.items() if row.get(name) is None}
    return missing | {"precision": _precision(str(row.get("precision") or USUAL["precision"]))}


def _precision(text: str) -> str:
    """Rate at which a precision runs; the plan refuses an unknown one."""
    low = text.lower()
    return next((rate for rate, names in SAME_RATE.items() if any(n in low for n in names)), low)


def _degrees(row: Cells) -> Cells:
    """Data parallel degree, such that all chips are used, and tensor parallel degree of experts.

    Some sources count dp without ep, which divides it here, and some multiply it by cp.
    """
    fills, dp = _replicas(row), row.get("dp")
    if dp is None or dp * row["ep"] == fills or dp == fills * row["cp"]:
        dp = fills or dp
    degrees = {"dp": dp}
    if row.get("etp") is None and row["ep"] > 1 and row["tp"] > 1:
        ranks = row["tp"] * row["cp"] * dp
        degrees["etp"] = 1 if ranks % (row["ep"] * row["tp"]) else row["tp"]
    return degrees


def _replicas(row: Cells) -> int:
    """Data parallel degree that uses all chips, or all cores where ranks are cores; 0 if none."""
    inner = row["tp"] * row["pp"] * row["cp"]
    each = ranks_per_chip(machines_for(row["cluster"], 1))
    room = row["chips"] * each
    if room % inner and row.get("dp") is None:
        raise InputError(
            f"{room} ranks on {row['chips']} chips are not a multiple of tp {row['tp']} × "
            f"pp {row['pp']} × cp {row['cp']} = {inner}. State dp or correct the degrees."
        )
    return 0 if room % inner else int(room // inner)


def _batch(row: Cells) -> Cells:
    """Global batch of whole microbatches on each replica, nearest to the stated one."""
    dp, microbatch = row["dp"], row["microbatch"]
    whole = row.get("global_batch")
    if whole is None:
        return {"global_batch": dp * microbatch}
    microbatch = min(microbatch, max(1, whole // dp))
    count = max(1, round(whole / (dp * microbatch)))
    return {"microbatch": microbatch, "global_batch": count * dp * microbatch}


def _pipeline(row: Cells) -> Cells:
    """Schedule and chunks of a stage; without a pipeline there is one chunk."""
    pp, vpp, schedule = row["pp"], row.get("vpp"), row.get("schedule")
    allowed = pipeline_schedule(schedule or DEFAULT).chunks_allowed
    if pp == 1 or (vpp and vpp not in allowed):
        return {"vpp": 1 if pp == 1 else allowed[0], "schedule": schedule or DEFAULT}
    if vpp is None and _interleaves(row):
        schedule = schedule_of_chunks(2)
    usual = pipeline_schedule(schedule or DEFAULT).chunks_searched
    if vpp is None and len(usual) > 1:
        vpp = _chunks(row["layers"], pp, LAYERS_OF_A_CHUNK[bool(row["experts"])])
    return {"vpp": vpp or usual[0], "schedule": schedule or DEFAULT}


def _interleaves(row: Cells) -> bool:
    """Return whether a pipeline that states no chunks is assumed to have several.

    Mixtures of experts do: Megatron-Core's guide asks for it wherever they have stages.
    """
    pp, schedule = row["pp"], row.get("schedule")
    if row["layers"] // pp < 2:
        return False
    if row["experts"]:
        return schedule in CHUNKED
    bubble = (pp - 1) * row["dp"] * row["microbatch"] / row["global_batch"]
    return schedule is None and row["chips"] >= TUNED and bubble > MOST_BUBBLE


def _chunks(layers: int, pp: int, each: int) -> int:
    """Return how many chunks a stage has: the nearest number that divides it, if one does."""
    most = layers // pp
    usual = max(1, min(most, max(2, round(most / each))))
    whole = [count for count in range(2, most + 1) if layers % (pp * count) == 0]
    return min(whole, key=lambda count: abs(count - usual), default=usual)


def _overlap(row: Cells) -> Cells:
    """Default overlap of the framework, for rows that could have overlapped nothing."""
    usual = recipe({**row, "overlap": "none"}).usual_overlap
    return {"overlap": row.get("overlap") or usual}


def _padded(row: Cells) -> Cells:
    """Sizes padded to multiples of the degrees; sequence parallelism only where it divides."""
    tp, cp, etp = row["tp"], row["cp"], row.get("etp") or row["tp"]
    heads, kv_heads = _multiple(row["heads"], tp), row["kv_heads"]
    if (kv_heads % tp and tp % kv_heads) or heads % kv_heads:
        fitting = [count for count in range(tp, heads + 1, tp) if heads % count == 0]
        kv_heads = min(fitting, key=lambda count: abs(count - kv_heads))
    seq = _multiple(row["seq"], 2 * cp) if cp > 1 else row["seq"]
    sizes = {"heads": heads, "kv_heads": kv_heads, "ffn": _multiple(row["ffn"], tp), "seq": seq}
    sizes["sequence_parallel"] = int(row["sequence_parallel"] and seq // cp % tp == 0)
    if row["experts"]:
        width = row.get("moe_ffn") or row["ffn"]
        sizes["moe_ffn"] = _multiple(width, max(tp, etp) if row["shared_experts"] else etp)
        sizes["experts"] = _multiple(row["experts"], row["ep"])
    return sizes


def _multiple(size: int, of: int) -> int:
    """Smallest multiple that is not below the size."""
    return -(-size // of) * of
