"""The precision of stored weights, from ``quantization_config``: used, or refused by name."""

from __future__ import annotations

from typing import Any

from topologies.errors import InputError
from workloads.models.fields import Reader

FLOATS = {8: "fp8", 4: "fp4", 16: "bf16"}
METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "finegrained_fp8": "fp8", "mxfp4": "fp4"}
ALGORITHMS = {"FP8": "fp8", "NVFP4": "fp4", "W4A8_NVFP4_FP8": "fp4", "FP8_BLOCK": "fp8"}


def precision(read: Reader) -> str:
    """Return the precision of the stored weights: ``bf16``, ``fp8`` or ``fp4``.

    Raises
    ------
    InputError
        For weights in integers, or by a method that is unknown.

    Examples
    --------
    >>> precision(Reader({"quantization_config": {"quant_method": "fp8"}}, "mine"))
    'fp8'
    """
    stated = read.value("quantization_config", "compression_config")
    if stated is None or stated == {}:
        return "bf16"
    if not isinstance(stated, dict):
        raise InputError(
            f"model {read.name}: quantization_config is no object. Correct the config."
        )
    method = str(stated.get("quant_method", "none stated")).lower()
    element = METHODS.get(method) or ALGORITHMS.get(str(stated.get("quant_algo", "")).upper())
    element = element or _grouped(stated)
    if element is None:
        bits = stated.get("bits") or (4 if stated.get("load_in_4bit") else None)
        bits = bits or (8 if stated.get("load_in_8bit") else None)
        shown = f"{method[:40]!r}" + (f" with {str(bits)[:8]} bits" if bits else "")
        raise InputError(
            f"model {read.name}: quantization_config {shown} is not modelled; fp8, mxfp4, nvfp4 "
            "and compressed floats are. Remove quantization_config to cost the model in bf16."
        )
    return element


def _grouped(stated: dict[str, Any]) -> str | None:
    """The precision of compressed-tensors' groups of weights, where all are floats alike."""
    groups = stated.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return None
    kinds = {
        (weights.get("type"), weights.get("num_bits"))
        for group in groups.values()
        if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
    }
    if len(kinds) != 1:
        return None
    kind, bits = kinds.pop()
    return FLOATS.get(bits) if kind == "float" and isinstance(bits, int) else None
