"""Plans in files: our own YAML, and files of other tools."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from topologies.arguments import check_names
from topologies.errors import InputError, excerpt
from topologies.files.reading import read_text
from topologies.files.tool_files import in_environment
from topologies.units import parse_bytes
from workloads.training.plan.fields import check_field
from workloads.training.plan.other_tools import OURS, OtherPlan, other_plan
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan

LARGEST_FILE_BYTES = 2**16


def read_any_plan(path: Path) -> OtherPlan:
    """Read a plan from YAML as :func:`plan_yaml` gives it, or from a file of another tool."""
    # Arguments of Megatron-LM, YAML of NeMo and of NxD Training, TOML of torchtitan and JSON of
    # DeepSpeed are recognised by their keys. Keys that a plan has no field for are listed as
    # ``ignored``. Raises InputError for a file that cannot be read, is not a mapping, or has an
    # unknown key.
    path, environment = in_environment(path)
    text = read_text(path, limit_bytes=LARGEST_FILE_BYTES, remedy="Name a plan's file.")
    other = other_plan(path, text, environment)
    if other is not None:
        stated = {name: _checked(name, value, path) for name, value in other.fields.items()}
        return replace(other, fields=stated)
    from topologies.files.yaml_documents import read_yaml  # most plans are stated by options alone

    content = "fields. Write one a line, as tp: 8"
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content=content)
    named = {str(key).replace("-", "_"): value for key, value in document.items()}
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
