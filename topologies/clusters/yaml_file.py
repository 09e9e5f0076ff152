"""Clusters from YAML files of users; ``docs/background/cluster-file.md`` shows all their keys.

What an ASTRA-sim network means is its backend's source (astra-network-analytical, commit 599a047:
``Ring.cpp``, ``FullyConnected.cpp``, ``Switch.cpp``, ``NetworkFunction.cpp``,
``MultiDimTopology.cpp``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.catalogue.reader import NAME, Entry, check_peaks, check_row
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import fabric_from
from topologies.shapes.basic import (
    MAX_CHIPS,
    Axis,
    Clos,
    FullMesh,
    Shape,
    Switch,
    Tier,
    Tiered,
    Torus,
)
from topologies.shapes.scale_out import ScaleOut
from topologies.support.errors import InputError, shown, suggestion
from topologies.support.files.yaml_documents import read_yaml, rule
from topologies.support.units import PS_PER_NS, parse_ps, parse_rate, si

RING, MESH, SWITCH = "Ring", "FullyConnected", "Switch"
BYTES_PER_GB = 2**30
MOST_DIMENSIONS = 8
LARGEST_RADIX = 2**16
"""Radix of the scale-out switch, which ASTRA-sim does not limit: enough for a single layer."""


class Dimension(NamedTuple):
    """A dimension: its building block, chips, rate of a link [B/s] and latency of a hop [ps]."""

    block: str
    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int


def cluster_from_astra(document: Mapping[str, Any], path: Path, catalogue: Catalogue) -> Cluster:
    """Make the plain cluster that an ASTRA-sim network describes."""
    # Rings before a last ``Switch`` are domains on a non-blocking fabric. Any other network is one
    # domain: a torus, a full mesh, a switch, or for other combinations a tiered shape.
    dimensions = _validated(AstraKeys, document, path).dimensions()
    *inner, outer = dimensions
    if not inner or outer.block != SWITCH or any(below.block != RING for below in inner):
        return Cluster(path.stem, _astra_shape(dimensions), plain=True, catalogue=catalogue)
    below = _astra_shape(inner)
    fabric = ScaleOut(
        name="scale-out",
        bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s,
        latency_ps=2 * outer.latency_ps,  # to the switch and from it
        radix=LARGEST_RADIX,
        port_bytes_per_s=outer.bandwidth_bytes_per_s,
        adapters_per_server=below.chips,
    )
    return Cluster(
        path.stem,
        below,
        domains=outer.size,
        scale_out=fabric,
        chips_per_server=below.chips,
        plain=True,
        catalogue=catalogue,
    )


def _astra_shape(dimensions: list[Dimension]) -> Shape:
    if all(dimension.block == RING for dimension in dimensions):
        names = "XYZWVUTS"[: len(dimensions)]
        axes = [
            Axis(name, ring.size, ring.bandwidth_bytes_per_s, ring.latency_ps)
            for name, ring in zip(names, dimensions, strict=True)
        ]
        return Torus(tuple(reversed(axes)))
    (first, *others) = dimensions
    if not others:
        kind = FullMesh if first.block == MESH else Switch
        return kind(first.size, first.bandwidth_bytes_per_s, first.latency_ps)
    tiers = [_tier(number, dimension) for number, dimension in enumerate(dimensions)]
    return Tiered(tuple(reversed(tiers)))


def _tier(number: int, dimension: Dimension) -> Tier:
    """Return a tier of direct links or of a switch; a ring of two chips is a pair."""
    size, rate = dimension.size, dimension.bandwidth_bytes_per_s
    if dimension.block == SWITCH:
        return Tier(f"dim{number}", size, rate, dimension.latency_ps, switches=1)
    ring = dimension.block == RING and size > 2
    links = 2 if ring else max(1, size - 1)
    return Tier(f"dim{number}", size, rate * links, dimension.latency_ps, ring=ring)


def _rate(value: Any) -> int:
    return parse_rate(str(value)[:80])


Rate = Annotated[int, BeforeValidator(_rate)]
Latency = Annotated[int, BeforeValidator(lambda value: parse_ps(str(value)[:80]))]
Count = Annotated[int, Field(ge=1, le=MAX_CHIPS, strict=True)]
Ratio = Annotated[
    float,
    Field(ge=1, le=1000, allow_inf_nan=False),
    AfterValidator(lambda value: Fraction(value).limit_denominator(1000)),
]
Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w .+-]+$")]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Each = Field(min_length=1, max_length=MOST_DIMENSIONS)
Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)]


class AstraKeys(_Keys):
    """A network of ASTRA-sim, with one value a dimension under each key."""

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], Each]
    npus_count: Annotated[list[Count], Each]
    bandwidth: Annotated[list[Annotated[Amount, Field(gt=0)]], Each]
    latency: Annotated[list[Amount], Each]

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        lengths = {name: len(values) for name, values in self}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"{each} values; each has one a dimension")
        return self

    def dimensions(self) -> list[Dimension]:
        """Return the dimensions in units of SI and ps, the fastest first."""
        rates = [round(gb_per_s * BYTES_PER_GB) for gb_per_s in self.bandwidth]
        latencies = [round(ns * PS_PER_NS) for ns in self.latency]
        columns = self.topology, self.npus_count, rates, latencies
        return [Dimension(*row) for row in zip(*columns, strict=True)]


class AxisKeys(_Keys):
    """One axis of a torus or grid."""

    name: Name
    size: Count
    bandwidth: Rate
    latency: Latency
    wrap: bool = True


class TorusKeys(_Keys):
    """A torus, grid or ring."""

    shape: Literal["torus"]
    axes: Annotated[list[AxisKeys], Field(min_length=1, max_length=8)]


class MeshKeys(_Keys):
    """A full mesh."""

    shape: Literal["mesh"]
    size: Count
    bandwidth: Rate
    latency: Latency


class SwitchKeys(_Keys):
    """One switch."""

    shape: Literal["switch"]
    size: Count
    bandwidth: Rate
    latency: Latency
    links: Count = 1


class ClosKeys(_Keys):
    """A Clos of leaf, spine and core switches."""

    shape: Literal["clos"]
    size: Count
    radix: Count
    bandwidth: Rate
    latency: Latency
    oversubscription: Ratio = Field(1.0, validate_default=True)


class TierKeys(_Keys):
    """One tier of a tiered shape."""

    name: Name
    size: Count
    bandwidth: Rate
    latency: Latency
    switches: Annotated[int, Field(ge=0, le=4096, strict=True)] = 0
    ring: bool = False


class TieredKeys(_Keys):
    """Boards, racks and racks of racks."""

    shape: Literal["tiered"]
    tiers: Annotated[list[TierKeys], Field(min_length=1, max_length=8)]


ScaleUpKeys = TorusKeys | MeshKeys | SwitchKeys | ClosKeys | TieredKeys


class ScaleOutKeys(_Keys):
    """The fabric between servers."""

    name: Name | None = None
    like: Name | None = None
    bandwidth_per_chip: Rate | None = None
    latency: Latency | None = None
    radix: Count | None = None
    oversubscription: Ratio | None = None
    port_bandwidth: Rate | None = None
    rails: Count | None = None
    adapters_per_server: Count | None = None


class ChipKeys(BaseModel):
    """A chip: a catalogue's name, or that of one it is like, and quantities of the catalogue."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Name | None = None
    like: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"like": value} if isinstance(value, str) else value


