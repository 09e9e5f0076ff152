"""A user's own cluster from a YAML file; ``docs/background/cluster-file.md`` shows all its keys."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.reader import Entry
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import fabric_from
from topologies.clusters.yaml_schema import (
    KEYS,
    SHAPES,
    ChipKeys,
    ClosKeys,
    ClusterKeys,
    MeshKeys,
    ScaleOutKeys,
    ScaleUpKeys,
    SwitchKeys,
    TorusKeys,
)
from topologies.errors import InputError, suggestion
from topologies.files import read_text
from topologies.shapes.basic import Axis, FullMesh, Shape, Switch, Torus
from topologies.shapes.clos import Clos
from topologies.shapes.scale_out import ScaleOut
from topologies.shapes.tiered import Tier, Tiered
from topologies.units import si

LARGEST_FILE_BYTES = 1_000_000
_NEEDED = ("bf16_peak", "hbm_bytes", "hbm_bandwidth")
_NUMBER = re.compile(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def cluster_from_file(path: Path | str, catalogue: Catalogue) -> Cluster:
    """Read a cluster from a YAML file.

    Parameters
    ----------
    path : path
    catalogue : Catalogue
        Where named chips and fabrics come from; the file's own values are laid over it.

    Raises
    ------
    InputError
        For a file that cannot be read or is too large, for unknown keys with the nearest one, and
        for values that cannot be; one line with the file and the key.
    """
    keys = _validated(_parsed(read_text(Path(path), limit_bytes=LARGEST_FILE_BYTES), path), path)
    try:
        return _cluster(keys, Path(path), catalogue)
    except InputError as mistake:
        raise InputError(f"{path}: {mistake}") from None


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse what a later key would silently replace."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for key in keys if isinstance(key, str) and keys.count(key) > 1]
        if twice:
            problem = f"the key {twice[0][:60]} is given twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def _parsed(text: str, path: Path | str) -> dict[str, Any]:
    try:
        document = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as mistake:
        line = mistake.problem_mark.line + 1 if mistake.problem_mark else 1
        raise InputError(f"{path} line {line} is not YAML: {mistake.problem}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as mistake:
        raise InputError(f"{path} is not YAML: {str(mistake)[:200]}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no keys; it needs at least scale_up")
    return document


def _validated(document: dict[str, Any], path: Path | str) -> ClusterKeys:
    try:
        return ClusterKeys.model_validate(document)
    except ValidationError as mistake:
        raise InputError(f"{path}: {_explained(mistake)}") from None


def _explained(mistake: ValidationError) -> str:
    """Say the first thing that is wrong, by the path to its key."""
    first = mistake.errors(include_url=False)[0]
    where = ".".join(str(part)[:60] for part in first["loc"] if part not in SHAPES)
    given = first["input"]
    if first["type"].startswith("union_tag"):
        tag = str(given.get("shape", "")) if isinstance(given, dict) else ""
        return (
            f"{where}.shape {tag[:60]!r} is none of {', '.join(SHAPES)}.{suggestion(tag, SHAPES)}"
        )
    if first["type"] == "extra_forbidden":
        return f"unknown key {where}.{suggestion(str(first['loc'][-1]), KEYS)}"
    if first["type"] == "missing":
        return f"{where} is missing"
    shown = f" {str(given)[:60]!r}" if isinstance(given, str | int | float) else ""
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}{shown}: {message[:1].lower()}{message[1:]}"


def _cluster(keys: ClusterKeys, path: Path, catalogue: Catalogue) -> Cluster:
    chip, numbers = _chip(keys.chip, path, catalogue)
    shape = _shape(keys.scale_up)
    per_server = keys.chips_per_server or shape.chips
    fabric = _fabric(keys.scale_out, per_server, catalogue) if keys.scale_out else None
    numbers = _renamed(keys.scale_out, numbers)
    return Cluster(
        name=keys.name or path.stem,
        shape=shape,
        chip=chip,
        domains=keys.domains,
        scale_out=fabric,
        chips_per_server=per_server,
        plain=not chip,
        catalogue=numbers,
    )


def _shape(keys: ScaleUpKeys) -> Shape:
    if isinstance(keys, TorusKeys):
        return Torus(tuple(Axis(a.name, a.size, a.bandwidth, a.latency, a.wrap) for a in keys.axes))
    if isinstance(keys, MeshKeys):
        return FullMesh(keys.size, keys.bandwidth, keys.latency)
    if isinstance(keys, SwitchKeys):
        return Switch(keys.size, keys.bandwidth, keys.latency, keys.links)
    if isinstance(keys, ClosKeys):
        over = Fraction(keys.oversubscription).limit_denominator(1000)
        return Clos(keys.size, keys.radix, keys.bandwidth, keys.latency, over)
    return Tiered(
        tuple(Tier(t.name, t.size, t.bandwidth, t.latency, t.switches) for t in keys.tiers)
    )


def _fabric(keys: ScaleOutKeys, chips_per_server: int, catalogue: Catalogue) -> ScaleOut:
    """Fabric of the file; what it leaves out is taken from the catalogue part named by ``like``."""
    adapters = keys.adapters_per_server or chips_per_server
    given: dict[str, Any] = {
        "name": keys.name or keys.like or "scale-out",
        "latency_ps": keys.latency,
        "radix": keys.radix,
        "port_bytes_per_s": keys.port_bandwidth,
        "oversubscription": _ratio(keys.oversubscription),
        "rails": keys.rails,
    }
    stated = {name: value for name, value in given.items() if value is not None}
    rate = keys.bandwidth_per_chip
    if keys.like is not None:
        known = rate or catalogue.integer(keys.like, "nic_bandwidth")
        return replace(fabric_from(catalogue, keys.like, known, adapters), **stated)
    for key in ("bandwidth_per_chip", "latency", "radix"):
        if getattr(keys, key) is None:
            raise InputError(f"scale_out.{key} is missing, and there is no like: to take it from")
    own = {"bandwidth_bytes_per_s": rate, "port_bytes_per_s": rate, **stated}
    return ScaleOut(**own, adapters_per_server=adapters)


def _ratio(value: float | None) -> Fraction | None:
    return None if value is None else Fraction(value).limit_denominator(1000)


def _renamed(keys: ScaleOutKeys | None, catalogue: Catalogue) -> Catalogue:
    """The catalogue in which a fabric with a name of its own has the rows of the one it is like.

    So that what a file cannot say, such as the share of line rate that large messages reach, is
    known of it, too.
    """
    if keys is None or keys.like is None or keys.name in (None, keys.like):
        return catalogue
    of_it = re.compile(rf"(.*\.)?{re.escape(keys.like)}")
    return catalogue.with_rows(
        replace(row, part=row.part.removesuffix(keys.like) + keys.name)
        for row in catalogue.rows
        if of_it.fullmatch(row.part)
    )


def _chip(keys: ChipKeys | None, path: Path, catalogue: Catalogue) -> tuple[str, Catalogue]:
    """Name of the chip's catalogue part, and the catalogue with the file's values laid over it."""
    if keys is None:
        return "", catalogue
    if keys.like is not None:
        catalogue.entry(keys.like, "hbm_bytes")
    part = keys.like or keys.name or f"{path.stem} chip"
    values = keys.model_extra or {}
    made = catalogue.with_rows(
        [_entry(part, name, str(value), path, catalogue) for name, value in values.items()]
    )
    for quantity in _NEEDED:
        if part not in made.parts() or not made.has(part, quantity):
            raise InputError(f"chip.{quantity} is missing, and there is no like: to take it from")
    return part, made


def _entry(part: str, quantity: str, text: str, path: Path, catalogue: Catalogue) -> Entry:
    units = {row.quantity: row.unit for row in catalogue.rows if row.unit}
    if quantity not in units:
        raise InputError(f"unknown chip.{quantity[:60]}.{suggestion(quantity, units)}")
    matched = _NUMBER.fullmatch(text[:80])
    if matched is None:
        raise InputError(f"chip.{quantity} {text[:60]!r} is not a number with a unit")
    number, unit = matched.groups()
    exact, base = si(number, unit or "count")
    if base != units[quantity] and not (not unit and units[quantity] in ("count", "ratio")):
        raise InputError(f"chip.{quantity} {text[:60]!r} is in {base}, not in {units[quantity]}")
    row = Entry(
        part=part,
        quantity=quantity,
        variant="",
        value=float(exact),
        unit=units[quantity],
        grade="stated",
        source=f"file {path.name}",
        note="",
        low=None,
        high=None,
        written=text,
        exact=exact,
    )
    known = part in catalogue.parts() and catalogue.has(part, quantity)
    return replace(row, variant=catalogue.entry(part, quantity).variant) if known else row
