"""Plans in files, and defaults that fit the cluster for the fields that nobody stated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from topologies.files.reading import read_text
from topologies.files.writing import whole_file
from topologies.units import parse_bytes
from workloads.models.model import Model
from workloads.training.plan.checks import check_ranks, filling_dp
from workloads.training.plan.fields import check_field, shown
from workloads.training.plan.other_tools import OtherPlan, other_plan
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT, pipeline_schedule

__all__ = [
    "OtherPlan",
    "complete",
    "field_value",
    "plan_yaml",
    "read_any_plan",
    "read_plan",
    "write_plan",
]

LARGEST_FILE_BYTES = 2**16
DEFAULT_SEQ = 4096
"""Tokens of a sequence where none are stated; less for a model with fewer positions."""
DEFAULT_MICROBATCHES = 16
"""Microbatches of a replica where no global batch is stated."""


def read_plan(path: Path) -> dict[str, Any]:
    """Return the fields of a plan that a file states; see :func:`read_any_plan`."""
    return dict(read_any_plan(path).fields)


def read_any_plan(path: Path) -> OtherPlan:
    """Read a plan from YAML as :func:`write_plan` writes it, or from a file of another tool.

    Arguments of Megatron-LM, YAML of NeMo and of NxD Training, TOML of torchtitan and JSON of
    DeepSpeed are recognised by their keys. Keys that a plan has no field for are listed as
    ``ignored``.

    Raises
    ------
    InputError
        For a file that cannot be read, is not a mapping, or has an unknown key.
    """
    text = read_text(path, limit_bytes=LARGEST_FILE_BYTES, remedy="Name a plan's file.")
    other = other_plan(path, text)
    if other is not None:
        stated = {name: _checked(name, value, path) for name, value in other.fields.items()}
        return OtherPlan(other.tool, stated, other.ignored)
    from topologies.files.yaml_documents import read_yaml  # most plans are stated by options alone

    content = "fields. Write one a line, as tp: 8"
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content=content)
    named = {_field_name(str(key), path): value for key, value in document.items()}
    values = {name: _checked(name, value, path) for name, value in named.items()}
    return OtherPlan("cluster-sim", values, ())


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
    """Return a field's value as a plan holds it, from text as ``tp-cp-dp-pp``, 9-9-8-6 or 160MB.

    Examples
    --------
    >>> field_value("bucket_bytes", "160MB"), field_value("stage_layers", "9-7")
    (160000000, (9, 7))
    """
    if name == "order" and isinstance(value, str):
        return tuple(value.split("-"))
    if name == "stage_layers" and isinstance(value, str):
        return _layers(value)
    if name == "stage_layers" and isinstance(value, int):
        return (value,)
    if name == "bucket_bytes" and isinstance(value, str):
        return parse_bytes(value)
    return tuple(value) if isinstance(value, list) and name in ("order", "stage_layers") else value


def plan_yaml(plan: ParallelPlan) -> str:
    """Return a plan as the YAML that :func:`read_plan` reads, one field a line.

    Examples
    --------
    >>> plan_yaml(ParallelPlan(tp=4, pp=2, stage_layers=(9, 7))).splitlines()[:2]
    ['tp: 4', 'pp: 2']
    """
    import yaml

    values: dict[str, Any] = {field.name: getattr(plan, field.name) for field in fields(plan)}
    values["order"] = "-".join(plan.order)
    values["stage_layers"] = "-".join(map(str, plan.stage_layers))
    written = {name: value for name, value in values.items() if value != ""}
    return str(yaml.safe_dump(written, sort_keys=False))


def write_plan(plan: ParallelPlan, path: Path) -> None:
    """Write a plan as YAML, atomically."""
    with whole_file(path) as part:
        part.write_text(plan_yaml(plan))


def _field_name(key: str, path: Path) -> str:
    """Name of the field that a key of a file stands for, written with hyphens or underscores."""
    names = [field.name for field in fields(ParallelPlan)]
    name = key.replace("-", "_")
    if name not in names:
        near = suggestion(name, names)
        raise InputError(f"{path}: a plan has no {key[:40]!r}.{near} It has {', '.join(names)}.")
    return name


def complete(
    stated: Mapping[str, Any], model: Model, cluster: Cluster, *, lnc: int | None = None
) -> ParallelPlan:
    """Return a plan with defaults for the fields that are not stated.

    Parameters
    ----------
    stated : mapping
        Fields of :class:`ParallelPlan`; None counts as not stated.
    model : Model
    cluster : Cluster
        Cluster that the data-parallel degree fills.
    lnc : int, optional
        Physical cores of a logical core of Trainium, which says how many ranks a chip has.

    Raises
    ------
    InputError
    """
    plan_fields = {
        name: field_value(name, value) for name, value in stated.items() if value is not None
    }
    default_ranks = ranks_per_chip(cluster, lnc)
    per_chip = plan_fields.setdefault("ranks_per_chip", default_ranks)
    if lnc is not None and per_chip != default_ranks:
        raise InputError(
            f"--lnc {lnc} makes {default_ranks} ranks a chip, but ranks_per_chip is {per_chip}. "
            "State one of them."
        )
    if _size(plan_fields, "pp") > 1:
        allowed = pipeline_schedule(plan_fields.get("schedule", DEFAULT)).chunks_allowed
        plan_fields.setdefault("vpp", allowed[0])
    plan_fields.setdefault("seq", min(DEFAULT_SEQ, model.positions or DEFAULT_SEQ))
    # Each size is checked before the next ones are computed from it.
    tp, pp, cp, per_chip, microbatch = (
        _size(plan_fields, name) for name in ("tp", "pp", "cp", "ranks_per_chip", "microbatch")
    )
    if "dp" not in plan_fields:
        plan_fields["dp"] = filling_dp(tp, pp, cp, cluster.chips, per_chip)
    dp = _size(plan_fields, "dp")
    # With one microbatch a replica, so that ranks are refused before a batch that follows from dp.
    smallest = {**plan_fields, "global_batch": dp * microbatch}
    check_ranks(ParallelPlan(**smallest), cluster.chips)
    plan_fields.setdefault("global_batch", dp * microbatch * DEFAULT_MICROBATCHES)
    # With tp 1 there is nothing to split; the default stays, so that it is not named as idle.
    plan_fields.setdefault("sequence_parallel", tp == 1 or plan_fields["seq"] % (cp * tp) == 0)
    return ParallelPlan(**plan_fields)


def _layers(text: str) -> tuple[int, ...]:
    """Layers of each chunk, written as 9-9-8-6."""
    parts = text.replace(",", "-").split("-")
    if not all(re.fullmatch(r" *[0-9]{1,9} *", part) for part in parts):
        raise InputError(f"stage layers {shown(text)} are not numbers. Write them as 9-9-8-6.")
    return tuple(int(part) for part in parts)


def _size(plan_fields: Mapping[str, Any], name: str) -> int:
    """Value of a whole-number field, checked; 1 where it is not stated."""
    value: int = plan_fields.get(name, 1)
    check_field(name, value)
    return value


def ranks_per_chip(cluster: Cluster, lnc: int | None = None) -> int:
    """Ranks of a chip.

    Parameters
    ----------
    cluster : Cluster
    lnc : int, optional
        Physical cores of a logical core. Without it a chip has one rank, or as many as its
        catalogue's only row says: two on Trainium1, whose cores cannot be joined.

    Raises
    ------
    InputError
        For another chip than Trainium, or cores that ``lnc`` does not divide.
    """
    catalogue, chip = cluster.catalogue, cluster.chip
    if catalogue is None or not chip:
        return 1
    family = chip_family(chip, catalogue)
    if lnc is None:
        fixed = family.is_neuron and len(catalogue.variants(chip, "ranks_per_chip")) == 1
        return family.ranks_per_chip if fixed else 1
    if not family.is_neuron:
        raise InputError(f"--lnc is for Trainium, not for {chip}. Leave it out.")
    cores = catalogue.integer(chip, "cores")
    if lnc < 1 or cores % lnc:
        raise InputError(f"--lnc {lnc} does not divide the {cores} cores of {chip}. Use 1 or 2.")
    return cores // lnc
