"""Inputs and result of a kernel's time: a rank's share of its chip, constants, and ``Timing``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from topologies.catalogue.catalogue import (
    Catalogue,
    ChipFamily,
    Entry,
    chip_family,
    shipped_catalogue,
)
from topologies.support.errors import InputError
from workloads.kernels.precision import ELEMENT_BYTES, element_width

RANKING = ("measured", "interpolated", "extrapolated", "assumed")
"""Values of ``Timing.provenance`` from best to worst."""

KERNELS = "kernels."  # prefix of the catalogue parts with the constants of kernels


class Timing(NamedTuple):
    """Time of a kernel, or of an array of kernels."""

    seconds: Any  # time of one call of the kernel [s]
    # Worst grade among its inputs: ``measured``, ``interpolated``, ``extrapolated`` or ``assumed``
    provenance: str
    # Smallest number of bytes that one call reads and writes in memory [B]; 0 if not counted
    size_bytes: int = 0


@dataclass(frozen=True)
class Rank:
    """Share of a chip that one rank has."""

    chip: str  # part of the catalogue
    family: ChipFamily  # family whose kernels it runs
    peak_flops_per_s: float  # share of the matrix peak in the stated precision [FLOP/s]
    hbm_bytes_per_s: float  # share of the memory bandwidth [B/s]
    element_bytes: float  # bytes of an element of a GEMM's inputs
    ranks_per_chip: int  # ranks that share the chip
    catalogue: Catalogue  # catalogue with the constants

    @property
    def bf16_flops_per_s(self) -> float:
        """The rank's share of the matrix peak in bf16 [FLOP/s]."""
        return _peak(self.catalogue, self.chip, "bf16") / self.ranks_per_chip

    @property
    def engine_bytes_per_s(self) -> float:
        """The rank's share of the rate of the chip's DMA engines [B/s]; infinite if not stated."""
        # All transfers from HBM into SBUF go through these engines. On Trn1 and Inferentia2 they
        # sustain two thirds of the rate of HBM.
        if not self.has_own("dma_bandwidth"):
            return math.inf
        return self.own("dma_bandwidth") / self.ranks_per_chip

    @property
    def sbuf_bytes(self) -> float:
        """The rank's share of the scratchpads [B]."""
        return self.own("sbuf_bytes") / self.ranks_per_chip

    def own(self, quantity: str) -> float:
        """Return the value of a quantity of the chip itself, in SI units."""
        return self.catalogue.value(self.chip, quantity)

    def has_own(self, quantity: str) -> bool:
        """Return whether the chip itself has a quantity."""
        return self.catalogue.has(self.chip, quantity)

    def constant(self, quantity: str, usual: float | None = None) -> float:
        """Return a constant of the family's kernels, or the chip's own one, in SI units."""
        # ``usual``: value where the family has none, which is an error without it.
        if usual is not None and not self.knows(quantity):
            return usual
        return self._entry(quantity).value

    def knows(self, quantity: str) -> bool:
        """Return whether the family has a constant."""
        return self.catalogue.has(self.family.kernels, quantity)

    def grade(self, quantity: str) -> str:
        """Return the grade of a constant."""
        return self._entry(quantity).grade

    def _entry(self, quantity: str) -> Entry:
        part, chip_quantity = self.family.kernels, f"{quantity}_{self.chip}"
        has_own = self.catalogue.has(part, chip_quantity)
        return self.catalogue.entry(part, chip_quantity if has_own else quantity)


class Part(TypedDict, total=False):
    """Arguments of kernel times that say which part of a chip, with which numbers, runs it."""

    ranks_per_chip: int  # ranks that divide the chip; 1 by default
    catalogue: Catalogue | None  # the shipped one by default


@cache
def rank_of(
    chip: str, precision: str = "bf16", ranks_per_chip: int = 1, catalogue: Catalogue | None = None
) -> Rank:
    """Return the share of a chip that each of its ranks has."""
    if ranks_per_chip < 1:
        raise InputError(f"ranks per chip is {ranks_per_chip}; give at least 1.")
    catalogue = shipped_catalogue() if catalogue is None else catalogue
    return Rank(
        chip=chip,
        family=chip_family(chip, catalogue),
        peak_flops_per_s=_peak(catalogue, chip, precision) / ranks_per_chip,
        hbm_bytes_per_s=catalogue.value(chip, "hbm_bandwidth") / ranks_per_chip,
        element_bytes=ELEMENT_BYTES.get(precision, 2.0),
        ranks_per_chip=ranks_per_chip,
        catalogue=catalogue,
    )


def _peak(catalogue: Catalogue, chip: str, precision: str) -> float:
    """Matrix peak of a chip [FLOP/s]: that of its tensor engine if stated, else the headline."""
    if not catalogue.has(chip, f"{precision}_peak"):
        precision = element_width(precision)
    matmul = f"{precision}_matmul"
    return catalogue.value(chip, matmul if catalogue.has(chip, matmul) else f"{precision}_peak")


def worst(*provenances: str) -> str:
    """Return the worst of some provenances."""
    return max(provenances, key=RANKING.index)


def plain(seconds: npt.ArrayLike) -> Any:
    """Return times as a float for a single shape, and as an array for several."""
    array = np.asarray(seconds)
    return float(array) if array.ndim == 0 else array
