"""Reader of the precision of stored weights from ``quantization_config``; others are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topologies.errors import InputError
from workloads.models.fields import Reader

CONFIGS = ("quantization_config", "compression_config")
FLOATS = {8: "fp8", 4: "fp4", 16: "bf16"}
METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "finegrained_fp8": "fp8", "mxfp4": "fp4"}
ALGORITHMS = {
    "FP8": "fp8", "FP8_BLOCK": "fp8", "FP8_PB_WO": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "MXFP8": "fp8", "NVFP4": "fp4", "NVFP4_AWQ": "fp4", "W4A16_NVFP4": "fp4",
    "W4A8_NVFP4_FP8": "fp4",
}  # fmt: skip
"""ModelOpt's names of algorithms (``quant_algo``), and the precision of their weights."""
TYPES = (
    (re.compile(r"(mx|nv)?(float|fp)4", re.I), "fp4"),
    (re.compile(r"(mx)?(float|fp)8", re.I), "fp8"),
)
"""Beginnings of torchao's and Quark's names of types, and the precision of each."""
BITS = ("bits", "w_bit", "nbits", "num_bits", "quant_config.weight_quant_params.nbits")


def stated_quantization(*places: Any) -> Any:
    """Return the quantization that the first of these objects states; None if none does.

    >>> decoder, whole = {"quantization_config": None}, {"quantization_config": {"bits": 4}}
    >>> stated_quantization(decoder, whole)
    {'bits': 4}
    """
    for place in places:
        for name in CONFIGS if isinstance(place, Mapping) else ():
            if place.get(name) not in (None, {}):
                return place[name]
    return None


def precision(stated: Any, model: str) -> str:
    """Return the precision of the stored weights: ``bf16``, ``fp8`` or ``fp4``.

    Matrix products are costed at this precision, even if a config quantizes only the weights.

    ``stated``: the ``quantization_config`` of a config; None if it has none.

    >>> precision({"quant_method": "fp8"}, "mine"), precision(None, "mine")
    ('fp8', 'bf16')
    """
    if stated is None:
        return "bf16"
    if not isinstance(stated, dict):
        raise InputError(f"model {model}: quantization_config is no object. Correct the config.")
    method = str(stated.get("quant_method", "none stated")).lower()
    stored = METHODS.get(method) or ALGORITHMS.get(str(stated.get("quant_algo", "")).upper())
    stored = stored or _grouped(stated) or _typed(stated)
    if stored is None or _is_sparse(stated):
        raise InputError(
            f"model {model}: quantization_config {method[:40]!r}{_details(stated)} is not "
            "modelled; fp8, mxfp4, nvfp4 and compressed floats are. Remove quantization_config to "
            "cost the model in bf16."
        )
    return stored


def _grouped(stated: dict[str, Any]) -> str | None:
    """Precision of compressed-tensors' groups of weights, if all have one floating-point type."""
    kinds = _kinds_of_groups(stated)
    if len(kinds) != 1:
        return None
    kind, bits = kinds.pop()
    return FLOATS.get(bits) if kind == "float" and isinstance(bits, int) else None


def _kinds_of_groups(stated: Mapping[str, Any]) -> set[tuple[Any, Any]]:
    """Type and bits of the weights of each group."""
    groups = stated.get("config_groups")
    return {
        (str(weights.get("type")), weights.get("num_bits"))
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(weights := group.get("weights"), dict)
        if isinstance(weights.get("num_bits"), int)
    }


def _typed(stated: dict[str, Any]) -> str | None:
    """Precision of the types that torchao, Quark and FP-Quant name, if all have the same one."""
    precisions = {
        next((name for pattern, name in TYPES if pattern.match(text)), None)
        for text in _types(stated)
    }
    return precisions.pop() if len(precisions) == 1 else None


def _types(stated: Mapping[str, Any]) -> list[str]:
    """Names of the types in which weights are stored; empty if the config names none."""
    read = Reader(stated, "")
    layers = [read.value("global_quant_config"), *_objects(stated.get("layer_quant_config"))]
    weights = [layer.get("weight") for layer in layers if isinstance(layer, dict)]
    stages = [stage for part in weights for stage in (part if isinstance(part, list) else [part])]
    names = [stage.get("dtype") for stage in stages if isinstance(stage, dict)]
    ao = read.value("quant_type.default._type", "quant_type")
    names += [name for name in (ao, stated.get("forward_dtype")) if isinstance(name, str)]
    return [str(name).removeprefix("Dtype.") for name in names if name]


def _objects(value: Any) -> list[Any]:
    """Values of a JSON object; none for anything else."""
    return list(value.values()) if isinstance(value, dict) else []


def _is_sparse(stated: dict[str, Any]) -> bool:
    """Return whether weights are stored without their zeros, as in 2:4 sparsity."""
    form = Reader(stated, "").value("sparsity_config.format")
    return form is not None and form != "dense"


def _details(stated: dict[str, Any]) -> str:
    """Words for a message on the bits and types of weights that a config states."""
    read = Reader(stated, "")
    bits = read.value(*BITS)
    if bits is None and (read.value("load_in_4bit") or read.value("load_in_8bit")):
        bits = 4 if read.value("load_in_4bit") else 8
    kinds = [f"{bits}-bit {kind}" for kind, bits in sorted(_kinds_of_groups(stated), key=str)]
    algorithm, weights = stated.get("quant_algo"), stated.get("weights")
    words = [*_types(stated), *(str(word) for word in (algorithm, weights) if word), *kinds]
    if _is_sparse(stated):
        words.append("sparse weights")
    shown = f" ({', '.join(words)[:60]})" if words else ""
    return (f" with {str(bits)[:8]} bits" if bits else "") + shown
