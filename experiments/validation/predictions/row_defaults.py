"""Defaults for the empty cells of a training row, and sizes padded until the plan divides them.

A measured plan did run, so none is refused here for a remainder: frameworks pad sizes and round
batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.validation.reading.machines import machines_for
from topologies.errors import InputError
from workloads.training.usual_plan import ranks_per_chip

Cells = Mapping[str, Any]

SAME_RATE = {
    "fp8": ("fp8", "float8", "e4m3", "hybrid"),
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half", "mixed", "amp"),
}
"""Precisions by rate, each with parts of its spellings; fp8 comes first, so that *mixed fp8*
is fp8."""
MOST = {"chips": 2**20, "layers": 2**12, "hidden": 2**20, "seq": 2**24}
"""Limits of one row: twice the largest machine there is, thirty times the deepest and the widest
model, and longer sequences than any are trained on."""
WIDE = {False: 8 / 3, True: 7 / 2}
"""Feed-forward over hidden width of gated models, without shared key-value heads (Llama, Llama 2)
and with them (Llama 3, Mistral)."""
WHOLE_COLUMNS = 256
"""Divisor of such a width."""


@dataclass(frozen=True)
class Stated:
    """A row with its empty cells filled in.

    ``assumed``: columns that were empty, or that could not be taken as they were.
    """

    values: Cells
    assumed: tuple[str, ...]


MODEL: Mapping[str, int | str] = {
    "vocab": 51200,
    "tied_embeddings": 0,
    "experts": 0,
    "experts_per_token": 0,
    "shared_experts": 0,
    "dense_layers": 0,
}
"""Values of empty cells of a model."""
DEGREES = ("tp", "pp", "cp", "ep", "microbatch")
"""Columns of a plan that are 1 where they are empty."""


def filled(values: Cells) -> Stated:
    """Fill empty cells of the model and its sizes; cells of the plan stay as they are stated."""
    row = {**values}
    for name, limit in MOST.items():
        if row[name] > limit:
            raise InputError(f"{name} {row[name]:,} are over the limit of {limit:,}. Correct it.")
    published = dict(row)
    for complete in (_widths, _usual, _degrees, _batch, _padded):
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
    usual = {**MODEL, **dict.fromkeys(DEGREES, 1)}
    missing = {name: value for name, value in usual.items() if row.get(name) is None}
    precision = row.get("precision")
    return missing | ({"precision": _precision(str(precision))} if precision else {})


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


def _padded(row: Cells) -> Cells:
    """Sizes padded to multiples of the degrees; sequence parallelism only where it divides."""
    tp, cp, etp = row["tp"], row["cp"], row.get("etp") or row["tp"]
    heads, kv_heads = _multiple(row["heads"], tp), row["kv_heads"]
    if (kv_heads % tp and tp % kv_heads) or heads % kv_heads:
        fitting = [count for count in range(tp, heads + 1, tp) if heads % count == 0]
        kv_heads = min(fitting, key=lambda count: abs(count - kv_heads))
    seq = _multiple(row["seq"], 2 * cp) if cp > 1 else row["seq"]
    sizes = {"heads": heads, "kv_heads": kv_heads, "ffn": _multiple(row["ffn"], tp), "seq": seq}
    if row.get("sequence_parallel"):
        sizes["sequence_parallel"] = int(seq // cp % tp == 0)
    if row["experts"]:
        width = row.get("moe_ffn") or row["ffn"]
        sizes["moe_ffn"] = _multiple(width, max(tp, etp) if row["shared_experts"] else etp)
        sizes["experts"] = _multiple(row["experts"], row["ep"])
    return sizes


def _multiple(size: int, of: int) -> int:
    """Smallest multiple that is not below the size."""
    return -(-size // of) * of
