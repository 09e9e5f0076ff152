"""Predictions of kernel rows: a product, attention, element-wise kernel, look-up or layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.validation.reading.rows import Outcome, Value, unsupported
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.support.errors import InputError, check_choice
from workloads.confidence.answers import kernel_shown
from workloads.kernels import times
from workloads.kernels.chip_share import rank_of
from workloads.kernels.gemm import drain_s
from workloads.kernels.precision import Format
from workloads.kernels.times import Timing, seen_by_host, worst


def predict(values: Mapping[str, Value], catalogue: Catalogue | None = None) -> Outcome:
    """Time of a row's kernel on its cores, or the whole chip, as its runtime shows it [s]."""
    kernel, chip = str(values["kernel"]), str(values["chip"])
    timed, needs = KERNELS[kernel]
    empty = [name for name in needs if values.get(name) is None]
    if empty:
        return unsupported(f"a row of kernel {kernel} needs {', '.join(empty)}. State it.")
    by_neuron = chip_family(chip, catalogue).is_neuron
    if kernel == "launch" and values.get("work") == "one-by-one" and not by_neuron:
        return unsupported("what a GPU's host takes for one kernel is not modelled.")
    if kernel == "copy" and values.get("work") not in (None, "device"):
        return unsupported("copies to and from the host are not modelled.")
    used = _loaded(values, catalogue or shipped_catalogue())
    how = {"ranks_per_chip": _ranks_per_chip(values, used), "catalogue": used}
    timing = timed(values, how)
    seconds = seen_by_host(
        chip, timing.seconds, str(values.get("runtime") or "graph"), catalogue=used
    )
    shown = kernel_shown(str(values.get("tool") or ""), kernel, seconds, used)
    grades = {"kernel": timing.provenance}
    return Outcome({"kernel_s": shown.seconds}, provenance=grades, ends=shown.ends)


def _loaded(values: Mapping[str, Any], catalogue: Catalogue) -> Catalogue:
    """Catalogue for the load on the other cores of the chip, where the row states it."""
    load = values.get("load")  # the name of a variant where the load makes a difference
    if load is None:
        return catalogue
    part = chip_family(values["chip"], catalogue).kernels
    names = [entry.variant for entry in catalogue.variants(part, "gemm_sustained")]
    if load not in names:
        return catalogue
    return catalogue.with_variants({f"{part}.gemm_sustained": load})


def _ranks_per_chip(values: Mapping[str, Any], catalogue: Catalogue) -> int:
    """Ranks that share the chip, by the cores of each; one where the row does not count cores."""
    chip, cores = values["chip"], values.get("cores")
    if cores is None or not catalogue.has(chip, "cores"):
        return 1
    whole = catalogue.integer(chip, "cores")
    if whole % cores:
        raise InputError(f"cores {cores} do not divide the {whole} cores of {chip}. Correct them.")
    return int(whole // cores)


def _gemm(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    """One product; the whole result of a call of its own leaves the chip before the next call."""
    m, n, k = (values[name] for name in ("m", "n", "k"))
    precision = values["precision"] or "bf16"
    form = Format(precision, precision, casts=bool(values.get("casts")))
    product = times.gemm(values["chip"], m, n, k, form, **how)
    if (values.get("runtime") or "graph") == "graph":
        return product
    rank = rank_of(values["chip"], precision, **how)
    drained_s = float(drain_s(rank, np.asarray(float(m)), np.asarray(float(n))))
    return product._replace(seconds=product.seconds + drained_s)


def _attention(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    heads = values["heads"]
    shape = times.AttentionShape(
        values["batch"], values["seq"], heads, values["kv_heads"] or heads, values["head_dim"]
    )
    return times.attention(
        values["chip"],
        shape,
        direction="backward" if values.get("direction") == "backward" else "forward",
        writes_cache=bool(values.get("writes_cache")),
        **how,
    )


def _decode_attention(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    sides = (values[name] for name in ("batch", "kv_seq", "kv_heads", "head_dim"))
    return times.decode_attention(values["chip"], *sides, **how)


def _elementwise(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    work: Any = values.get("work") or "streaming"
    check_choice("work", work, times.SHARES)
    precision = str(values.get("precision") or "bf16")
    return times.elementwise(values["chip"], values["size_bytes"], work, precision=precision, **how)


def _gather(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    rows = values.get("rows") or 0
    return times.gather(values["chip"], values["size_bytes"], rows=rows, **how)


def _launch(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    """Chain of ``rows`` additions, in one graph or called one by one."""
    each = times.elementwise(values["chip"], values["size_bytes"] // values["rows"], **how)
    seconds = each.seconds
    if values.get("work") == "one-by-one":
        runtime = values.get("runtime") or "graph"
        seconds = seen_by_host(values["chip"], seconds, runtime, catalogue=how["catalogue"])
    return Timing(seconds * values["rows"], each.provenance)


def _layer(values: Mapping[str, Any], how: Mapping[str, Any]) -> Timing:
    """One decoder layer with a gated feed-forward part of ``n`` columns on ``k`` hidden ones."""
    rows = (values.get("batch") or 1) * values["seq"]
    width, hidden, inner = values["heads"] * values["head_dim"], values["k"], values["n"]
    chip, element = values["chip"], 2
    both = values.get("direction") == "forward+backward"
    products = [(rows, 3 * width, hidden), (rows, hidden, width)]
    products += [(rows, 2 * inner, hidden), (rows, hidden, inner)]
    if both:
        products += [shape for m, n, k in products for shape in ((m, k, n), (k, n, m))]
    parts = [
        times.gemm(chip, m, n, k, values["precision"] or "bf16", **how) for m, n, k in products
    ]
    ways = ("forward", "backward") if both else ("forward",)
    parts += [_attention({**values, "batch": 1, "direction": way}, how) for way in ways]
    widths = {"norm": 4 * hidden, "activation": 3 * inner, "streaming": 6 * hidden}
    for work, columns in widths.items():
        size = len(ways) * element * rows * columns
        parts.append(times.elementwise(chip, size, work, **how))  # type: ignore[arg-type]
    return Timing(sum(part.seconds for part in parts), worst(*(part.provenance for part in parts)))


Timed = Callable[[Mapping[str, Any], Mapping[str, Any]], Timing]
KERNELS: Mapping[str, tuple[Timed, tuple[str, ...]]] = {
    "gemm": (_gemm, ("m", "n", "k")),
    "attention": (_attention, ("batch", "seq", "heads", "head_dim")),
    "decode-attention": (_decode_attention, ("batch", "kv_seq", "kv_heads", "head_dim")),
    "elementwise": (_elementwise, ("size_bytes",)),
    "gather": (_gather, ("size_bytes",)),
    "copy": (
        lambda values, how: times.elementwise(values["chip"], values["size_bytes"], **how),
        ("size_bytes",),
    ),
    "launch": (_launch, ("size_bytes", "rows")),
    "layer": (_layer, ("seq", "heads", "head_dim", "n", "k")),
}
"""Kernels by name, each with the columns that it needs."""
