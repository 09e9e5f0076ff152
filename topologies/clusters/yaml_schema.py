"""Keys of a cluster file, which pydantic checks; quantities are parsed with their units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from topologies.shapes.limits import MAX_CHIPS
from topologies.units import parse_ps, parse_rate


def _rate(value: Any) -> int:
    return parse_rate(str(value)[:80])


def _latency_ps(value: Any) -> int:
    return parse_ps(str(value)[:80])


Rate = Annotated[int, BeforeValidator(_rate)]
Latency = Annotated[int, BeforeValidator(_latency_ps)]
Count = Annotated[int, Field(ge=1, le=MAX_CHIPS, strict=True)]
Ratio = Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w .+-]+$")]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    oversubscription: Ratio = 1.0


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
    """A chip: a name from the catalogue, or values, perhaps with those of another chip.

    All keys but these two are quantities of the catalogue.
    """

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


SHAPES = ("torus", "mesh", "switch", "clos", "tiered")


def keys_at(place: Sequence[str | int]) -> list[str]:
    """Return the keys that a mapping at this place of the file may have.

    >>> keys_at(["scale_up", "torus", "axes", 1])
    ['name', 'size', 'bandwidth', 'latency', 'wrap']
    """
    models: dict[str, type[BaseModel]] = {
        "axes": AxisKeys,
        "tiers": TierKeys,
        "chip": ChipKeys,
        "scale_out": ScaleOutKeys,
        "torus": TorusKeys,
        "mesh": MeshKeys,
        "switch": SwitchKeys,
        "clos": ClosKeys,
        "tiered": TieredKeys,
    }
    words = [word for word in place if isinstance(word, str)]
    for word in reversed(words):
        if word in models:
            return list(models[word].model_fields)
    return ["shape"] if words else list(ClusterKeys.model_fields)