class ClusterKeys(_Keys):
    """The keys of the whole file."""

    name: Name | None = None
    chip: ChipKeys | None = None
    scale_up: Annotated[ScaleUpKeys, Field(discriminator="shape")]
    domains: Count = 1
    chips_per_server: Count | None = None
    scale_out: ScaleOutKeys | None = None


SHAPES: dict[str, type[_Keys]] = {
    get_args(each.model_fields["shape"].annotation)[0]: each for each in get_args(ScaleUpKeys)
}
"""Keys of each shape by its name."""
Keys = TypeVar("Keys", bound=_Keys)
Line = TypeVar("Line")


def keys_at(place: Sequence[str | int], whole: type[BaseModel]) -> list[str]:
    """Return the keys that a mapping at this place of the file may have; ``whole`` has its own.

    >>> keys_at(["scale_up", "torus", "axes", 1], ClusterKeys)
    ['name', 'size', 'bandwidth', 'latency', 'wrap']
    """
    models: dict[str, type[BaseModel]] = {
        **{"axes": AxisKeys, "tiers": TierKeys, "chip": ChipKeys, "scale_out": ScaleOutKeys},
        **SHAPES,
    }
    words = [word for word in place if isinstance(word, str)]
    for word in reversed(words):
        if word in models:
            return list(models[word].model_fields)
    return ["shape"] if words else list(whole.model_fields)


LARGEST_FILE_BYTES = 1_000_000


