"""Keys of other tools' files, and the fields of a plan that they stand for.

Each table maps a key to the field of a plan and the rule that converts its value. A rule returns
None for a value that says nothing about the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from topologies.errors import InputError
from workloads.training.plan.schedules import all_schedules

Rule = Callable[[Any, Mapping[str, Any]], Any]
"""Function of a key's value and all keys of the file that returns the value of a plan's field."""


def _whole(name: str) -> tuple[str, Rule]:
    """Rule for a whole number of at least 1; anything else, such as null, leaves the default."""

    def read(value: Any, _all: Mapping[str, Any]) -> Any:
        whole = int(value) if re.fullmatch(r"\d{1,12}", str(value)) else 0
        return whole or None

    return name, read


def _true(name: str) -> tuple[str, Rule]:
    """Rule for a flag; one without a value, as on a command line, is true."""
    return name, lambda value, _all: str(value).lower() in ("true", "1", "yes", "")


def _when(name: str, answer: Any) -> tuple[str, Rule]:
    """Rule for a flag that, when it is set, stands for one value of a field."""
    return name, lambda value, _all: answer if str(value).lower() in ("true", "1", "") else None


def _choice(name: str, choices: Mapping[str, Any]) -> tuple[str, Rule]:
    """Rule for a word that stands for the value under it in ``choices``."""
    return name, lambda value, _all: choices.get(str(value).lower())


def _chunks_of_stage(value: Any, keys: Mapping[str, Any]) -> Any:
    """Chunks of a stage, from the layers of each chunk."""
    layers = keys.get("num-layers") or keys.get("model.num_layers")
    stages = keys.get("pipeline-model-parallel-size", 1)
    if layers is None:
        raise InputError(
            "num-layers-per-virtual-pipeline-stage needs num-layers, which the file does not "
            "state. Add it, or give --vpp."
        )
    return max(1, int(layers) // int(stages) // int(value))


RECOMPUTE = {"full": "full", "selective": "selective", "uniform": "full", "none": "none",
             "null": "none"}  # fmt: skip
PRECISION = {
    "bf16": "bf16", "bf16-mixed": "bf16", "16-mixed": "bf16", "16": "bf16", "fp16": "bf16",
    "32": "bf16", "mixed_precision": "bf16", "bf16sr": "bf16", "autocast": "bf16", "fp8": "fp8",
}  # fmt: skip
FP8_RECIPE = {
    "delayed": "tensorwise", "tensorwise": "tensorwise", "rowwise": "rowwise",
    "blockwise": "blockwise",
}  # fmt: skip
"""Precision of a plan by a tool's word; all formats but fp8 are simulated as bf16."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def schedule_like(value: Any, _all: Mapping[str, Any]) -> str | None:
    """Return the pipeline schedule of a name such as ``Interleaved1F1B`` or ``ZBVZeroBubble``.

    Of schedules whose name is part of this one, such as ``1f1b`` and ``interleaved``, the longest
    name says most.
    """
    name = _letters_and_digits(value)
    alike = [schedule for schedule in all_schedules() if _letters_and_digits(schedule.name) in name]
    best = max(
        alike, key=lambda schedule: (schedule.splits_weights, len(schedule.name)), default=None
    )
    return best.name if best else None


