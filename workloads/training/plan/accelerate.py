"""Keys of Accelerate's configuration, and of those that Transformers' Trainer adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workloads.options.tool_keys import Key, Near, choice, is_set, when, whole

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


def launched_by(keys: Mapping[str, Any]) -> str:
    """Framework that runs what a configuration launches."""
    usual = "deepspeed" if keys.get("deepspeed") else "transformers"
    return LAUNCHED_BY.get(str(keys.get("distributed_type")).lower(), usual)


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
    **dict.fromkeys(("lora_r", "lora_rank"), whole("lora_rank")),
}  # fmt: skip
