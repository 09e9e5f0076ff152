"""Reader of plans of Megatron-LM, NeMo, torchtitan, NxD, DeepSpeed, MaxText and Accelerate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topologies.support.arguments import check_names
from topologies.support.errors import InputError, excerpt, shown
from topologies.support.files.python_recipes import NAME, recipe_settings
from topologies.support.files.tool_files import EMPTY, file_or_command, flattened
from topologies.support.units import parse_bytes
from workloads.options.tool_keys import (
    SETTING,
    Key,
    Near,
    ToolFile,
    choice,
    fields_of_keys,
    is_set,
    number,
    tool_of,
    true,
    when,
    whole,
)
from workloads.training.plan import accelerate, nemo, small_tools
from workloads.training.plan.maxtext import MAXTEXT, over_base, sharded
from workloads.training.plan.plan import ORDER, PLAN_FIELDS, ParallelPlan, check_field
from workloads.training.plan.schedules.one_f_one_b import COMBINED
from workloads.training.plan.schedules.registry import SCHEDULES, schedule_of_chunks

OURS = "cluster-sim"  # name of the tool of our own plans


def _chunks_of_stage(value: Any, keys: Mapping[str, Any]) -> Any:
    """Chunks of a stage, from the layers of each chunk."""
    layers = keys.get("num-layers")
    stages = keys.get("pipeline-model-parallel-size", 1)
    if layers is None:
        raise InputError(
            "num-layers-per-virtual-pipeline-stage needs num-layers, which the file does not "
            "state. Add it, or give --vpp."
        )
    return max(1, number(layers) // number(stages) // number(value))


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
EXCHANGE = f"{SETTING}experts' exchanges"
MODULES = f"{SETTING}recomputed modules"
COMPILED = f"{SETTING}layers"


def _schedule(value: Any, _all: Mapping[str, Any]) -> str:
    """Pipeline schedule of a name such as ``Interleaved1F1B`` or ``ZBVZeroBubble``."""
    # Of schedules whose name is part of this one, such as ``1f1b`` and ``interleaved``, the longest
    # name says most.
    name = _letters_and_digits(value)
    alike = [schedule for schedule in SCHEDULES if _letters_and_digits(schedule.name) in name]
    if not alike:
        raise ValueError(f"like one of {', '.join(each.name for each in SCHEDULES)}")
    return max(alike, key=lambda schedule: (schedule.splits_weights, len(schedule.name))).name


def _letters_and_digits(name: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _bucket(value: Any, _all: Mapping[str, Any]) -> int:
    """Bytes of a bucket, which DeepSpeed counts in elements, of 2 bytes in half precision."""
    if isinstance(value, bool) or not 1 <= float(value) <= 2**40:
        raise ValueError("a number of elements")
    return 2 * int(float(value))


def _capacity(value: Any, _all: Mapping[str, Any]) -> float:
    if isinstance(value, bool):
        raise ValueError("a number")
    return float(value)


def _local_batch(value: Any, keys: Mapping[str, Any]) -> int:
    """Microbatch of torchtitan, whose pipelines cut a rank's batch into sequences by default."""
    local = number(value)
    piece = number(keys.get("parallelism.pipeline_parallel_microbatch_size", 1))
    pp = keys.get("parallelism.pipeline_parallel_degree")
    return local if pp is None or number(pp) == 1 else min(local, piece)