def _letters_and_digits(name: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


INTERLEAVED = "Interleaved1F1B"
"""Name in torchtitan of the schedule that Megatron-LM uses wherever a stage has several chunks."""


MEGATRON: Mapping[str, tuple[str, Rule]] = {
    "tensor-model-parallel-size": _whole("tp"),
    "pipeline-model-parallel-size": _whole("pp"),
    "context-parallel-size": _whole("cp"),
    "expert-model-parallel-size": _whole("ep"),
    "expert-tensor-parallel-size": _whole("etp"),
    "num-virtual-stages-per-pipeline-rank": _whole("vpp"),
    "num-layers-per-virtual-pipeline-stage": ("vpp", _chunks_of_stage),
    "micro-batch-size": _whole("microbatch"),
    "global-batch-size": _whole("global_batch"),
    "seq-length": _whole("seq"),
    "sequence-parallel": _true("sequence_parallel"),
    "use-distributed-optimizer": _when("zero", 1),
    "data-parallel-sharding-strategy": _choice("zero", SHARDING),
    "recompute-granularity": _choice("recompute", RECOMPUTE),
    "recompute-activations": _when("recompute", "selective"),
    "bf16": _when("precision", "bf16"),
    "fp16": _when("precision", "bf16"),
    "fp8-format": ("precision", lambda _value, _all: "fp8"),
    "fp8-recipe": _choice("fp8_recipe", FP8_RECIPE),
    "overlap-grad-reduce": _when("overlap", "dp"),
    "tp-comm-overlap": _when("overlap", "all"),
    "use-flash-attn": _when("attention", "fused"),
}
TITAN: Mapping[str, tuple[str, Rule]] = {
    "parallelism.tensor_parallel_degree": _whole("tp"),
    "parallelism.pipeline_parallel_degree": _whole("pp"),
    "parallelism.context_parallel_degree": _whole("cp"),
    "parallelism.expert_parallel_degree": _whole("ep"),
    "parallelism.expert_tensor_parallel_degree": _whole("etp"),
    "parallelism.data_parallel_shard_degree": (
        "zero", lambda value, _all: 0 if str(value) == "1" else 3
    ),
    "parallelism.pipeline_parallel_schedule": ("schedule", schedule_like),
    "parallelism.pipeline_parallel_microbatch_size": _whole("microbatch"),
    "parallelism.enable_async_tensor_parallel": _when("overlap", "all"),
    "training.local_batch_size": _whole("microbatch"),
    "training.batch_size": _whole("microbatch"),
    "training.global_batch_size": _whole("global_batch"),
    "training.seq_len": _whole("seq"),
    "training.tensor_parallel_degree": _whole("tp"),
    "activation_checkpoint.mode": _choice("recompute", RECOMPUTE),
    "float8.enable_float8_linear": _when("precision", "fp8"),
    "float8.recipe_name": _choice("fp8_recipe", FP8_RECIPE),
}  # fmt: skip
NEMO: Mapping[str, tuple[str, Rule]] = {
    **{
        f"{section}.{key}": rule
        for section in ("model", "trainer.strategy")
        for key, rule in {
            "tensor_model_parallel_size": _whole("tp"),
            "pipeline_model_parallel_size": _whole("pp"),
            "virtual_pipeline_model_parallel_size": _whole("vpp"),
            "context_parallel_size": _whole("cp"),
            "expert_model_parallel_size": _whole("ep"),
            "expert_tensor_parallel_size": _whole("etp"),
            "sequence_parallel": _true("sequence_parallel"),
        }.items()
    },
    "model.micro_batch_size": _whole("microbatch"),
    "model.global_batch_size": _whole("global_batch"),
    "data.micro_batch_size": _whole("microbatch"),
    "data.global_batch_size": _whole("global_batch"),
    "data.seq_length": _whole("seq"),
    "model.encoder_seq_length": _whole("seq"),
    "model.activations_checkpoint_granularity": _choice("recompute", RECOMPUTE),
    "model.fp8": _when("precision", "fp8"),
    "model.fp8_recipe": _choice("fp8_recipe", FP8_RECIPE),
    "trainer.precision": _choice("precision", PRECISION),
    "model.ub_tp_comm_overlap": _when("overlap", "all"),
    "model.optim.name": (
        "zero", lambda value, _all: 1 if "distributed" in str(value) else None
    ),
}  # fmt: skip
NXD: Mapping[str, tuple[str, Rule]] = {
    **{key.replace("trainer.strategy", "distributed_strategy"): rule for key, rule in NEMO.items()},
    "distributed_strategy.zero1": _when("zero", 1),
    "distributed_strategy.pipeline_model_parallel_size": _whole("pp"),
    "precision.type": _choice("precision", PRECISION),
    "model.max_seq_length": _whole("seq"),
    "model.activations_checkpoint_granularity": _choice("recompute", RECOMPUTE),
}
DEEPSPEED: Mapping[str, tuple[str, Rule]] = {
    "train_batch_size": _whole("global_batch"),
    "train_micro_batch_size_per_gpu": _whole("microbatch"),
    "zero_optimization.stage": ("zero", lambda value, _all: int(value)),
    "zero_optimization.overlap_comm": _when("overlap", "dp"),
    "zero_optimization.reduce_bucket_size": (
        "bucket_bytes",
        # DeepSpeed counts elements, of 2 bytes in half precision.
        lambda value, _all: None if value == "auto" else 2 * int(float(value)),
    ),
    "bf16.enabled": _when("precision", "bf16"),
    "fp16.enabled": _when("precision", "bf16"),
    "tensor_parallel.autotp_size": _whole("tp"),
    "tensor_parallel.tp_size": _whole("tp"),
    "pipeline.stages": _whole("pp"),
    "sequence_parallel_size": _whole("cp"),
}
TABLES: Mapping[str, Mapping[str, tuple[str, Rule]]] = {
    "Megatron-LM": MEGATRON,
    "torchtitan": TITAN,
    "NxD Training": NXD,
    "NeMo": NEMO,
    "DeepSpeed": DEEPSPEED,
}
