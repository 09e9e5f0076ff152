"""Keys of Accelerate's configuration, of Transformers' Trainer, of LLaMA-Factory and of axolotl."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workloads.options.tool_keys import Key, Near, choice, is_set, number, when, whole
from workloads.training.plan.plan import CHOICES

STRATEGIES: Mapping[str, Any] = {
    **dict.fromkeys(("full_shard", "1"), 3),
    **dict.fromkeys(("shard_grad_op", "2"), 2),
    **dict.fromkeys(("no_shard", "3"), 0),
    **dict.fromkeys(("hybrid_shard", "4"), Near(3)),
    **dict.fromkeys(("hybrid_shard_zero2", "_hybrid_shard_zero2", "5"), Near(2)),
}
"""ZeRO stage of a strategy of FSDP; hybrid ones shard within a server, which a plan cannot."""
LAUNCHED_BY: Mapping[str, str] = {
    "fsdp": "transformers", "multi_gpu": "transformers", "no": "transformers",
    "false": "transformers",  # YAML reads NO without quotes as false, as Accelerate knows
    "deepspeed": "deepspeed", "megatron_lm": "megatron-core",
}  # fmt: skip
"""Framework by the type of a launch."""
STRATEGY = "fsdp_config.fsdp_sharding_strategy"


def _sharded_by_type(value: Any, keys: Mapping[str, Any]) -> int:
    """ZeRO stage of a type of launch that names no strategy; FSDP shards all unless told."""
    kind = str(value).lower()
    if kind not in LAUNCHED_BY:
        raise ValueError(f"one of {', '.join(LAUNCHED_BY)}")
    return 3 if kind == "fsdp" and STRATEGY not in keys else 0


def as_launched(tool: str, keys: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the framework that the configuration launches, and the usual adapters."""
    usual = "deepspeed" if keys.get("deepspeed") else "transformers"
    framework = LAUNCHED_BY.get(str(keys.get("distributed_type")).lower(), usual)
    by_trainer = {"framework": framework} if tool in ("Accelerate", "axolotl") else {}
    adapted = str(keys.get("finetuning_type", "")) in ADAPTERS
    return {**({"lora_rank": LORA_OF_FACTORY} if adapted else {}), **fields, **by_trainer}


