"""Fit of the constants of collectives to measured collectives of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.calibration.overlay.constants import Constant, fit_constants
from experiments.calibration.overlay.group import NONE, Group
from experiments.calibration.overlay.measurements import Measurements
from experiments.validation.predictions.collectives import time_s
from experiments.validation.reading.machines import machines_for
from experiments.validation.reading.nccl_tests import Measured
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.errors import InputError


@dataclass(frozen=True)
class Series:
    """Measured times of one collective at several sizes, on one machine."""

    collective: str
    ranks: int
    chips: int
    measured: Measured


def fit_collectives(
    measured: Measurements, catalogue: Catalogue, machine: str | None, chips: int | None
) -> Group:
    """Fit the constants of a machine's collectives to measured series."""
    name = machine or (measured.manifest.cluster if measured.manifest else None)
    if name is None:
        raise InputError("collectives do not name their machine. Add --cluster.")
    per_chip = measured.manifest.ranks_per_chip if measured.manifest else 1
    series = [
        _series(file, collective, per_chip, chips) for file, collective in measured.collectives
    ]
    seconds = np.concatenate([part.measured.time_s for part in series])
    fit = fit_constants(
        lambda varied: _collective_times(series, name, varied),
        seconds,
        collective_constants(series, name, catalogue),
        catalogue,
        note=f"fitted to {len(seconds)} collectives on {name}",
    )
    return Group("collectives", fit, NONE, NONE)


def _series(file: str, measured: Measured, per_chip: int, chips: int | None) -> Series:
    if measured.collective is None:
        raise InputError(f"{file} does not name the operation. Add --collective to a single file.")
    if measured.ranks is None:
        raise InputError(f"{file} does not tell the number of ranks. Add --ranks to a single file.")
    if measured.ranks < 2:
        raise InputError(
            f"{file}: {int(measured.ranks)} rank; a collective has at least 2. Correct nworkers."
        )
    used = chips or max(1, measured.ranks // per_chip)
    return Series(measured.collective, measured.ranks, used, measured)


def _collective_times(series: Sequence[Series], machine: str, catalogue: Catalogue) -> FloatArray:
    times = []
    for part in series:
        whole = machines_for(machine, part.chips, catalogue)
        sizes = part.measured.size_bytes.tolist()
        times += [
            time_s(part.collective, whole, part.chips, part.ranks, int(size)) for size in sizes
        ]
    return np.array(times)


def collective_constants(
    series: Sequence[Series], machine: str, catalogue: Catalogue
) -> list[Constant]:
    """Constants of the collectives of a machine, the most important first."""
    most_chips = max(part.chips for part in series)
    whole = machines_for(machine, most_chips, catalogue)
    chip, fabric = whole.chip, whole.scale_out.name if whole.scale_out else ""
    inside = [
        (chip, f"copy_{part.collective.replace('-', '_')}_{part.ranks}")
        for part in series
        if part.chips == 1
    ]
    names = [
        *dict.fromkeys(inside),
        *((chip, "chip_collective_launch"), (chip, "collective_copy")),
        *((chip, "collective_efficiency"), (chip, "collective_step")),
        *((f"nccl.{chip}", name) for name in ("launch", "efficiency", "exchange_efficiency")),
        *((f"nccl.{chip}", name) for name in ("ll128_efficiency", "simple_step", "copy_rate")),
        *((f"nccl.{chip}", name) for name in ("in_switch_efficiency", "in_switch_latency")),
        *((fabric, "efficiency"), (fabric, "step_latency")),
        *((f"nccl.{fabric}", "efficiency"), (f"nccl.{fabric}", "step")),
    ]
    return [
        Constant(part, quantity, 1.0 if "efficiency" in quantity else np.inf)
        for part, quantity in names
        if catalogue.has(part, quantity)
    ]
