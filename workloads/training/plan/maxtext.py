"""Keys of MaxText's YAML files and commands, most of which lie over its base.yml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from workloads.options.tool_keys import SETTING, Key, Near, choice, number, when, whole


def _degree(axis: str, keys: Mapping[str, Any]) -> int:
    """Degree of an axis of MaxText's mesh, the product of those within and between slices."""
    degree = 1
    for net in ("ici", "dcn"):
        with suppress(ValueError):  # the key is refused where it is read for itself
            degree *= number(keys.get(f"{net}_{axis}_parallelism", 1))
    return degree


def _mesh(field: str, axis: str) -> dict[str, Key]:
    """Keys of an axis of MaxText's mesh that is a degree of a plan; ``""`` is one of no plan."""

    def read(value: Any, keys: Mapping[str, Any]) -> int:
        """Read the degree, and refuse one that no plan has."""
        if not field and number(value) > 1:
            raise ValueError("1, as plans have no such axis")
        if field == "pp" and number(value) > 1 and "num_pipeline_repeats" not in keys:
            raise ValueError("beside num_pipeline_repeats, the chunks of a stage")
        return number(value) and _degree(axis, keys)

    return {f"{net}_{axis}_parallelism": Key(field, read) for net in ("ici", "dcn")}


def sharded(value: Any, _all: Mapping[str, Any]) -> int:
    """ZeRO stage of a degree of FSDP."""
    return 3 if str(value) == "-1" or number(value) > 1 else 0  # -1 is all


def _replicas(value: Any, keys: Mapping[str, Any]) -> bool | None:
    """Name replicas of shards; those of whole models are a plan's."""
    unsharded = all(str(keys.get(f"{net}_fsdp_parallelism", 1)) == "1" for net in ("ici", "dcn"))
    return True if unsharded or str(value) == "-1" or number(value) == 1 else None


def _device_batch(value: Any, keys: Mapping[str, Any]) -> int:
    """Sequences that MaxText's replica of several devices works on at once."""
    # Axes that no plan has are refused by their own names.
    devices = math.prod(_degree(axis, keys) for axis in AXES if axis != "expert")
    sequences = float(value) * devices / _pipelined(keys)
    if not sequences.is_integer():
        raise ValueError(
            f"a batch of whole sequences: a replica of {devices} devices has {sequences:g} at once"
        )
    return number(sequences)


def _pipelined(keys: Mapping[str, Any]) -> int:
    """Microbatches of MaxText's pipeline, by default one a stage."""
    stated = keys.get("num_pipeline_microbatches", -1)
    return _degree("pipeline", keys) if str(stated) == "-1" else number(stated)


AXES = {
    "tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "sequence": "",
    "tensor_sequence": "", "tensor_transpose": "", "autoregressive": "",
}  # fmt: skip
"""Axes of a mesh, and the degrees of a plan that they are."""
MAXTEXT: Mapping[str, Key] = {
    **{key: rule for axis in AXES for key, rule in _mesh(AXES[axis], axis).items()},
    **{
        f"{net}_{axis}_parallelism": rule
        for axis, rule in {
            "fsdp": Key("zero", sharded), "fsdp_transpose": Key("zero", sharded),
            "data": Key("", _replicas),
        }.items()
        for net in ("ici", "dcn")
    },
    "shard_optimizer_over_data": when("zero", 1),
    "num_pipeline_microbatches": Key("", lambda _value, keys: _pipelined(keys)),
    "num_pipeline_repeats": whole("vpp", unset="-1"),
    "per_device_batch_size": Key("microbatch", _device_batch),
    "gradient_accumulation_steps": Key(
        "microbatches", lambda value, keys: number(value) * _pipelined(keys)
    ),
    "max_target_length": whole("seq"),
    # Policies of ``get_remat_policy`` in MaxText's decoders.py: those of *minimal* keep all
    # products; *selective* is that of attention's four projections, to which those are near that
    # keep some of them, one product more or the result of attention, or move them to the host.
    "remat_policy": choice("recompute", {
        "full": "full", "none": "none",
        **dict.fromkeys(("minimal_with_context", "minimal_flash"), "none"),
        **dict.fromkeys(("minimal", "minimal_with_quantization", "minimal_offloaded",
            "minimal_with_context_and_quantization"), Near("none")),
        "save_dot_except_mlp": "selective",
        **dict.fromkeys(("save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
            "save_qkv_proj", "save_out_proj", "qkv_proj_offloaded"), Near("selective")),
        "custom": Near("full"),
    }),
    "quantization": choice("precision", {
        "": "bf16", "te_mxfp8": "mxfp8",
        **dict.fromkeys(("fp8", "fp8_full", "fp8_gpu", "fp8_nanoo", "nanoo_fp8",
            "te_fp8_delayedscaling", "te_fp8_currentscaling"), "fp8"),
    }),
    "dtype": choice("", {"bfloat16": True, "float32": None, "float16": True}),
    "attention": choice("attention", {
        **dict.fromkeys(("autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax"), "fused"),
        "dot_product": "unfused",
    }),
    "context_parallel_strategy": choice("cp_exchange", {
        "all_gather": "all-gather", "ring": "ring",
    }),
    "capacity_factor": Key(
        "capacity_factor", lambda value, _all: 0.0 if float(value) < 0 else float(value)
    ),
    "use_iota_embed": when(f"{SETTING}looked-up tokens", "", "fetched"),
    "opt_type": choice("optimizer", {
        "adamw": "adamw", "adam_pax": "adamw", "muon": "muon", "sgd": "sgd",
    }),
}  # fmt: skip
MAXTEXT_BASE = {
    "per_device_batch_size": 12, "gradient_accumulation_steps": 1, "max_target_length": 2048,
    "remat_policy": "full", "ici_fsdp_parallelism": -1, "context_parallel_strategy": "all_gather",
    "use_iota_embed": False,
}  # fmt: skip
"""Values of MaxText's base.yml, which its files and command lines change."""


def over_base(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of MaxText over those of its base.yml, unless another file or ``$ARGS`` has more."""
    config = str(keys.get("base_config", "base.yml"))
    is_base = config.rpartition("/")[2] == "base.yml"
    is_whole = is_base and not any(key.startswith("$") for key in keys)
    kept = {
        "XLA flags" if key.startswith("xla-") else key: value
        for key, value in keys.items()
        if key != "base_config" or not is_base
    }
    return {**MAXTEXT_BASE, **kept} if is_whole else kept
