"""Families of chips that run the same kernels under the same collective runtime."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.errors import InputError, suggestion

NEURON, NCCL = "neuron", "nccl"
"""Collective runtimes whose choices of algorithms are modelled."""
UNKNOWN = "gpu"
"""Family of a chip whose rows name none: a GPU without measurements."""
PREFIX = "family."
"""Beginning of the names of the catalogue's parts that describe families."""


@dataclass(frozen=True)
class ChipFamily:
    """Properties that a chip shares with others of its family.

    ``name``: name of the family, such as ``trainium`` or ``h100``, which the rows of the part
        ``family.<name>`` describe.
    ``runtime``: collective runtime: ``neuron``, ``nccl`` or another word.
    ``ranks_per_chip``: logical cores that a chip presents to programs; 1 for a GPU.
    ``kernels``: part with the constants of kernels, such as ``kernels.h100``.
    ``serving``: part with the overheads of the serving engine, such as ``serving.gpu``.
    ``measured_on``: chip on which the kernels were measured; empty if they were not.
    ``provenance``: best provenance of a kernel time on this chip: ``measured``, ``interpolated``
        from another chip of the family, or ``assumed``.
    """

    name: str
    runtime: str
    ranks_per_chip: int
    kernels: str
    serving: str
    measured_on: str
    provenance: str

    @property
    def is_neuron(self) -> bool:
        """Return whether programs run under the Neuron compiler and runtime."""
        return self.runtime == NEURON


@functools.lru_cache(maxsize=256)
def chip_family(chip: str, catalogue: Catalogue | None = None) -> ChipFamily:
    """Return the family of a chip, by default according to the shipped catalogue."""
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    name = catalogue.name(chip, "family", UNKNOWN)
    part = PREFIX + name
    if part not in catalogue.parts():
        names = families(catalogue)
        raise InputError(
            f"the family {name[:80]!r} of {chip[:80]} is not in the catalogue."
            f"{suggestion(name, names)} There are {', '.join(names)}."
        )
    return ChipFamily(
        name=name,
        runtime=catalogue.name(part, "runtime"),
        ranks_per_chip=catalogue.integer(chip, "ranks_per_chip", 1),
        kernels=catalogue.name(part, "kernels"),
        serving=catalogue.name(part, "serving"),
        measured_on=catalogue.name(catalogue.name(part, "kernels"), "measured_on", ""),
        provenance=catalogue.name(chip, "kernel_times", "assumed"),
    )


def families(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(part.removeprefix(PREFIX) for part in catalogue.parts() if part.startswith(PREFIX))
