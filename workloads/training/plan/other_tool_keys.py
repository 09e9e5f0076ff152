"""Keys of other tools' files, and the fields of a plan that they stand for.

Each table maps a key to the field of a plan and the rule that converts its value. A rule returns
None for a value that says nothing about the field, and raises a ValueError that says what it can
read for any other. Before that, null and "auto" leave a field open in all files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from topologies.errors import InputError
from workloads.training.plan.schedules import all_schedules

Rule = Callable[[Any, Mapping[str, Any]], Any]
"""Function of a key's value and all keys of the file that returns the value of a plan's field."""


class Near(NamedTuple):
    """Value of a plan that is nearest to one that no plan has; the key is named all the same."""

    value: Any


def _number(value: Any) -> int:
    """Whole number of at least 1, read from text or from a number."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _whole(name: str, *, unset: str = "") -> tuple[str, Rule]:
    """Rule for a whole number of at least 1; the text ``unset`` leaves the field open."""
    return name, lambda value, _all: None if str(value) == unset else _number(value)


def _is_set(value: Any) -> bool:
    """Return whether a flag is set; one without a value, as on a command line, is."""
    text = str(value).lower()
    if text not in ("true", "1", "yes", "", "false", "0", "no"):
        raise ValueError("true or false")
    return text in ("true", "1", "yes", "")


def _true(name: str) -> tuple[str, Rule]:
    """Rule for a flag that is a field of a plan."""
    return name, lambda value, _all: _is_set(value)


def _when(name: str, answer: Any, otherwise: Any = None) -> tuple[str, Rule]:
    """Rule for a flag that stands for one value of a field when set, and for another when not."""
    return name, lambda value, _all: answer if _is_set(value) else otherwise


def _choice(name: str, choices: Mapping[str, Any]) -> tuple[str, Rule]:
    """Rule for a word that stands for the value under it in ``choices``."""

    def read(value: Any, _all: Mapping[str, Any]) -> Any:
        """Look a word up among the choices."""
        word = str(value).lower()
        if word not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return choices[word]

    return name, read


