"""Reader of plans that other tools wrote: Megatron-LM, NeMo, torchtitan, NxD Training, DeepSpeed.

A file is flattened to dotted keys. The tool's table in ``other_tool_keys`` says which of them are
fields of a plan, and by what rule a value is converted. A value that no rule can read is refused;
keys that a plan has no field for are named in the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from workloads.training.plan.fields import shown
from workloads.training.plan.launch_script import OPTION, Unknown, script_options
from workloads.training.plan.other_tool_keys import (
    INTERLEAVED,
    MEGATRON_FLAGS,
    TABLES,
    Near,
    Rule,
    cannot_change_time,
    schedule_like,
)

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
    """Refuse fields of a plan that the file leaves open, all of them at once."""
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