def cluster_from_file(path: Path | str, catalogue: Catalogue) -> Cluster:
    """Read a cluster from a YAML file."""
    content = "keys; it needs at least scale_up"
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content=content)
    if "topology" in document and "npus_count" in document:
        return cluster_from_astra(document, Path(path), catalogue)
    keys = _validated(ClusterKeys, document, path)
    try:
        return _cluster(keys, Path(path), catalogue)
    except InputError as mistake:
        raise InputError(f"{shown(str(path))}: {mistake}") from None


def _validated(model: type[Keys], document: Mapping[str, Any], path: Path | str) -> Keys:
    try:
        return model.model_validate(document)
    except ValidationError as mistake:
        raise InputError(f"{shown(str(path))}: {_explained(mistake, model)}") from None


def _explained(mistake: ValidationError, model: type[BaseModel]) -> str:
    """Describe the first mistake, by the path to its key; misspelt keys before missing ones."""
    every = mistake.errors(include_url=False)
    first = next((each for each in every if each["type"] == "extra_forbidden"), every[0])
    kind, entry = first["type"], first["input"]
    where = ".".join(shown(str(part), 60) for part in first["loc"] if part not in SHAPES)
    if kind == "union_tag_not_found" and isinstance(entry, dict):
        near = next((str(key) for key in entry if suggestion(str(key), ["shape"])), "")
        if near:
            return f"unknown key {where}.{shown(near, 60)}. Did you mean shape?"
        return f"{where}.shape is missing; give one of {', '.join(SHAPES)}."
    if kind.startswith("union_tag"):
        tag = str(entry.get("shape", "")) if isinstance(entry, dict) else ""
        near = suggestion(tag, SHAPES)
        return f"{where}.shape {shown(tag, 60)!r} is none of {', '.join(SHAPES)}.{near}"
    if kind == "extra_forbidden":
        keys = keys_at(first["loc"][:-1], model)
        near = suggestion(str(first["loc"][-1]), keys)
        if not near:
            near = f" There are {', '.join(keys)}."
            if len(first["loc"]) == 1:
                near += " Numbers of a chip of your own are rows of a CSV file for --catalogue."
        return f"unknown key {where}.{near}"
    if kind == "missing":
        return f"{where} is missing; give it a value"
    value = f" {shown(str(entry), 60)!r}" if isinstance(entry, str | int | float) else ""
    message = rule(first)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = f"it must be a mapping with {', '.join(keys_at(first['loc'], model))}"
    return f"{where}{value}: {message}."


def _cluster(keys: ClusterKeys, path: Path, catalogue: Catalogue) -> Cluster:
    chip, numbers = chip_part(keys.chip, path, catalogue)
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
        return Torus(_lines("axes", Axis, keys.axes))
    if isinstance(keys, TieredKeys):
        return Tiered(_lines("tiers", Tier, keys.tiers))
    make: Callable[..., Shape] = {"mesh": FullMesh, "switch": Switch, "clos": Clos}[keys.shape]
    return make(*[value for key, value in keys if key != "shape"])


def _lines(
    what: str, make: Callable[..., Line], lines: Sequence[AxisKeys | TierKeys]
) -> tuple[Line, ...]:
    """Return axes or tiers, whose keys are in the order of their fields, each of its own name."""
    names = [line.name for line in lines]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"scale_up.{what}: two are called {name}; give each its own name")
    return tuple(make(*dict(line).values()) for line in lines)


def _fabric(keys: ScaleOutKeys, chips_per_server: int, catalogue: Catalogue) -> ScaleOut:
    """Build the fabric of the file; keys that it leaves out come from the part that it is like."""
    adapters = keys.adapters_per_server or chips_per_server
    entries: dict[str, Any] = {
        "name": keys.name or keys.like or "scale-out",
        "latency_ps": keys.latency,
        "radix": keys.radix,
        "port_bytes_per_s": keys.port_bandwidth,
        "oversubscription": keys.oversubscription,
        "rails": keys.rails,
    }
    stated = {name: value for name, value in entries.items() if value is not None}
    rate = keys.bandwidth_per_chip
    if keys.like is not None:
        bandwidth = rate or catalogue.integer(keys.like, "nic_bandwidth")
        return replace(fabric_from(catalogue, keys.like, bandwidth, adapters), **stated)
    for key in ("bandwidth_per_chip", "latency", "radix"):
        if getattr(keys, key) is None:
            raise InputError(f"scale_out.{key} is missing, and there is no like: to take it from")
    values = {"bandwidth_bytes_per_s": rate, "port_bytes_per_s": rate, **stated}
    return ScaleOut(**values, adapters_per_server=adapters)


