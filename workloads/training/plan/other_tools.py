"""Plans as other tools write them: Megatron-LM, NeMo, torchtitan, NxD Training, DeepSpeed.

A file is flattened to dotted keys. A table says which of them are fields of a plan, and by what
rule their value carries over; keys that say nothing about time are ignored, and named.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from topologies.yaml_documents import read_yaml
from workloads.training.plan.schedules import all_schedules

Rule = Callable[[Any, Mapping[str, Any]], Any]
LARGEST_BYTES = 2**16
MARKS = {
    "Megatron-LM": ("tensor-model-parallel-size", "pipeline-model-parallel-size"),
    "torchtitan": ("parallelism", "activation_checkpoint", "job.config_file"),
    "NxD Training": ("distributed_strategy",),
    "NeMo": ("model.tensor_model_parallel_size", "trainer.strategy", "model.micro_batch_size"),
    "DeepSpeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
}
"""Keys by which a tool's file is known; a section counts with all that it holds."""


@dataclass(frozen=True)
class OtherPlan:
    """A plan of another tool.

    Attributes
    ----------
    tool : str
    fields : mapping
        Fields of :class:`~workloads.training.plan.plan.ParallelPlan`.
    ignored : tuple of str
        Keys of the file that a plan has no field for.
    """

    tool: str
    fields: Mapping[str, Any]
    ignored: tuple[str, ...]


def _whole(name: str) -> tuple[str, Rule]:
    def read(value: Any, _all: Mapping[str, Any]) -> Any:
        whole = int(value) if re.fullmatch(r"\d{1,12}", str(value)) else 0
        return whole or None

    return name, read


def _true(name: str) -> tuple[str, Rule]:
    return name, lambda value, _all: str(value).lower() in ("true", "1", "yes", "")


def _when(name: str, answer: Any) -> tuple[str, Rule]:
    """Reader of a flag that stands for one value of a field."""
    return name, lambda value, _all: answer if str(value).lower() in ("true", "1", "") else None


def _choice(name: str, choices: Mapping[str, Any]) -> tuple[str, Rule]:
    return name, lambda value, _all: choices.get(str(value).lower())


def _virtual(value: Any, everything: Mapping[str, Any]) -> Any:
    """Chunks a stage, from the layers of each chunk."""
    layers = everything.get("num-layers") or everything.get("model.num_layers")
    stages = everything.get("pipeline-model-parallel-size", 1)
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
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _schedule(value: Any, _all: Mapping[str, Any]) -> str | None:
    """Pipeline schedule of a name such as ``Interleaved1F1B`` or ``ZBVZeroBubble``."""
    plain = _plain(value)
    alike = [schedule for schedule in all_schedules() if _plain(schedule.name) in plain]
    best = max(alike, key=lambda tool: (tool.splits_weights, len(tool.name)), default=None)
    return best.name if best else None


def _plain(name: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


CHUNKED = "Interleaved1F1B"
"""Name that torchtitan gives to stages of several chunks, which Megatron-LM has unasked."""


MEGATRON: Mapping[str, tuple[str, Rule]] = {
    "tensor-model-parallel-size": _whole("tp"),
    "pipeline-model-parallel-size": _whole("pp"),
    "context-parallel-size": _whole("cp"),
    "expert-model-parallel-size": _whole("ep"),
    "expert-tensor-parallel-size": _whole("etp"),
    "num-virtual-stages-per-pipeline-rank": _whole("vpp"),
    "num-layers-per-virtual-pipeline-stage": ("vpp", _virtual),
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
    "parallelism.pipeline_parallel_schedule": ("schedule", _schedule),
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


def other_plan(path: Path, text: str) -> OtherPlan | None:
    """Return the plan that a file of another tool holds; None for a file of no known tool.

    Raises
    ------
    InputError
        When the file is of a known tool and cannot be read.
    """
    keys = flattened(path, text)
    spelled = {key.replace("_", "-"): value for key, value in keys.items() if "." not in key}
    if set(MARKS["Megatron-LM"]) & set(spelled):
        keys = spelled
    tool = next(
        (
            name
            for name, marks in MARKS.items()
            if any(key == mark or key.startswith(f"{mark}.") for mark in marks for key in keys)
        ),
        None,
    )
    if tool is None:
        return None
    fields: dict[str, Any] = {}
    ignored = []
    for key, value in keys.items():
        if key not in TABLES[tool]:
            ignored.append(key)
            continue
        field, rule = TABLES[tool][key]
        try:
            answer = rule(value, keys)
        except InputError as mistake:
            raise InputError(f"{path}: {mistake}") from None
        except (ValueError, TypeError, OverflowError, ZeroDivisionError):
            # rules convert what a stranger wrote: null, lists, infinities and zeros among it
            raise InputError(
                f"{path}: {key} is {str(value)[:40]!r}, of which no {field} can be made. "
                "Correct the value."
            ) from None
        if answer is None:
            ignored.append(f"{key} = {str(value)[:40]}")
        else:
            fields[field] = _stronger(field, fields.get(field), answer)
    if fields.get("vpp", 1) > 1:
        fields.setdefault("schedule", _schedule(CHUNKED, keys))
    if "fp8_recipe" in fields and fields.get("precision") != "fp8":
        ignored.append(f"fp8 recipe {fields.pop('fp8_recipe')} without fp8")
    return OtherPlan(tool, fields, tuple(sorted(ignored)))


RANKING = {"overlap": ("none", "dp", "all"), "precision": ("bf16", "fp8")}


def _stronger(field: str, earlier: Any, later: Any) -> Any:
    """Larger of two keys' values for one field."""
    ranking = RANKING.get(field)
    if earlier is None or ranking is None:
        return later
    return max(earlier, later, key=ranking.index)


def flattened(path: Path, text: str) -> dict[str, Any]:
    """All keys of a file, dotted; of a command line its long options."""
    document: Any = None
    try:
        if path.suffix == ".toml":
            document = tomllib.loads(text)
        elif path.suffix == ".json":
            document = json.loads(text)
        elif not re.search(r"^[^#\n]*--[a-z]", text, re.MULTILINE):
            document = read_yaml(path, limit_bytes=LARGEST_BYTES, content="fields")
    except (InputError, ValueError, RecursionError) as mistake:
        if path.suffix in (".toml", ".json"):
            why = " ".join(str(mistake).split())[:100]
            raise InputError(
                f"{path} is not {path.suffix[1:].upper()} ({why}). Correct it."
            ) from None
        return {}
    if document is None:
        return _options(text)
    return dict(_leaves(document)) if isinstance(document, dict) else {}


def _leaves(document: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < 8:
            leaves += _leaves(value, f"{name}.", depth + 1)
        else:
            leaves.append((name, value))
    return leaves


def _options(text: str) -> dict[str, Any]:
    """Long options of a command line or of lines of a script; a flag is true."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return {}
    options: dict[str, Any] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        follows = after and not after.startswith("--")
        options[name.replace("_", "-")] = value if equals else after if follows else True
    return options
