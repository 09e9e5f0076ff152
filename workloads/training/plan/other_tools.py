"""Reader of plans that other tools wrote: Megatron-LM, NeMo, torchtitan, NxD Training, DeepSpeed.

A file is flattened to dotted keys. The tool's table in ``other_tool_keys`` says which of them are
fields of a plan, and by what rule a value is converted. Keys that have no influence on time are
ignored, and named in the result.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from workloads.training.plan.other_tool_keys import INTERLEAVED, TABLES, Rule, schedule_like

LARGEST_BYTES = 2**16
"""Size of the largest file that is read as YAML [B]."""
DEEPEST = 8
"""Sections within sections that are flattened; what lies deeper is left as one value."""
MARKS = {
    "Megatron-LM": ("tensor-model-parallel-size", "pipeline-model-parallel-size"),
    "torchtitan": ("parallelism", "activation_checkpoint", "job.config_file"),
    "NxD Training": ("distributed_strategy",),
    "NeMo": ("model.tensor_model_parallel_size", "trainer.strategy", "model.micro_batch_size"),
    "DeepSpeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
}
"""Keys by which a tool's file is recognised, any of them alone; a section stands for its keys."""


@dataclass(frozen=True)
class OtherPlan:
    """A plan that another tool's file states.

    Attributes
    ----------
    tool : str
        Name of the tool, such as ``Megatron-LM``.
    fields : mapping
        Fields of :class:`~workloads.training.plan.plan.ParallelPlan` that the file states.
    ignored : tuple of str
        Keys of the file that a plan has no field for.
    """

    tool: str
    fields: Mapping[str, Any]
    ignored: tuple[str, ...]


def other_plan(path: Path, text: str) -> OtherPlan | None:
    """Return the plan that a file of another tool holds; None for a file of no known tool.

    Parameters
    ----------
    path : Path
        Its ending says whether the text is TOML, JSON, or YAML or a command line.
    text : str
        Content of the file.

    Raises
    ------
    InputError
        For a file of a known tool that cannot be read.
    """
    keys = _flattened(path, text)
    # Megatron-LM's YAML has underscores where its command line has hyphens.
    hyphened = {key.replace("_", "-"): value for key, value in keys.items() if "." not in key}
    if set(MARKS["Megatron-LM"]) & set(hyphened):
        keys = hyphened
    tool = _tool(keys)
    if tool is None:
        return None
    fields: dict[str, Any] = {}
    ignored = []
    for key, value in keys.items():
        if key not in TABLES[tool]:
            ignored.append(key)
            continue
        field, rule = TABLES[tool][key]
        converted = _converted(rule, key, keys, f"{path}: ", field)
        if converted is None:
            ignored.append(f"{key} = {str(value)[:40]}")
        else:
            fields[field] = _stronger(field, fields.get(field), converted)
    if fields.get("vpp", 1) > 1:
        fields.setdefault("schedule", schedule_like(INTERLEAVED, keys))
    if "fp8_recipe" in fields and fields.get("precision") != "fp8":
        ignored.append(f"fp8 recipe {fields.pop('fp8_recipe')} without fp8")
    return OtherPlan(tool, fields, tuple(sorted(ignored)))


def _tool(keys: Mapping[str, Any]) -> str | None:
    """Name of the tool whose marks are among the keys; None if no tool has them."""
    for tool, marks in MARKS.items():
        if any(key == mark or key.startswith(f"{mark}.") for mark in marks for key in keys):
            return tool
    return None


def _converted(rule: Rule, key: str, keys: Mapping[str, Any], where: str, field: str) -> Any:
    """Value of a plan's field that a key stands for; None where it says nothing about the field."""
    try:
        return rule(keys[key], keys)
    except InputError as mistake:
        raise InputError(f"{where}{mistake}") from None
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        # The file may hold null, lists, infinities or zeros where a number is expected.
        raise InputError(
            f"{where}{key} is {str(keys[key])[:40]!r}, of which no {field} can be made. "
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

    document: Any = None
    try:
        if path.suffix == ".toml":
            document = tomllib.loads(text)
        elif path.suffix == ".json":
            document = json.loads(text)
        elif not re.search(r"^[^#\n]*--[a-z]", text, re.MULTILINE):  # no long option: not a script
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
    """Dotted keys of a document of nested sections, with their values."""
    leaves: list[tuple[str, Any]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < DEEPEST:
            leaves += _leaves(value, f"{name}.", depth + 1)
        else:
            leaves.append((name, value))
    return leaves


def _options(text: str) -> dict[str, Any]:
    """Long options of a command line or of a script; a flag without a value is true."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return {}
    options: dict[str, Any] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        has_value = after and not after.startswith("--")
        options[name.replace("_", "-")] = value if equals else after if has_value else True
    return options
