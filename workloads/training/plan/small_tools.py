"""Keys of the files of torchtune and picotron, and what launches say whose plan is not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topologies.support.errors import InputError, excerpt, shown
from workloads.options.tool_keys import Key, Near, choice, when, whole
from workloads.training.plan.accelerate import NAMED_IF_SET, optimizer_of
from workloads.training.plan.schedules.one_f_one_b import GPIPE, ONE_F_ONE_B


def _next_tokens(value: Any, _all: Mapping[str, Any]) -> str:
    """Accept a loss of next tokens, which one pass over the model gives."""
    if re.search(r"DPO|PPO|GRPO|KD|Reward|rlhf", str(value)):
        raise InputError(
            f"loss {excerpt(str(value))} needs more passes than a training step has. Write the "
            "fields of one pass into a file, as tp: 8."
        )
    return ""


TORCHTUNE: Mapping[str, Key] = {
    "tensor_parallel_dim": whole("tp"),
    "context_parallel_dim": whole("cp"),
    "batch_size": whole("microbatch"),
    "gradient_accumulation_steps": whole("microbatches"),
    "tokenizer.max_seq_len": whole("seq"),
    "enable_activation_checkpointing": when("recompute", "full", "none"),
    "fsdp_reshard_after_forward": when("reshard", True, False),
    "dtype": choice("precision", {"bf16": "bf16", "fp16": "bf16", "fp32": Near("bf16")}),
    "optimizer._component_": Key(
        "optimizer", lambda value, keys: optimizer_of(str(value).rpartition(".")[2], keys)
    ),
    "loss._component_": Key("", _next_tokens),
    "model._component_": Key("", lambda value, _all: None if "qlora" in str(value) else ""),
    "model.lora_rank": whole("lora_rank"),
    "model.apply_lora_to_mlp": when("lora_on", "all", "attention"),
    **dict.fromkeys(
        ("fsdp_cpu_offload", "enable_activation_offloading", "optimizer_in_bwd", "compile"),
        NAMED_IF_SET,
    ),
}
PICOTRON: Mapping[str, Key] = {
    **{f"distributed.{axis}_size": whole(axis) for axis in ("tp", "cp", "pp", "dp")},
    "distributed.pp_engine": choice(
        "schedule", {ONE_F_ONE_B.name: ONE_F_ONE_B.name, "afab": GPIPE.name}
    ),
    "training.micro_batch_size": whole("microbatch"),
    "training.gradient_accumulation_steps": whole("microbatches"),
    "training.seq_length": whole("seq"),
    "model.dtype": choice("precision", {"bfloat16": "bf16", "float32": Near("bf16")}),
    "model.use_flash_attention": when("attention", "fused", "unfused"),
}
USUAL = {
    "torchtune": {"zero": 3, "recompute": "none", "microbatches": 1},
    "picotron": {"zero": 0, "recompute": "none", "sequence_parallel": False},
}
"""Fields of a plan by each tool where its file is silent; recipes of torchtune shard everything."""

VERL = (
    "launches verl, whose steps roll out and train in turn; the plan of its actor is not read. "
    "Write it into a file: tp and pp as in actor.megatron (1 with FSDP, and zero: 3), cp as "
    "ulysses_sequence_parallel_size, microbatch as ppo_micro_batch_size_per_gpu, global_batch as "
    "ppo_mini_batch_size times rollout.n, seq as the longest prompt and response together."
)
CONFIGURATION = re.compile(r"""[^\s"'=,]+\.(?:ya?ml|toml|json)\b""")


def remedy_of(text: str) -> str:
    """Say what to do with a launch that has no plan of its own; empty where nothing is known."""
    if re.search(r"\bverl\.trainer\b|actor_rollout_ref\.", text):
        return VERL
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    named = list(dict.fromkeys(CONFIGURATION.findall(lines)))
    if not named:
        return ""
    return (
        f"has no degree and no batch among its options, but names {shown(named[0][:120])}. If that "
        "file has them, name it by --plan."
    )
