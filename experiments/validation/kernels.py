"""Predicting kernel rows: one GEMM, attention or element-wise kernel on one chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.validation.outcome import Outcome, unsupported
from experiments.validation.schema import Value
from workloads.kernels.times import Timing, attention, elementwise, gemm

NEEDS = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "seq", "heads", "head_dim"),
    "elementwise": ("size_bytes",),
}


def predict(values: Mapping[str, Value]) -> Outcome:
    """Time of the kernel of one row [s], under ``kernel_s``."""
    kernel = str(values["kernel"])
    empty = [name for name in NEEDS[kernel] if values[name] is None]
    if empty:
        return unsupported(f"a row of kernel {kernel} needs {', '.join(empty)}. State it.")
    timing = _timing(kernel, values)
    return Outcome({"kernel_s": timing.seconds}, provenance={"kernel": timing.provenance})


def _timing(kernel: str, values: Mapping[str, Any]) -> Timing:
    chip = values["chip"]
    if kernel == "gemm":
        return gemm(chip, values["m"], values["n"], values["k"], values["precision"] or "bf16")
    if kernel == "elementwise":
        return elementwise(chip, values["size_bytes"])
    return attention(
        chip,
        values["batch"],
        values["seq"],
        values["heads"],
        values["kv_heads"] or values["heads"],
        values["head_dim"],
        writes_cache=bool(values["writes_cache"]),
    )
