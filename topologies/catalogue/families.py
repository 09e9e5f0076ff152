"""Chip families: which chips run the same kernels under the same collective runtime."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.errors import InputError, suggestion

NEURON, NCCL = "neuron", "nccl"
"""Runtimes whose own choices of algorithms are known."""
UNKNOWN = "gpu"
"""Family of a chip whose rows name none: a GPU of nobody's measurements."""
PREFIX = "family."


@dataclass(frozen=True)
class ChipFamily:
    """Properties that a chip shares with others of its kind.

    Attributes
    ----------
    name : str
        ``trainium``, ``h100``, …; rows of the part ``family.<name>`` describe it.
    runtime : str
        Collective runtime: ``neuron``, ``nccl`` or another word.
    ranks_per_chip : int
        Logical cores that a chip shows to its programs; 1 for a GPU.
    kernels : str
        Part with the constants of its kernels, such as ``kernels.h100``.
    serving : str
        Part with the overheads of its serving engine, such as ``serving.gpu``.
    measured_on : str
        Chip on which the kernels were measured; empty where none was.
    provenance : str
        Best that can be said of a kernel time of this chip: ``measured``, ``interpolated`` from
        another chip of its family, or ``assumed``.
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
        """Return whether the Neuron compiler and runtime run its programs."""
        return self.runtime == NEURON


@functools.lru_cache(maxsize=256)
def chip_family(chip: str, catalogue: Catalogue | None = None) -> ChipFamily:
    """Return the family of a chip, by the shipped catalogue unless another is given.

    Raises
    ------
    InputError
        For an unknown chip, and a family that the catalogue does not describe.

    Examples
    --------
    >>> trn2 = chip_family("trn2")
    >>> trn2.name, trn2.runtime, trn2.ranks_per_chip
    ('trainium', 'neuron', 4)
    """
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    named = catalogue.has(chip, "family")
    name = catalogue.name(chip, "family") if named else UNKNOWN
    part = PREFIX + name
    if part not in catalogue.parts():
        names = families(catalogue)
        raise InputError(
            f"the family {name[:80]!r} of {chip[:80]} is not in the catalogue."
            f"{suggestion(name, names)} There are {', '.join(names)}."
        )
    timed = catalogue.has(chip, "kernel_times")
    several = catalogue.has(chip, "ranks_per_chip")
    return ChipFamily(
        name=name,
        runtime=catalogue.name(part, "runtime"),
        ranks_per_chip=catalogue.integer(chip, "ranks_per_chip") if several else 1,
        kernels=catalogue.name(part, "kernels"),
        serving=catalogue.name(part, "serving"),
        measured_on=_measured_on(part, catalogue),
        provenance=catalogue.name(chip, "kernel_times") if timed else "assumed",
    )


def _measured_on(part: str, catalogue: Catalogue) -> str:
    kernels = catalogue.name(part, "kernels")
    stated = catalogue.has(kernels, "measured_on")
    return catalogue.name(kernels, "measured_on") if stated else ""


def families(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(part.removeprefix(PREFIX) for part in catalogue.parts() if part.startswith(PREFIX))