def optimizer_of(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Optimizer by a name such as ``adamw_fp32OptState``; near AdamW where no plan has it."""
    word = str(value).lower()
    name = next((name for name in map(str, CHOICES["optimizer"]) if word.startswith(name)), "")
    return name if name and not re.search(r"[48]bit", word) else Near(name or "adamw")


def _stage_of_file(value: Any, _all: Mapping[str, Any]) -> int | None:
    """ZeRO stage by the name of DeepSpeed's file, as ``ds_z3_config.json``; None without one."""
    stage = re.search(r"z(?:ero)?_?([0-3])(?!\d)", str(value).rpartition("/")[2])
    return int(stage[1]) if stage else None


def _adapted(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Products with adapters, by the names of modules or ``all``."""
    names = value if isinstance(value, list) else str(value).split(",")
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    if set(names) <= attention:
        return "attention" if len(set(names)) == 4 else Near("attention")
    return "all" if names in (["all"], ["all-linear"]) else Near("all")


def _rank_of(kind: str, usual: str) -> Key:
    """Key of the rank of adapters, which count only where ``kind`` asks for them."""
    return Key(
        "lora_rank",
        lambda value, keys: number(value) if str(keys.get(kind, usual)) in ADAPTERS else None,
    )


def _by_words(value: Any, _all: Mapping[str, Any]) -> Any:
    """ZeRO stage of the Trainer's option, such as ``full_shard auto_wrap``."""
    words = value if isinstance(value, list) else str(value).split()
    stages = [STRATEGIES[word] for word in map(str, words) if word in STRATEGIES]
    offloads = "offload" in words
    if not stages:
        return 3 if str(value).lower() == "true" else None
    return Near(stages[0]) if offloads and not isinstance(stages[0], Near) else stages[0]


ADAPTERS = ("lora", "qlora")
LORA_OF_FACTORY = 8  # rank of LLaMA-Factory's adapters where none is stated
STAGE_OF_FILE = Key("zero", _stage_of_file)
NAMED_IF_SET = Key("", lambda value, _all: None if is_set(value) else "")
ACCELERATE: Mapping[str, Key] = {
    "distributed_type": Key("zero", _sharded_by_type),
    STRATEGY: choice("zero", STRATEGIES),
    "fsdp_config.fsdp_reshard_after_forward": when("reshard", True, False),
    "fsdp_config.fsdp_activation_checkpointing": when("recompute", "full", "none"),
    "fsdp_config.fsdp_offload_params": NAMED_IF_SET,
    "parallelism_config.parallelism_config_tp_size": whole("tp"),
    "parallelism_config.parallelism_config_cp_size": whole("cp"),
    "parallelism_config.parallelism_config_cp_comm_strategy": choice(
        "cp_exchange", {"allgather": "all-gather", "alltoall": Near("all-gather")}
    ),
    "deepspeed_config.zero_stage": choice("zero", {str(stage): stage for stage in range(4)}),
    "deepspeed_config.gradient_accumulation_steps": whole("microbatches", unset="auto"),
    "megatron_lm_config.megatron_lm_tp_degree": whole("tp"),
    "megatron_lm_config.megatron_lm_pp_degree": whole("pp"),
    "megatron_lm_config.megatron_lm_num_micro_batches": whole("microbatches"),
    "megatron_lm_config.megatron_lm_sequence_parallelism": when("sequence_parallel", True, False),
    "megatron_lm_config.megatron_lm_recompute_activations": when("recompute", "selective", "none"),
    "megatron_lm_config.megatron_lm_use_distributed_optimizer": when("zero", 1, 0),
    "mixed_precision": choice("precision", {
        "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", **dict.fromkeys(("no", "false"), Near("bf16"))
    }),
    "per_device_train_batch_size": whole("microbatch"),
    "gradient_accumulation_steps": whole("microbatches"),
    "gradient_checkpointing": when("recompute", "full", "none"),
    **dict.fromkeys(("bf16", "fp16"), when("precision", "bf16")),
    **dict.fromkeys(("max_length", "max_seq_length", "cutoff_len"), whole("seq")),
    "lora_r": whole("lora_rank"),
    "lora_rank": _rank_of("finetuning_type", "lora"),
    "lora_target": Key("lora_on", _adapted),
    # LLaMA-Factory recomputes all activations unless told otherwise.
    "finetuning_type": Key(
        "recompute",
        lambda _value, keys: (
            "none" if is_set(keys.get("disable_gradient_checkpointing", False)) else "full"
        ),
    ),
    "deepspeed": STAGE_OF_FILE,
    "fsdp": Key("zero", _by_words),
}  # fmt: skip
AXOLOTL: Mapping[str, Key] = {
    "micro_batch_size": whole("microbatch"),
    "gradient_accumulation_steps": whole("microbatches"),
    "sequence_len": whole("seq"),
    "tensor_parallel_size": whole("tp"),
    **dict.fromkeys(("context_parallel_size", "sequence_parallel_degree"), whole("cp")),
    "expert_parallel_size": whole("ep"),
    "dp_shard_size": Key("zero", lambda value, _all: 3 if number(value) > 1 else None),
    "dp_replicate_size": Key("", lambda value, _all: None if number(value) > 1 else ""),
    "fsdp": Key("zero", lambda value, _all: 3 if value else None),
    **dict.fromkeys(
        ("fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"),
        Key("reshard", lambda value, _all: is_set(value)),
    ),
    **dict.fromkeys(
        ("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"),
        Key("recompute", lambda value, _all: "full" if is_set(value) else None),
    ),
    "deepspeed": STAGE_OF_FILE,
    "adapter": Key("", lambda value, _all: None if value != "lora" else ""),
    "lora_r": _rank_of("adapter", ""),
    "lora_target_modules": Key("lora_on", _adapted),
    "lora_target_linear": when("lora_on", "all"),
    "load_in_8bit": NAMED_IF_SET,
    "load_in_4bit": NAMED_IF_SET,
    "gradient_checkpointing": choice("recompute", {
        "true": "full", "false": "none", "offload": Near("full"), "offload_disk": Near("full"),
    }),
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16"), when("precision", "bf16")),
    "fp8": when("precision", "fp8"),
    "attn_implementation": Key(
        "attention", lambda value, _all: "unfused" if value == "eager" else "fused"
    ),
    **dict.fromkeys(("flash_attention", "sdp_attention"), when("attention", "fused")),
    "optimizer": Key("optimizer", optimizer_of),
}  # fmt: skip
"""Keys of axolotl. Its optimizers of 8 bits and frozen weights of 4 are read as wider ones."""
USUAL_OF_AXOLOTL = {"zero": 0, "recompute": "none", "microbatches": 1}


def sharded_axolotl(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of axolotl's file, with a section of FSDP as the choice of it."""
    has_section = any(key.startswith("fsdp_config.") for key in keys)
    return {**keys, "fsdp": True} if has_section else dict(keys)