def _chunks_of_stage(value: Any, keys: Mapping[str, Any]) -> Any:
    """Chunks of a stage, from the layers of each chunk."""
    layers = keys.get("num-layers")
    stages = keys.get("pipeline-model-parallel-size", 1)
    if layers is None:
        raise InputError(
            "num-layers-per-virtual-pipeline-stage needs num-layers, which the file does not "
            "state. Add it, or give --vpp."
        )
    return max(1, _number(layers) // _number(stages) // _number(value))


RECOMPUTE = {"full": "full", "selective": "selective", "uniform": "full", "none": "none"}
PRECISION = {
    **dict.fromkeys((
        "bf16", "bf16-mixed", "bf16-true", "16-mixed", "16-true", "16", "fp16", "mixed_precision",
        "mixed_precisionsr", "bf16sr", "autocast",
    ), "bf16"),
    **dict.fromkeys(("32", "32-true", "fp32", "manual"), Near("bf16")),
    "fp8": "fp8",
}  # fmt: skip
"""Precision of a plan by a tool's word; formats of 16 bits take the time of bf16."""
FP8_RECIPE = {
    "delayed": "tensorwise", "tensorwise": "tensorwise", "rowwise": "rowwise",
    "rowwise_with_gw_hp": Near("rowwise"), "blockwise": "blockwise",
}  # fmt: skip
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


def _schedule(value: Any, keys: Mapping[str, Any]) -> str:
    name = schedule_like(value, keys)
    if name is None:
        raise ValueError(f"like one of {', '.join(each.name for each in all_schedules())}")
    return name


def _shards(value: Any, _all: Mapping[str, Any]) -> int:
    """ZeRO stage of torchtitan's sharding degree, of which -1 is all replicas."""
    return 3 if str(value) == "-1" or _number(value) > 1 else 0


def _bucket(value: Any, _all: Mapping[str, Any]) -> int:
    """Bytes of a bucket, which DeepSpeed counts in elements, of 2 bytes in half precision."""
    if isinstance(value, bool) or not 1 <= float(value) <= 2**40:
        raise ValueError("a number of elements")
    return 2 * int(float(value))


def _capacity(value: Any, _all: Mapping[str, Any]) -> float:
    if isinstance(value, bool):
        raise ValueError("a number")
    return float(value)


def _ranks_of_server(value: Any, keys: Mapping[str, Any]) -> int | None:
    """Ranks a chip, by those of a Trn1 or Trn2 server of 16 chips, or by ``lnc`` beside them."""
    if keys.get("trainer.lnc") is not None:
        return _ranks_by_lnc(keys["trainer.lnc"], keys)
    ranks, chips = _number(value), 16
    return None if ranks % chips else ranks // chips


def _ranks_by_lnc(value: Any, _all: Mapping[str, Any]) -> int:
    """Ranks a chip of 8 physical cores, ``lnc`` of which are one logical core."""
    if _number(value) not in (1, 2):
        raise ValueError("1 or 2")
    return 8 // _number(value)


def _adapted(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Products with adapters, by the names of NxD's modules."""
    attention = {"qkv_proj", "o_proj"}
    modules = set(value if isinstance(value, list) else [value])
    if not modules or not modules <= {*attention, "gate_up_proj", "down_proj"}:
        raise ValueError("a list of qkv_proj, o_proj, gate_up_proj and down_proj")
    near = "attention" if modules <= attention else "all"
    return near if modules == attention or len(modules) == 4 else Near(near)


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
    "use-distributed-optimizer": _when("zero", 1, 0),
    "data-parallel-sharding-strategy": _choice("zero", SHARDING),
    "recompute-granularity": _choice("recompute", RECOMPUTE),
    "recompute-activations": _when("recompute", "selective"),
    "bf16": _when("precision", "bf16"),
    "fp16": _when("precision", "bf16"),
    "fp8-format": _choice("precision", dict.fromkeys(("e4m3", "hybrid"), "fp8")),
    "fp8-recipe": _choice("fp8_recipe", FP8_RECIPE),
    "overlap-grad-reduce": _when("overlap", "dp", "none"),
    "tp-comm-overlap": _when("overlap", "all"),
    "use-flash-attn": _when("attention", "fused", "unfused"),
}
MEGATRON_FLAGS = frozenset({
    "sequence-parallel", "use-distributed-optimizer", "recompute-activations", "bf16", "fp16",
    "overlap-grad-reduce", "tp-comm-overlap", "use-flash-attn",
})  # fmt: skip
"""Options of Megatron-LM's command line that take no value."""
TITAN: Mapping[str, tuple[str, Rule]] = {
    "parallelism.tensor_parallel_degree": _whole("tp"),
    "parallelism.pipeline_parallel_degree": _whole("pp"),
    "parallelism.context_parallel_degree": _whole("cp"),
    "parallelism.expert_parallel_degree": _whole("ep"),
    "parallelism.expert_tensor_parallel_degree": _whole("etp"),
    "parallelism.data_parallel_shard_degree": ("zero", _shards),
    "parallelism.pipeline_parallel_schedule": ("schedule", _schedule),
    "parallelism.pipeline_parallel_microbatch_size": _whole("microbatch"),
    "parallelism.enable_async_tensor_parallel": _when("overlap", "all"),
    "training.local_batch_size": _whole("microbatch"),
    "training.batch_size": _whole("microbatch"),
    "training.global_batch_size": _whole("global_batch", unset="-1"),
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
    "model.optim.name": ("zero", lambda value, _all: int("distributed" in str(value))),
}  # fmt: skip
NXD: Mapping[str, tuple[str, Rule]] = {
    **{
        key.replace("trainer.strategy", "distributed_strategy"): rule
        for key, rule in NEMO.items()
        if key != "model.optim.name"
    },
    "distributed_strategy.zero1": _when("zero", 1, 0),
    "trainer.devices": ("ranks_per_chip", _ranks_of_server),
    "trainer.lnc": ("ranks_per_chip", _ranks_by_lnc),
    "precision.type": _choice("precision", PRECISION),
    "model.max_seq_length": _whole("seq"),
    "model.fusions.flash_attention": _when("attention", "fused", "unfused"),
    "model.moe.capacity_factor": ("capacity_factor", _capacity),
    **{
        f"{section}.{key}": rule
        for section in ("model_alignment_strategy.peft", "model.peft")
        for key, rule in {
            "lora_rank": _whole("lora_rank"),
            "target_modules": ("lora_on", _adapted),
        }.items()
    },
}
DEEPSPEED: Mapping[str, tuple[str, Rule]] = {
    "train_batch_size": _whole("global_batch"),
    "train_micro_batch_size_per_gpu": _whole("microbatch"),
    "zero_optimization.stage": _choice("zero", {str(stage): stage for stage in range(4)}),
    "zero_optimization.overlap_comm": _when("overlap", "dp", "none"),
    "zero_optimization.reduce_bucket_size": ("bucket_bytes", _bucket),
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


WITHOUT_TIME = re.compile(
    r"\b(lr|decay|weight|beta[12s]|eps|epsilon|seed|log|logger|logging|wandb|tensorboard|comet|save|"
    r"load|resume|restore|ckpt|checkpoints?|path|dir|directory|files?|folder|splits?|tokenizer|eval|"
    r"val|validation|test|iters|steps|epochs|samples|init|warmup|exp|experiment|"
    r"manager|sched|scheduler|description|addr|port|timeout|metrics|nsys|hysteresis|dataset|prefix|url|"
    r"print|exit)\b|^name$"
)
"""Words of keys that set numerics, data, logs or files, but not the work of a step."""
WITH_TIME = re.compile(
    r"\b(activations?|recompute|moe|balancing|accumulation|accumulate|offload|async|optimizer|grad|"
    r"precision|cpu)\b"
)
"""Words with which a key may change the time although it has one of ``WITHOUT_TIME``."""


def cannot_change_time(key: str) -> bool:
    """Return whether a key of a tool's file cannot change the time of a step, by its words.

    >>> cannot_change_time("model.optim.lr"), cannot_change_time("activation_checkpoint.mode")
    (True, False)
    """
    words = re.sub(r"[._-]", " ", key.partition(" =")[0].lower())
    if re.search(r"\bclip|\binitialization", words):
        return True
    return bool(WITHOUT_TIME.search(words)) and not WITH_TIME.search(words)
