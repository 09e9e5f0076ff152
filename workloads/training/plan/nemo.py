"""Values of files of NeMo, Megatron-Bridge and NxD Training that functions read and write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workloads.options.tool_keys import Near, is_set, number

MODULE_SETTINGS = {
    "core_attn": "", "moe_act": "moe-act", "layernorm": "layernorm", "mla_up_proj": "mla-up-proj",
}  # fmt: skip
"""Settings by the module that *selective* recomputes; attention's core is what a plan means."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def module_names(value: Any, plan: Mapping[str, Any]) -> list[str] | None:
    """Names of NxD's modules that have adapters."""
    if not plan["lora_rank"]:
        return None
    return ["qkv_proj", "o_proj", *(["gate_up_proj", "down_proj"] if value == "all" else [])]


def cut_names(value: Any, _plan: Mapping[str, Any]) -> list[str] | None:
    """Names of the last layers of all stages but the last."""
    ends = [sum(value[: stage + 1]) - 1 for stage in range(len(value) - 1)]
    return [f"model.layers.{end}" for end in ends] or None


def ranks_of_server(value: Any, keys: Mapping[str, Any]) -> int | None:
    """Ranks a chip, by those of a Trn1 or Trn2 server of 16 chips, or by ``lnc`` beside them."""
    if keys.get("trainer.lnc") is not None:
        return ranks_by_lnc(keys["trainer.lnc"], keys)
    ranks, chips = number(value), 16
    return None if ranks % chips else ranks // chips


def ranks_by_lnc(value: Any, _all: Mapping[str, Any]) -> int:
    """Ranks a chip of 8 physical cores, ``lnc`` of which are one logical core."""
    if number(value) not in (1, 2):
        raise ValueError("1 or 2")
    return 8 // number(value)


def adapted(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Products with adapters, by the names of NxD's modules."""
    attention = {"qkv_proj", "o_proj"}
    modules = set(value if isinstance(value, list) else [value])
    if not modules or not modules <= {*attention, "gate_up_proj", "down_proj"}:
        raise ValueError("a list of qkv_proj, o_proj, gate_up_proj and down_proj")
    near = "attention" if modules <= attention else "all"
    return near if modules == attention or len(modules) == 4 else Near(near)


def layers_of_cuts(value: Any, keys: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of each stage, by the names of the last layer of every stage but the last."""
    if not value:
        return ()  # as even as possible
    ends = [int(str(name).rpartition(".")[2]) + 1 for name in value]
    ends.append(number(keys.get("model.num_layers")))
    counts = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    if min(counts) < 1:
        raise ValueError("names of layers in order, fewer than num_layers")
    return counts


def sharded_by_megatron(value: Any, keys: Mapping[str, Any]) -> int | None:
    """ZeRO stage of a strategy of Megatron's FSDP; None without it."""
    return SHARDING[value] if is_set(keys.get("ddp.use_megatron_fsdp", False)) else None


def mixed_precision(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Precision by the name of Megatron-Bridge's mixture, such as ``bf16_with_mxfp8_mixed``."""
    word = str(value).lower()
    if "nvfp4" in word:
        return Near("mxfp4")
    if re.search("mxfp8|fp8_mx", word):
        return "mxfp8"
    return "fp8" if "fp8" in word else "bf16"


def adapters_of_bridge(value: Any, keys: Mapping[str, Any]) -> int | None:
    """Rank of Megatron-Bridge's adapters, by default 32."""
    if str(value).lower() not in ("lora", "canonical_lora"):
        raise ValueError("lora, or null")
    return number(keys.get("peft.dim", 32))


def recomputed_modules(value: Any, _all: Mapping[str, Any]) -> Any:
    """Settings of the modules that are recomputed; one is empty if attention's core is of them."""
    if not isinstance(value, list):
        raise ValueError(f"a list of {', '.join(MODULE_SETTINGS)}")
    settings = tuple(MODULE_SETTINGS[word] for word in map(str, value) if word in MODULE_SETTINGS)
    return settings if len(settings) == len(value) else Near(settings)