def _sequences(value: Any, keys: Mapping[str, Any]) -> int | None:
    """Sequences of a number of tokens, packed to torchtitan's longest context; None for -1."""
    length = number(keys.get("training.max_context_length", 2048))
    return None if value == -1 else max(1, number(value) // length)


def _recomputed_by(value: Any, _all: Mapping[str, Any]) -> str:
    """Recomputation by the name of torchtitan's class, such as ``SelectiveAC.Config``."""
    name = str(value).partition("AC")[0].lower()
    if name not in ("full", "selective"):
        raise ValueError("SelectiveAC or FullAC")
    return name


def _converted_precision(value: Any, _all: Mapping[str, Any]) -> str | Near | None:
    """Precision to which torchtitan's converters bring products; None where they do not."""
    names = _letters_and_digits(list(value))
    if "nvfp4" in names:
        return Near("mxfp4")
    precision = next((each for each in ("mxfp8", "float8") if each in names), None)
    read = "fp8" if precision == "float8" else precision
    return Near(read) if read and "lora" in names else read


def _recomputed(value: Any, plan: Mapping[str, Any]) -> str:
    """Word for recomputation; selective is none with fused attention, which keeps no scores."""
    return "none" if value == "selective" and plan["attention"] == "fused" else str(value)


def _layout(value: Any, _all: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of each chunk of Megatron-LM's layout, such as ``Et*3|(tt|)*2,L``."""
    text = str(value).replace(",", "")
    for group in (r"\(([^()]{1,999})\)\*(\d{1,3})", r"(.)\*(\d{1,3})"):
        text = re.sub(group, lambda part: part[1] * int(part[2]), text)
    if not re.fullmatch(r"[EtmL|]+", text):
        raise ValueError("a layout of E, t, m, L and |")
    return tuple(chunk.count("t") for chunk in text.split("|"))


def _layout_text(layers: tuple[int, ...], _plan: Mapping[str, Any]) -> str | None:
    """Layout of Megatron-LM with these layers in each chunk."""
    chunks = "|".join(f"t*{count}" if count else "" for count in layers)
    return f"E{chunks}L" if layers else None


def _with_fp8(key: Key) -> Key:
    """Return a key that is written for a plan in fp8 alone."""
    return key._replace(
        write=lambda value, plan: key.write(value, plan) if plan["precision"] == "fp8" else None
    )


TP_PP_DP = ("tp", "cp", "pp", "dp")  # order of axes with Megatron's ``use-tp-pp-dp-mapping``
TITAN_SCHEDULES = {
    (schedule.name, 2 if max(schedule.chunks_searched) > 1 else 1): schedule.torchtitan
    for schedule in SCHEDULES
    if schedule.torchtitan
}
"""Names in torchtitan of schedules with the chunks that a stage has if no layers are stated."""


MEGATRON: Mapping[str, Key] = {
    "tensor-model-parallel-size": whole("tp"),
    "pipeline-model-parallel-size": whole("pp"),
    "context-parallel-size": whole("cp"),
    "expert-model-parallel-size": whole("ep"),
    "expert-tensor-parallel-size": whole("etp"),
    "pipeline-model-parallel-layout": Key("stage_layers", _layout, _layout_text),
    "num-virtual-stages-per-pipeline-rank": whole("vpp")._replace(
        write=lambda vpp, plan: vpp if vpp > 1 and not plan["stage_layers"] else None
    ),
    "virtual-pipeline-model-parallel-size": whole("vpp"),
    "num-layers-per-virtual-pipeline-stage": Key("vpp", _chunks_of_stage),
    "micro-batch-size": whole("microbatch"),
    "global-batch-size": whole("global_batch"),
    "seq-length": whole("seq"),
    # LLaMA-Factory states those of its Trainer beside Megatron's.
    "per-device-train-batch-size": whole("microbatch"),
    "gradient-accumulation-steps": whole("microbatches"),
    "cutoff-len": whole("seq"),
    "sequence-parallel": true("sequence_parallel"),
    "use-distributed-optimizer": when("zero", 1, 0),
    "use-torch-fsdp2": when("zero", 3)._replace(write=lambda _zero, _plan: None),
    "data-parallel-sharding-strategy": choice("zero", nemo.SHARDING),
    "recompute-granularity": choice("recompute", RECOMPUTE)._replace(
        # Megatron-LM states recomputation alone.
        write=lambda value, plan: None if _recomputed(value, plan) == "none" else value
    ),
    "recompute-activations": when("recompute", "selective"),
    "bf16": when("precision", "bf16"),
    "fp16": when("precision", "bf16"),
    **dict.fromkeys(
        ("fp8-format", "fp8"), choice("precision", dict.fromkeys(("hybrid", "e4m3"), "fp8"))
    ),
    "fp8-recipe": _with_fp8(choice("fp8_recipe", FP8_RECIPE)),
    "overlap-grad-reduce": when("overlap", "dp", "none"),
    "tp-comm-overlap": when("overlap", "all"),
    "overlap-moe-expert-parallel-comm": when("schedule", COMBINED.name),
    "attention-backend": choice("attention", {
        "fused": "fused", "flash": "fused", "unfused": "unfused", "local": "unfused",
    }),
    "use-flash-attn": when("attention", "fused", "unfused"),
    "zero-stage": choice("zero", {str(stage): stage for stage in range(4)})._replace(
        write=lambda _zero, _plan: None
    ),  # of Megatron-DeepSpeed
    "use-tp-pp-dp-mapping": when("order", TP_PP_DP, ORDER),
    "moe-token-dispatcher-type": choice(EXCHANGE, {
        "alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": Near("alltoall"),
        "flex": "deepep",
    }),
    **dict.fromkeys(
        ("moe-enable-deepep", "use-turbo-deepep"), when(EXCHANGE, "deepep", "alltoall")
    ),
    "moe-flex-dispatcher-backend": choice(EXCHANGE, {"deepep": "deepep", "hybridep": "deepep"}),
    "grad-reduce-in-bf16": when(f"{SETTING}gradients", "bf16-gradients"),
}  # fmt: skip
MEGATRON_FLAGS = frozenset(key for key, rule in MEGATRON.items() if rule.is_flag)
"""Options of Megatron-LM's command line that take no value."""
TITAN: Mapping[str, Key] = {
    "parallelism.tensor_parallel_degree": whole("tp"),
    "parallelism.pipeline_parallel_degree": whole("pp"),
    "parallelism.context_parallel_degree": whole("cp"),
    "parallelism.expert_parallel_degree": whole("ep"),
    "parallelism.expert_tensor_parallel_degree": whole("etp"),
    "parallelism.data_parallel_shard_degree": Key(
        "zero", sharded, lambda zero, _plan: {0: 1, 3: -1}.get(zero)
    ),
    "parallelism.fsdp_reshard_after_forward": choice(
        "reshard", {"always": True, "never": False, "default": None}
    ),
    "parallelism.pipeline_parallel_schedule": Key(
        "schedule", _schedule, lambda name, plan: TITAN_SCHEDULES.get((name, plan["vpp"]))
    ),
    "parallelism.pipeline_parallel_microbatch_size": whole("microbatch")._replace(
        write=lambda size, plan: size if plan["pp"] > 1 else None
    ),
    "parallelism.enable_async_tensor_parallel": when("overlap", "all"),
    "training.local_batch_size": Key("microbatch", _local_batch, lambda size, _plan: size),
    "training.batch_size": Key("microbatch", _local_batch),
    "training.global_batch_size": whole("global_batch", unset="-1"),
    "training.seq_len": whole("seq"),
    "activation_checkpoint.mode": choice("recompute", RECOMPUTE)._replace(
        # Its ``selective`` recomputes every other layer.
        write=lambda value, plan: (
            "selective" if plan["recompute_every"] > 1 else _recomputed(value, plan)
        )
    ),
    "model.converters": Key(
        "precision",
        _converted_precision,
        lambda name, _plan: ["float8"] if name == "fp8" else None,
    ),
    # Configurations in Python, since 2026
    "training.num_tokens_per_microbatch_per_dp_rank": Key("microbatch", _sequences),
    "training.num_tokens_per_train_step": Key("global_batch", _sequences),
    "training.max_context_length": whole("seq"),
    "parallelism.num_pp_microbatches": whole("microbatches"),
    "activation_checkpoint": Key("recompute", _recomputed_by),
    "model_spec.converters": Key("precision", _converted_precision),
    "compile.enable_async_tensor_parallel": when("overlap", "all"),
    "optimizer.name": Key("optimizer", accelerate.optimizer_of),
    # Layers run eagerly unless one of these, new and old, is true.
    **dict.fromkeys(("compile.enable", "training.compile"), when(COMPILED, "", "eager")),
    "float8.enable_float8_linear": when("precision", "fp8"),
    "float8.recipe_name": _with_fp8(choice("fp8_recipe", FP8_RECIPE)),
}  # fmt: skip
NEMO: Mapping[str, Key] = {
    **{
        f"{section}.{key}": rule
        for section in ("model", "trainer.strategy")
        for key, rule in {
            "tensor_model_parallel_size": whole("tp"),
            "pipeline_model_parallel_size": whole("pp"),
            "virtual_pipeline_model_parallel_size": whole("vpp"),
            "context_parallel_size": whole("cp"),
            "expert_model_parallel_size": whole("ep"),
            "expert_tensor_parallel_size": whole("etp"),
            "sequence_parallel": true("sequence_parallel"),
        }.items()
    },
    "model.micro_batch_size": whole("microbatch"),
    "model.global_batch_size": whole("global_batch"),
    "data.micro_batch_size": whole("microbatch"),
    "data.global_batch_size": whole("global_batch"),
    "model.encoder_seq_length": whole("seq"),
    "data.seq_length": whole("seq"),
    "model.activations_checkpoint_granularity": choice("recompute", RECOMPUTE)._replace(
        write=_recomputed
    ),
    "model.fp8": when("precision", "fp8"),
    "model.fp8_recipe": _with_fp8(choice("fp8_recipe", FP8_RECIPE)),
    "trainer.precision": choice("precision", {"bf16-mixed": "bf16", **PRECISION}),
    "model.ub_tp_comm_overlap": when("overlap", "all"),
    "model.use_tp_pp_dp_mapping": when("order", TP_PP_DP, ORDER),
    "model.optim.name": Key(
        "zero",
        lambda value, _all: int("distributed" in str(value)),
        lambda zero, _plan: {0: "fused_adam", 1: "distributed_fused_adam"}.get(zero),
    ),
    "model.optim.overlap_grad_sync": when("overlap", "dp", "none"),
    # NeMo 2 has the names of Megatron-Core.
    "model.recompute_granularity": choice("recompute", RECOMPUTE),
    "model.recompute_modules": Key(MODULES, nemo.recomputed_modules),
    **{
        f"model.{key.replace('-', '_')}": MEGATRON[key]
        for key in (
            "moe-token-dispatcher-type", "moe-enable-deepep", "moe-flex-dispatcher-backend",
        )
    },
    # Megatron-Bridge has sections of its own.
    "train.micro_batch_size": whole("microbatch"),
    "train.global_batch_size": whole("global_batch"),
    **dict.fromkeys(("dataset.seq_length", "dataset.sequence_length"), whole("seq")),
    "model.seq_length": whole("seq"),
    "model.pipeline_model_parallel_layout": MEGATRON["pipeline-model-parallel-layout"]._replace(
        write=lambda _layers, _plan: None
    ),
    "ddp.use_distributed_optimizer": when("zero", 1, 0),
    "ddp.data_parallel_sharding_strategy": Key("zero", nemo.sharded_by_megatron),
    "ddp.overlap_grad_reduce": when("overlap", "dp", "none"),
    "comm_overlap.tp_comm_overlap": when("overlap", "all"),
    "mixed_precision": Key("precision", nemo.mixed_precision),
    "peft": Key("lora_rank", nemo.adapters_of_bridge),
    "trainer.plugins.precision": choice("precision", PRECISION),
    "trainer.plugins": Key("precision", nemo.mixed_precision),
    "trainer.strategy.ddp.use_distributed_optimizer": when("zero", 1, 0),
    "trainer.strategy.ddp.overlap_grad_reduce": when("overlap", "dp", "none"),
}  # fmt: skip
NEMO_ALONE = re.compile(
    r"model\.(optim\.(name|overlap)|use_tp_pp_dp|recompute_mod|moe_|seq_length|.*layout)|"
    r"(train|dataset|ddp|comm_overlap|mixed_precision|peft)\b"
)
"""Keys that NxD Training does not share with NeMo."""
NXD: Mapping[str, Key] = {
    "precision.type": choice("precision", {"mixed_precision": "bf16", **PRECISION}),
    **{
        key.replace("trainer.strategy", "distributed_strategy"): rule
        for key, rule in sorted(NEMO.items(), key=lambda item: item[0].startswith("model."))
        if not NEMO_ALONE.match(key)
    },
    "distributed_strategy.zero1": when("zero", 1, 0),
    "trainer.lnc": Key(
        "ranks_per_chip", nemo.ranks_by_lnc, lambda each, _plan: {8: 1, 4: 2}.get(each)
    ),
    "trainer.devices": Key("ranks_per_chip", nemo.ranks_of_server, lambda each, _plan: 16 * each),
    # Sequences are packed or padded to the length of the data where both are stated.
    "model.encoder_seq_length": Key(
        "seq", lambda value, keys: number(keys.get("data.seq_length") or value)
    ),
    "model.max_seq_length": whole("seq"),
    "model.pipeline_cuts": Key("stage_layers", nemo.layers_of_cuts, nemo.cut_names),
    "model.optim.name": Key(
        "optimizer",
        accelerate.optimizer_of,
        lambda name, _plan: "adamw_fp32OptState" if name == "adamw" else None,
    ),
    # Ring attention runs in a fused kernel of its own, beside which the other may be off.
    "model.fusions.flash_attention": when("attention", "fused", "unfused")._replace(
        read=lambda value, keys: (
            "fused"
            if is_set(value) or is_set(keys.get("model.fusions.ring_attention", False))
            else "unfused"
        )
    ),
    "model.fusions.ring_attention": Key(
        "attention", lambda value, _all: "fused" if is_set(value) else None
    ),
    "model.moe.capacity_factor": Key(
        "capacity_factor", _capacity, lambda factor, _plan: factor or None
    ),
    **{
        f"{section}.{key}": rule
        for section in ("model_alignment_strategy.peft", "model.peft")
        for key, rule in {
            "lora_rank": whole("lora_rank"),
            "target_modules": Key("lora_on", nemo.adapted, nemo.module_names),
        }.items()
    },
}
DEEPSPEED: Mapping[str, Key] = {
    "train_batch_size": whole("global_batch"),
    "train_micro_batch_size_per_gpu": whole("microbatch"),
    "gradient_accumulation_steps": whole("microbatches"),
    "zero_optimization.stage": choice("zero", {str(stage): stage for stage in range(4)})._replace(
        write=lambda zero, _plan: zero
    ),
    "zero_optimization.overlap_comm": when("overlap", "dp", "none"),
    "zero_optimization.reduce_bucket_size": Key(
        "bucket_bytes", _bucket, lambda size, _plan: size // 2 if size and size % 2 == 0 else None
    ),
    "bf16.enabled": when("precision", "bf16"),
    "fp16.enabled": when("precision", "bf16"),
    "tensor_parallel.autotp_size": whole("tp"),
    "tensor_parallel.tp_size": whole("tp"),
    "pipeline.stages": whole("pp"),
    "sequence_parallel_size": whole("cp"),
    # A file of DeepSpeed does not say these, which its user's program sets; ours has a section.
    **{
        f"{OURS}.{name}": Key(name, lambda value, _all: value, lambda value, _plan: value)
        for name in ("seq", "recompute", "recompute_every", "sequence_parallel", "attention")
    },
}
ABSENT = {
    **small_tools.USUAL,
    "axolotl": accelerate.USUAL_OF_AXOLOTL,
    "Megatron-LM": {
        "vpp": 1, "zero": 0, "sequence_parallel": False, "recompute": "none", "overlap": "none",
    },
}  # fmt: skip
"""Values of a tool's own defaults where its file has no such key, and hides none in a variable."""
ONE_BATCH = ("Megatron-LM", "torchtitan")
"""Tools whose replicas take one local batch a step where their file has no global batch."""
TABLES: Mapping[str, Mapping[str, Key]] = {
    "Megatron-LM": MEGATRON,
    "torchtitan": TITAN,
    "NxD Training": NXD,
    "NeMo": NEMO,
    "DeepSpeed": DEEPSPEED,
    "MaxText": MAXTEXT,
    "Accelerate": accelerate.ACCELERATE,
    "axolotl": accelerate.AXOLOTL,
    "torchtune": small_tools.TORCHTUNE,
    "picotron": small_tools.PICOTRON,
}
NULLS = {
    "model.activations_checkpoint_granularity": "none",
    **dict.fromkeys(
        ("recompute-granularity", "model.recompute_granularity", "activation_checkpoint"), "none"
    ),
    "fp8": "bf16",
    **{
        key: 1
        for name, table in TABLES.items()
        for key, rule in table.items()
        if rule.field == "vpp" and name != "MaxText"  # its null is that of base.yml
    },
}
"""Keys whose null leaves nothing open: no activation is computed again, a stage has one chunk."""


WITHOUT_TIME = re.compile(
    r"\b(lr|decay|weight|beta[12s]|eps|epsilon|seed|log|logger|logging|wandb|tensorboard|comet|save|"
    r"load|resume|restore|ckpt|checkpoints?|path|dir|directory|files?|folder|splits?|tokenizer|eval|"
    r"val|validation|test|iters|steps|epochs|samples|init|warmup|exp|experiment|"
    r"manager|sched|scheduler|description|addr|port|timeout|metrics|nsys|hysteresis|dataset|prefix|url|"
    r"print|exit|goodput|monitor|profiler?|prompt)\b|^(run )?name$"
)
"""Words of keys that set numerics, data, logs or files, but not the work of a step."""
WITH_TIME = re.compile(
    r"\b(activations?|recompute|moe|balancing|accumulation|accumulate|offload|async|optimizer|grad|"
    r"precision|cpu|dtype|quant\w*|sparsity|shard|splash)\b|split schedule$"
)
"""Words with which a key may change the time although it has one of ``WITHOUT_TIME``."""


def cannot_change_time(key: str) -> bool:
    """Return whether a key of a tool's file cannot change the time of a step, by its words."""
    words = re.sub(r"[._-]", " ", key.partition(" =")[0].lower())
    if re.search(
        r"\bclip|\bmax norm$|\binitialization|max position embeddings|node rank|\brdzv\b|\blr$|"
        r"\beps$| target $|learning rate|^(enable|async) checkpointing$|profiling|"
        r"^adamw? (b1|b2|mask)$|compute environment|wrap policy|fsdp version$|downcast bf16|"
        r"same network|sink level|main training function|^(datasets|special tokens)\b|per epoch$|"
        r"\btpu (env|use)\b|^use cpu$|^machine rank$|multinode launcher|^debug$|"
        r"^container (image|mount)|^lora (alpha|dropout)$|"
        r"\bfp8 (hybrid|e4m3|margin|interval|amax\b.*)$|"
        r"^(template|stage|do train|plot loss|trust remote code)$",
        words,
    ):
        return True
    return bool(WITHOUT_TIME.search(words)) and not WITH_TIME.search(words)


MARKS = {
    "axolotl": ("base_model", "sequence_len"),
    "Megatron-LM": (
        "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size",
    ),
    "torchtitan": ("parallelism", "activation_checkpoint", "job.config_file"),
    "NxD Training": ("distributed_strategy",),
    "NeMo": ("model.tensor_model_parallel_size", "trainer.strategy", "model.micro_batch_size"),
    "DeepSpeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    "MaxText": (
        "per_device_batch_size", "max_target_length", "remat_policy", "base_config",
        "base_emb_dim", *(key for key in MAXTEXT if key.endswith("_parallelism")),
    ),
    "Accelerate": ("distributed_type", "fsdp_config", "per_device_train_batch_size"),
    "torchtune": ("enable_activation_checkpointing",),
    "picotron": ("distributed.pp_engine", "distributed.tp_size"),
}  # fmt: skip
"""Keys by which a tool's file is recognised, any of them alone; a section stands for its keys."""

FRAMEWORKS = {
    "Megatron-LM": "megatron-core", "NeMo": "megatron-core", "torchtitan": "torchtitan",
    "DeepSpeed": "deepspeed", "NxD Training": "neuronx",
    "MaxText": "maxtext", "Accelerate": "transformers", "axolotl": "transformers",
    "torchtune": "fsdp", "picotron": "",
}  # fmt: skip
"""Framework that runs the plans of a tool."""
SECTIONS = {
    "torchtitan": (r"^(training|experimental)\.(?=\w*parallel)", "parallelism."),
    "NeMo": (r"^model\.config\.", "model."),
}
"""Sections of older and newer files, and the one in which their keys are read."""
PRIMUS = re.compile(r"modules\.(\w+)\.overrides\.(.+)")
"""Key of a file of Primus, which holds those of the tool that it launches."""
PRIMUS_SETS: Mapping[str, Mapping[str, Any]] = {
    "megatron": {"use_distributed_optimizer": True}, "torchtitan": {"compile.enable": True},
}  # fmt: skip
"""Keys that Primus sets where a file does not, by the tool."""


@dataclass(frozen=True)
class OtherPlan(ToolFile):
    """A plan that another tool's file states; ``tool`` is ``cluster-sim`` for one of our own."""

    @property
    def implied(self) -> str:
        """Framework that the tool stands for; empty for a plan of our own, which may name one."""
        return "" if self.tool == OURS else str(self.fields.get("framework", ""))

    cannot_change_time = staticmethod(cannot_change_time)


def _keys_of_tool(
    path: Path, text: str, environment: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return the tool of a file, empty for none that is known, and the keys that it has there."""
    if path.suffix == ".py":
        keys = recipe_settings(path, text, environment.get(NAME, ""))
    else:
        keys = flattened(path, text, MEGATRON_FLAGS, environment)
    keys = _launched_by_primus(keys)
    if "job.config_file" in keys:
        raise InputError(
            f"{path}: --job.config_file names the file that holds the plan. Name it by --plan."
        )
    # Megatron-LM's YAML has underscores where its command line has hyphens, and two sections.
    hyphened = {
        key if "." in key or key.startswith("$") else key.replace("_", "-"): value
        for name, value in keys.items()
        for key in [re.sub(r"^(language_model|model_parallel)\.", "", name)]
    }
    if set(MARKS["Megatron-LM"]) & set(hyphened) and not set(MARKS["axolotl"]) & set(keys):
        keys = hyphened
    if "per-device-train-batch-size" in keys and tool_of(keys, MARKS) is None:
        keys = {key.replace("-", "_"): value for key, value in keys.items()}  # of a Trainer
    tool = tool_of(keys, MARKS)
    if tool is None and path.suffix == ".py":
        raise InputError(
            f"{path}: the function states no degree and no batch that is read, as those of "
            "functions in other files are not. Write the plan's fields into a file, as tp: 8."
        )
    if tool in SECTIONS:
        keys = {re.sub(*SECTIONS[tool], key): value for key, value in keys.items()}
    if tool and path.suffix == ".py":  # a section's name beside its keys says nothing more
        sections = {name.rpartition(".")[0] for name in keys} - TABLES[tool].keys()
        keys = {name: value for name, value in keys.items() if name not in sections}
    complete = {"MaxText": over_base, "axolotl": accelerate.sharded_axolotl}.get(tool or "", dict)
    return tool or "", complete(keys)


def other_plan(path: Path, text: str, environment: Mapping[str, str] = EMPTY) -> OtherPlan | None:
    """Return the plan that a file of another tool holds; None for a file of no known tool."""
    tool, keys = _keys_of_tool(path, text, environment)
    if not tool:
        return None
    fields, ignored = fields_of_keys(keys, TABLES[tool], path, NULLS, RANKING)
    if fields.get("stage_layers") and fields.get("vpp", 1) == 1:  # a null leaves it to the layout
        fields["vpp"] = max(1, len(fields["stage_layers"]) // fields.get("pp", 1))
    if not any(key.startswith("$") for key in ignored):
        fields = {**ABSENT.get(tool, {}), **fields}
        if tool in ONE_BATCH and "microbatch" in fields and "global_batch" not in fields:
            local = keys.get("training.local_batch_size", keys.get("training.batch_size"))
            usual = number(local) // fields["microbatch"] if local else 1
            fields.setdefault("microbatches", usual)
    if fields.get("vpp", 1) > 1:
        fields.setdefault("schedule", schedule_of_chunks(fields["vpp"]))
    if tool == "MaxText" and fields.get("pp", 1) > 1:
        fields.setdefault("schedule", _schedule("GPipe", keys))
    if "fp8_recipe" in fields and fields.get("precision") != "fp8":
        ignored.append(f"fp8 recipe {fields.pop('fp8_recipe')} without fp8")
    stated = accelerate.as_launched(tool, keys, _framework(tool, fields))
    return OtherPlan(tool, stated, tuple(sorted(map(shown, ignored))), keys)


def _launched_by_primus(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the tool that a file of Primus launches, with what Primus sets unasked."""
    launched = {part[2]: value for key, value in keys.items() if (part := PRIMUS.match(key))}
    names = [keys.get(f"modules.{part[1]}.framework") for part in map(PRIMUS.match, keys) if part]
    return {**PRIMUS_SETS.get(str(names[0]), {}), **launched} if launched else dict(keys)


def _framework(tool: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a plan, with the settings among them at the framework's name."""
    settings: dict[str, Any] = {COMPILED: "eager"} if tool == "torchtitan" else {}
    if FRAMEWORKS[tool] == "megatron-core" and fields.get("ep", 1) > 1:
        settings[EXCHANGE] = "alltoall"  # Megatron-Core has DeepEP for those who name it
    settings |= {name: fields[name] for name in sorted(fields) if name.startswith(SETTING)}
    plan = {name: value for name, value in fields.items() if name not in settings}
    modules = settings.pop(MODULES, ("",))
    if "" not in modules and plan.get("recompute") == "selective":
        plan["recompute"] = "none"
    named = ",".join(filter(None, (*settings.values(), *modules)))
    return {**plan, "framework": f"{FRAMEWORKS[tool]}:{named}".rstrip(":")}


RANKING = {
    "overlap": ("none", "dp", "all"), "precision": ("bf16", "fp8"), COMPILED: ("eager", ""),
    EXCHANGE: ("alltoall", "deepep"), "zero": (0, 1, 2, 3),
}  # fmt: skip
"""Values of fields that several keys of one file set, from the weakest to the strongest."""


# Plans in files: our own YAML, and files of other tools.

LARGEST_FILE_BYTES = 2**17
SCRIPTS = (".sh", ".sbatch", ".slurm", ".bash")


def read_any_plan(path: Path) -> OtherPlan:
    """Read a plan from YAML as :func:`plan_yaml` gives it, or from a file of another tool."""
    # Files of other tools are recognised by their keys. Keys that a plan has no field for are
    # listed as ``ignored``. Raises InputError for a file that cannot be read, is not a mapping, or
    # has an unknown key.
    how: Any = {"limit_bytes": LARGEST_FILE_BYTES}
    path, text, environment = file_or_command(path, remedy="Name a plan's file.", **how)
    other = other_plan(path, text, environment)
    if other is not None:
        stated = {name: _checked(name, value, path) for name, value in other.fields.items()}
        return replace(other, fields=stated)
    is_launch = text.startswith("#!") or path.suffix in SCRIPTS or path.name == "the command"
    if (is_launch or "entrypoint:" in text) and (remedy := small_tools.remedy_of(text)):
        raise InputError(f"{path} {remedy}")
    if is_launch:
        raise InputError(
            f"{path} launches none of {', '.join(TABLES)} with a degree or a batch among its "
            "options. Name the file that has them, or write the plan's fields into one, as tp: 8."
        )
    from topologies.support.files.yaml_documents import read_yaml  # few plans are stated by files

    content = "fields. Write one a line, as tp: 8"
    document = read_yaml(path, content=content, **how)
    if not document:
        raise InputError(f"{path} holds no {content}.")
    named = {str(key).replace("-", "_"): value for key, value in document.items()}
    if len(named) > 1 and not set(named) & set(PLAN_FIELDS):
        keys = ", ".join(map(excerpt, list(named)[:3]))
        raise InputError(
            f"{path} is no plan of cluster-sim, {', '.join(TABLES)}: it begins with {keys}. "
            "Name the file with the degrees, or write one field on each line, as tp: 8."
        )
    check_names(f"{path}: a plan", named, PLAN_FIELDS)
    values = {name: _checked(name, value, path) for name, value in named.items()}
    return OtherPlan(OURS, values, ())


def _checked(name: str, value: Any, path: Path) -> Any:
    """Value of one field, refused with the file's name where no plan can have it."""
    try:
        read = field_value(name, value)
        if read is not None:
            check_field(name, read)
    except InputError as mistake:
        raise InputError(f"{path}: {mistake}") from None
    return read


def field_value(name: str, value: Any) -> Any:
    """Return a field's value as a plan holds it, from text as ``tp-cp-dp-pp``, 9-9-8-6 or 160MB."""
    if name == "order" and isinstance(value, str):
        return tuple(value.split("-"))
    if name == "stage_layers" and isinstance(value, str):
        parts = value.replace(",", "-").split("-")
        if not all(re.fullmatch(r" *[0-9]{1,9} *", part) for part in parts):
            raise InputError(
                f"stage layers {excerpt(value)} are not numbers. Write them as 9-9-8-6."
            )
        return tuple(int(part) for part in parts)
    if name == "stage_layers" and isinstance(value, int):
        return (value,)
    if name == "bucket_bytes" and isinstance(value, str):
        return parse_bytes(value)
    return tuple(value) if isinstance(value, list) and name in ("order", "stage_layers") else value


def plan_yaml(plan: ParallelPlan) -> str:
    """Return a plan as the YAML that :func:`read_any_plan` reads, one field a line."""
    import yaml

    values: dict[str, Any] = {name: getattr(plan, name) for name in PLAN_FIELDS}
    values["order"] = "-".join(plan.order)
    values["stage_layers"] = "-".join(map(str, plan.stage_layers))
    written = {name: value for name, value in values.items() if value != ""}
    return str(yaml.safe_dump(written, sort_keys=False))