def _renamed(keys: ScaleOutKeys | None, catalogue: Catalogue) -> Catalogue:
    """Return a catalogue in which a fabric's new name has also rows that a file cannot state."""
    if keys is None or keys.like is None or keys.name in (None, keys.like):
        return catalogue
    like_parts = re.compile(rf"(.*\.)?{re.escape(keys.like)}")
    return catalogue.with_rows(
        row._replace(part=row.part.removesuffix(keys.like) + keys.name)
        for row in catalogue.rows
        if like_parts.fullmatch(row.part)
    )


_NEEDED = ("bf16_peak", "hbm_bytes", "hbm_bandwidth")
_NUMBER = re.compile(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_USABLE = ("hbm_bytes", "hbm_usable_bytes")
_SHOWN = 60


def chip_part(keys: ChipKeys | None, path: Path, catalogue: Catalogue) -> tuple[str, Catalogue]:
    """Return the catalogue part of the chip, and the catalogue with the values of the file."""
    if keys is None:
        return "", catalogue
    if keys.like is not None:
        catalogue.entry(keys.like, "hbm_bytes")
    # Kernels and intervals are looked up by the part, so a name beside like only labels the file.
    part = keys.like or keys.name or f"{path.stem} chip"
    values = {name: str(value) for name, value in (keys.model_extra or {}).items()}
    rows = [_entry(part, name, text, path, catalogue) for name, text in values.items()]
    changed = catalogue.with_rows(rows + _usable(part, values, rows, catalogue))
    for quantity in _NEEDED:
        if not changed.has(part, quantity):
            raise InputError(f"chip.{quantity} is missing, and there is no like: to take it from")
    check_peaks(changed.entries(part), "chip.")
    chip_family(part, changed)
    return part, changed


def _usable(
    part: str, values: dict[str, str], rows: list[Entry], catalogue: Catalogue
) -> list[Entry]:
    """Return a row for the usable memory, if the file states the capacity alone."""
    # Otherwise the usable memory of the part would hide the capacity of the file.
    printed, usable = _USABLE
    if printed not in values or usable in values or not catalogue.has(part, usable):
        return []
    stated = next(row for row in rows if row.quantity == printed)
    return [stated._replace(quantity=usable, variant=catalogue.entry(part, usable).variant)]


def _entry(part: str, quantity: str, text: str, path: Path, catalogue: Catalogue) -> Entry:
    units = _units(catalogue)
    if quantity not in units:
        name = shown(quantity, _SHOWN)
        elsewhere = [row.part for row in catalogue.rows if row.quantity == quantity]
        if elsewhere:
            raise InputError(
                f"chip.{name} is no quantity of a chip, but of {elsewhere[0]}; a chip's would be "
                "read by nothing. Leave it out, or state it for its part with --catalogue FILE.csv."
            )
        raise InputError(
            f"unknown chip.{name}.{suggestion(quantity, ['name', 'like', *units])} Name a quantity "
            "of the catalogue, such as bf16_matmul or hbm_bandwidth."
        )
    unit = units[quantity]
    exact = Fraction(0) if unit == NAME else _exact(quantity, text, unit)
    row = Entry(
        part=part,
        quantity=quantity,
        variant="",
        unit=unit,
        grade="stated",
        source=f"file {path.name}",
        note="",
        low=None,
        high=None,
        written=text,
        exact=exact,
    )
    check_row(row, f"chip.{quantity}")
    replaces = catalogue.has(part, quantity)
    return row._replace(variant=catalogue.entry(part, quantity).variant) if replaces else row


def _units(catalogue: Catalogue) -> dict[str, str]:
    """Return the units of the quantities that chips have, by their names."""
    machines = {row.part for row in catalogue.rows if row.quantity == "chip"}
    chips = {row.part for row in catalogue.rows if row.quantity == _NEEDED[0]} - machines
    return {row.quantity: row.unit for row in catalogue.rows if row.part in chips and row.unit}


def _exact(quantity: str, text: str, unit: str) -> Fraction:
    """Return the exact value of a number with its unit, in SI."""
    entry = f"chip.{quantity} {shown(text, _SHOWN)!r}"
    matched = _NUMBER.fullmatch(text) if len(text) <= _SHOWN else None
    if matched is None:
        raise InputError(f"{entry} is not a number with a unit. Write it in {unit}.")
    number, spelled = matched.groups()
    try:
        exact, base = si(number, spelled or "count")
    except InputError as mistake:
        raise InputError(f"{entry}: {mistake}") from None
    if base != unit and (spelled or unit not in ("count", "ratio")):
        has = f"is in {base}" if spelled else "has no unit"
        raise InputError(f"{entry} {has}; this quantity is in {unit}. Write the number with it.")
    return exact
