"""Reader of plans that other tools wrote: Megatron-LM, NeMo, torchtitan, NxD Training, DeepSpeed.

A file is flattened to dotted keys. The tool's table in ``other_tool_keys`` says which of them are
fields of a plan, and by what rule a value is converted. A value that no rule can read is refused;
keys that a plan has no field for are named in the result.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from topologies.errors import InputError
from workloads.training.plan.fields import CHOICES, shown
from workloads.training.plan.schedules.registry import all_schedules

# Keys of other tools' files, and the fields of a plan that they stand for.
# Each table maps a key to the field of a plan and the rule that converts its value. A rule returns
# None for a value that says nothing about the field, and raises a ValueError that says what it can
# read for any other. Before that, null and "auto" leave a field open in all files.

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
    """Return the pipeline schedule of a name such as ``Interleaved1F1B`` or ``ZBVZeroBubble``."""
    # Of schedules whose name is part of this one, such as ``1f1b`` and ``interleaved``, the longest
    # name says most.
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


def _length_of_data(value: Any, keys: Mapping[str, Any]) -> int:
    """Tokens of the sequences of the data, or else those that a model's positions allow."""
    stated = keys.get("data.seq_length")
    return _number(value if stated is None else stated)


def _cut(value: Any, keys: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of each stage, by the names of the last layer of every stage but the last."""
    ends = [int(str(name).rpartition(".")[2]) + 1 for name in value]
    ends.append(_number(keys.get("model.num_layers")))
    counts = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    if min(counts) < 1:
        raise ValueError("names of layers in order, fewer than num_layers")
    return counts


def _optimizer(value: Any, _all: Mapping[str, Any]) -> str | Near:
    """Optimizer by a name such as ``adamw_fp32OptState``; near AdamW where no plan has it."""
    names = map(str, CHOICES["optimizer"])
    return next((name for name in names if str(value).startswith(name)), Near("adamw"))


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
    # Sequences are packed or padded to the length of the data where both are stated.
    "model.encoder_seq_length": ("seq", _length_of_data),
    "model.max_seq_length": _whole("seq"),
    "model.pipeline_cuts": ("stage_layers", _cut),
    "model.optim.name": ("optimizer", _optimizer),
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
NO_RECOMPUTATION = "model.activations_checkpoint_granularity"
"""Key of NxD and NeMo whose null leaves nothing open: no activation is computed again."""
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
    """Return whether a key of a tool's file cannot change the time of a step, by its words."""
    words = re.sub(r"[._-]", " ", key.partition(" =")[0].lower())
    if re.search(r"\bclip|\binitialization", words):
        return True
    return bool(WITHOUT_TIME.search(words)) and not WITH_TIME.search(words)


LARGEST_BYTES = 2**16  # size of the largest file that is read as YAML [B]
DEEPEST = 8  # sections within sections that are flattened; what lies deeper is left as one value
MARKS = {
    "Megatron-LM": (
        "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size",
    ),
    "torchtitan": ("parallelism", "activation_checkpoint", "job.config_file"),
    "NxD Training": ("distributed_strategy",),
    "NeMo": ("model.tensor_model_parallel_size", "trainer.strategy", "model.micro_batch_size"),
    "DeepSpeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
}  # fmt: skip
"""Keys by which a tool's file is recognised, any of them alone; a section stands for its keys."""

FRAMEWORKS = {
    "Megatron-LM": "megatron-core", "NeMo": "megatron-core", "torchtitan": "torchtitan",
    "DeepSpeed": "deepspeed", "NxD Training": "neuronx",
}  # fmt: skip
"""Framework that runs the plans of a tool."""
COMPILED = ("compile.enable", "training.compile")
"""Keys of torchtitan, new and old, that compile layers; it does not unless one of them is true."""


OURS = "cluster-sim"  # name of the tool of our own plans


@dataclass(frozen=True)
class OtherPlan:
    """A plan that another tool's file states."""

    tool: str  # name of the tool, such as ``Megatron-LM``; ``cluster-sim`` for a plan of our own
    # Fields of :class:`~workloads.training.plan.plan.ParallelPlan` that the file states
    fields: Mapping[str, Any]
    # Keys of the file that a plan has no field for, or whose value a plan has only nearly
    ignored: tuple[str, ...]

    @property
    def implied(self) -> str:
        """Framework that the tool stands for; empty for a plan of our own, which may name one."""
        return "" if self.tool == OURS else str(self.fields.get("framework", ""))

    @property
    def may_change_time(self) -> tuple[str, ...]:
        """Ignored keys with which a step might take another time on the tool's own machine."""
        return tuple(key for key in self.ignored if not cannot_change_time(key))

    def document(self) -> dict[str, Any]:
        """Return the tool and the ignored keys, as JSON has them."""
        keys = {"ignored": self.ignored, "may_change_time": self.may_change_time}
        return {"plan_file": {"tool": self.tool, **keys}}

    @property
    def sentence(self) -> str:
        """One line on the ignored keys, the ones that matter first; empty without any."""
        matter = self.may_change_time
        rest = [key for key in self.ignored if key not in matter]
        parts = [
            f"{start} {', '.join(keys)}, which {verb} change the time"
            for start, keys, verb in (
                ("", matter, "may"),
                ("nor for" if matter else "", rest, "cannot"),
            )
            if keys
        ]
        about = ", ".join(part.strip() for part in parts)
        return f"The plan is {self.tool}'s; it has no field for {about}." if about else ""


def other_plan(path: Path, text: str) -> OtherPlan | None:
    """Return the plan that a file of another tool holds; None for a file of no known tool."""
    keys = _flattened(path, text)
    # Megatron-LM's YAML has underscores where its command line has hyphens.
    hyphened = {
        key if "." in key or key.startswith("$") else key.replace("_", "-"): value
        for key, value in keys.items()
    }
    if set(MARKS["Megatron-LM"]) & set(hyphened):
        keys = hyphened
    tool = _tool(keys)
    if tool is None:
        return None
    _check_known(path, {key: keys[key] for key in keys if key in TABLES[tool]})
    fields: dict[str, Any] = {}
    ignored = []
    for key, value in keys.items():
        if key not in TABLES[tool]:
            ignored += [] if tool == "torchtitan" and key in COMPILED else [key]
            continue
        field, rule = TABLES[tool][key]
        converted = _converted(rule, key, keys, f"{path}: ", field)
        if converted is None or isinstance(converted, Near):
            ignored.append(f"{key} = {str(value)[:40]}")
            converted = converted and converted.value
        if converted is not None:
            fields[field] = _stronger(field, fields.get(field), converted)
    if fields.get("vpp", 1) > 1:
        fields.setdefault("schedule", schedule_like(INTERLEAVED, keys))
    if "fp8_recipe" in fields and fields.get("precision") != "fp8":
        ignored.append(f"fp8 recipe {fields.pop('fp8_recipe')} without fp8")
    return OtherPlan(tool, fields | {"framework": _framework(tool, keys)}, tuple(sorted(ignored)))


def _framework(tool: str, keys: Mapping[str, Any]) -> str:
    """Framework of a tool's plan, with the setting that its file chooses."""
    compiled = any(str(keys.get(key)).lower() == "true" for key in COMPILED)
    eager = ":eager" if tool == "torchtitan" and not compiled else ""
    return f"{FRAMEWORKS[tool]}{eager}"


def _check_known(path: Path, stated: Mapping[str, Any]) -> None:
    unknown = [
        f"{key} is {value.why}" for key, value in stated.items() if isinstance(value, Unknown)
    ]
    if unknown:
        more = f"; and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        raise InputError(f"{path}: {'; '.join(unknown[:4])}{more}. Write numbers into the file.")


def _tool(keys: Mapping[str, Any]) -> str | None:
    """Name of the tool whose marks are among the keys; None if no tool has them."""
    for tool, marks in MARKS.items():
        if any(key == mark or key.startswith(f"{mark}.") for mark in marks for key in keys):
            return tool
    return None


def _converted(rule: Rule, key: str, keys: Mapping[str, Any], where: str, field: str) -> Any:
    """Value of a plan's field that a key stands for; None where it says nothing about the field."""
    value = keys[key]
    if value is None and key == NO_RECOMPUTATION:
        return "none"
    try:
        return None if str(value) in ("None", "null", "auto") else rule(value, keys)
    except InputError as mistake:
        raise InputError(f"{where}{mistake}") from None
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as mistake:
        # The file may hold lists, infinities or zeros where a number is expected.
        needed = f"; it must be {mistake}" if type(mistake) is ValueError else ""
        raise InputError(
            f"{where}{key} is {shown(value)}, of which no {field} can be made{needed}. "
            "Correct the value."
        ) from None


RANKING = {"overlap": ("none", "dp", "all"), "precision": ("bf16", "fp8")}
"""Values of fields that several keys of one file set, from the weakest to the strongest."""


def _stronger(field: str, earlier: Any, later: Any) -> Any:
    """Value of a field that two keys set: the stronger one, or else that of the later key."""
    ranking = RANKING.get(field)
    if earlier is None or ranking is None:
        return later
    return max(earlier, later, key=ranking.index)


def _flattened(path: Path, text: str) -> dict[str, Any]:
    """Keys of a file, dotted where they lie in sections; of a command line its long options."""
    import tomllib  # here, since most plans are stated by options alone

    from topologies.files.yaml_documents import read_yaml

    # Compiler flags within YAML look like a command line, so its ending decides.
    is_yaml = path.suffix in (".yaml", ".yml")
    document: Any = None
    try:
        if path.suffix == ".toml":
            document = tomllib.loads(text)
        elif path.suffix == ".json":
            document = json.loads(text)
        elif is_yaml or not re.search(r"^[^#\n]*--[a-z]", text, re.MULTILINE):
            document = read_yaml(path, limit_bytes=LARGEST_BYTES, content="fields")
    except (InputError, ValueError, RecursionError) as mistake:
        if path.suffix in (".toml", ".json"):
            why = " ".join(str(mistake).split())[:100]
            raise InputError(
                f"{path} is not {path.suffix[1:].upper()} ({why}). Correct it."
            ) from None
        if not (is_yaml and OPTION.match(text.lstrip())):
            return {}
    if document is None:
        try:
            options = script_options(text, MEGATRON_FLAGS)
        except InputError as mistake:
            raise InputError(f"{path}: {mistake}") from None
        if "job.config-file" in options:
            raise InputError(
                f"{path}: --job.config_file names the file that holds the plan. Name it by --plan."
            )
        return {name.replace("-", "_") if "." in name else name: options[name] for name in options}
    leaves = dict(_leaves(document)) if isinstance(document, dict) else {}
    return {key: _referred(key, value, leaves) for key, value in leaves.items()}


def _referred(key: str, value: Any, leaves: Mapping[str, Any]) -> Any:
    """Value of a key, or of the key that it refers to by ``${model.seq}`` or ``${.seq}``."""
    for _ in range(DEEPEST):
        reference = re.fullmatch(r"\$\{(\.?)([\w.]+)\}", value) if isinstance(value, str) else None
        if reference is None:
            break
        key = f"{key.rpartition('.')[0]}.{reference[2]}" if reference[1] else reference[2]
        value = leaves.get(key, Unknown(f"{value}, which the file does not state"))
    if isinstance(value, str) and "${" in value:
        return Unknown(f"{value}, which is not a literal value")
    return value


def _leaves(document: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """Dotted keys of a document of nested sections, with their values."""
    leaves: list[tuple[str, Any]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < DEEPEST:
            leaves += _leaves(value, f"{name}.", depth + 1)
        else:
            leaves.append((name, value))
    return leaves


# Reader of the options of a launch script, with the script's literal variables put in.

# Variables that stand for variables, and strings within strings, that are followed.
DEEPEST_VARIABLES = 8
VARIABLE = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}?")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPTION = re.compile(r"(^|\s)--[a-z]")


@dataclass(frozen=True)
class Unknown:
    """Value that a file leaves open, with the reason as a message gives it."""

    why: str


def script_options(
    text: str, flags: frozenset[str] = frozenset()
) -> dict[str, str | bool | Unknown]:
    """Return the long options of a command line or script by name; a flag without a value is true.

    Literal assignments such as ``TP=8`` and ``${TP:-8}`` are put in. A value that a condition, the
    environment or a computation decides, and one that is stated twice and differently, is
    :class:`Unknown`. The word after an option of ``flags`` is not its value.

    >>> script_options("TP=8\\ntrain --tp $TP --pp $PP --bf16")
    {'tp': '8', 'pp': Unknown(why='$PP, which the file does not state as a literal'), 'bf16': True}
    """
    # A comment ends with its line even where that line ends with a backslash.
    lines = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    # The words of an array, NAME=(…), are read as if they stood by themselves.
    try:
        words = list(_words(re.sub(r"\b\w+\+?=\((?!\()", " ", lines)))
    except ValueError as mistake:
        raise InputError(f"the script cannot be read ({mistake}). Close its quotes.") from None
    variables = _variables(words)
    options: dict[str, str | bool | Unknown] = {}
    expects_value = False
    for (word, conditional), (after, _) in zip(words, [*words[1:], ("", False)], strict=True):
        option = re.fullmatch(r"(?:[A-Za-z_]\w*=)?--([\w.-]+)(?:=(.*))?", word, re.DOTALL)
        if option is None:
            variable = VARIABLE.fullmatch(word)
            if variable and not expects_value and variable[1] not in variables:
                options[word] = True  # options that nobody can see
            expects_value = False
            continue
        name, value = option[1].replace("_", "-"), option[2]
        expects_value = value is None and name not in flags
        may_follow = name not in flags or after.lower() in ("true", "false")
        if value is None and may_follow and after and not after.startswith("--"):
            value = after
        read = True if value is None else _resolved(value, variables)
        if conditional:
            read = Unknown("decided by an if or a case of the script")
        elif name in options and options[name] != read:
            read = Unknown(f"stated as {_text(options[name])} and as {_text(read)}")
        options[name] = read
    return options


def _text(value: str | bool | Unknown) -> str:
    return value.why if isinstance(value, Unknown) else str(value)


def _words(text: str, conditional: bool = False, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the words of a script, each with whether it stands within a condition."""
    open_conditions = 0
    for word in shlex.split(text, comments=True):
        bare = word.rstrip(");")
        open_conditions += (bare in ("if", "case")) - (bare in ("fi", "esac"))
        within = conditional or open_conditions > 0
        if re.search(r"\s", word) and OPTION.search(word) and depth < DEEPEST_VARIABLES:
            # Options within quotes, as in ARGS="--bf16 --lr 1" or bash -c "…".
            yield from _words(re.sub(r"^[A-Za-z_]\w*=", "", word), within, depth + 1)
        elif bare:
            yield bare, within


def _variables(words: list[tuple[str, bool]]) -> dict[str, set[str | None]]:
    """Values that each variable of a script is assigned, None for those within a condition."""
    variables: dict[str, set[str | None]] = {}
    for word, conditional in words:
        assigned = ASSIGNMENT.fullmatch(word)
        if assigned:
            variables.setdefault(assigned[1], set()).add(None if conditional else assigned[2])
    return variables


def _resolved(value: str, variables: Mapping[str, set[str | None]]) -> str | Unknown:
    """Value with its variable put in, if every part of it is stated literally."""
    seen: set[str] = set()
    read: str | None = value
    while read is not None and (variable := VARIABLE.fullmatch(read)):
        name, default = variable.groups()
        # TP=${TP:-8} takes the default, as an environment without TP does.
        assigned = {default} if name in seen else variables.get(name, {default})
        if len(assigned) > 1:
            return Unknown(f"{value}, which the script sets in several ways")
        seen.add(name)
        (read,) = assigned
        if len(seen) > DEEPEST_VARIABLES:
            break
    if read is None or "$" in read or "`" in read:
        return Unknown(f"{value}, which the file does not state as a literal")
    return read
