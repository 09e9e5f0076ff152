"""Fit of two constants of a fabric to measured times of one collective, as a catalogue overlay.

Small messages determine the time of a step, large ones the share of the link rate that is reached.
The fit minimises the differences of the logarithms of simulated and measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from experiments.calibration.overlay.constants import Constant, ConstantsFit, fit_constants
from experiments.validation.predictions.collectives import time_s
from experiments.validation.reading.machines import machines_for
from experiments.validation.reading.nccl_tests import Measured
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError

Name = tuple[str, str]
"""Part and quantity of a row of the catalogue."""

LARGEST_EFFICIENCY = 1.0
NCCL_RATES = ("efficiency", "in_switch_efficiency", "exchange_efficiency")
STEP = 0.02
"""Relative change of a constant from which its effect is measured."""


def fit(
    measured: Measured,
    machine: str,
    catalogue: Catalogue,
    *,
    collective: str | None = None,
    ranks: int | None = None,
    chips: int | None = None,
) -> ConstantsFit:
    """Fit the step time and the efficiency of a fabric."""
    operation, count = _operation_and_ranks(measured, collective, ranks)
    simulated = _Simulated(machine, chips or count, operation, count, catalogue)
    sizes = measured.size_bytes
    chosen = constants_of(
        machines_for(machine, simulated.chips, catalogue),
        lambda changed: simulated.times_s(changed, sizes.max(keepdims=True)),
    )
    return fit_constants(
        lambda changed: simulated.with_catalogue(changed).times_s({}, sizes),
        measured.time_s,
        [Constant(*name, LARGEST_EFFICIENCY if _is_share(name) else np.inf) for name in chosen],
        catalogue,
        note=f"fitted on {machine}",
    )


def _is_share(name: Name) -> bool:
    return "efficiency" in name[1]


@dataclass(frozen=True, eq=False)
class _Simulated:
    """A collective that is simulated with varying constants of its machine."""

    machine: str
    chips: int
    operation: str
    ranks: int
    catalogue: Catalogue

    def with_catalogue(self, catalogue: Catalogue) -> _Simulated:
        """Return the same collective on a machine with other constants."""
        return replace(self, catalogue=catalogue)

    def times_s(self, changed: Mapping[Name, float], size_bytes: FloatArray) -> FloatArray:
        """Times of buffers of these sizes with some constants replaced [s]; (sizes,)."""
        rows = [
            self.catalogue.entry(*name)._replace(value=value, exact=Fraction(value))
            for name, value in changed.items()
        ]
        cluster = machines_for(self.machine, self.chips, self.catalogue.with_rows(rows))
        sizes = size_bytes.tolist()
        return np.array(
            [time_s(self.operation, cluster, self.chips, self.ranks, int(size)) for size in sizes]
        )


def _operation_and_ranks(
    measured: Measured, collective: str | None, ranks: int | None
) -> tuple[str, int]:
    """Operation and number of ranks, from the user or from the measurements."""
    operation, count = collective or measured.collective, ranks or measured.ranks
    if operation is None:
        raise InputError("the text does not name the operation. Add --collective all-reduce.")
    if count is None:
        raise InputError("the text does not tell the number of ranks. Add --ranks N.")
    if len(np.unique(measured.size_bytes)) < 2:
        raise InputError("one size cannot tell latency from bandwidth. Measure at least two.")
    return operation, count


def constants_of(
    machine: Cluster, largest: Callable[[Mapping[Name, float]], FloatArray]
) -> list[Name]:
    """Return the constants to fit: a latency, and the rate that limits large buffers.

    ``largest``: returns the time of the largest buffer [s]; the rate on which it depends most is
    fitted.
    """
    catalogue, chip, fabric = machine.catalogue, machine.chip, machine.scale_out
    if catalogue is None:
        raise InputError(f"{machine.name} has no constants of collectives to calibrate.")
    outside = fabric.name if machine.domains > 1 and fabric is not None else ""
    if f"nccl.{chip}" in catalogue.parts():
        start = (f"nccl.{outside}", "step") if outside else (f"nccl.{chip}", "launch")
        rates = [(f"nccl.{chip}", name) for name in NCCL_RATES]
        rates += [(f"nccl.{outside}", "efficiency")]
    else:
        start = (outside, "step_latency") if outside else (chip, "collective_step")
        rates = [(chip, "collective_efficiency"), (outside, "efficiency")]
    rates = [(part, name) for part, name in rates if catalogue.has(part, name)]
    if not catalogue.has(*start) or not rates:
        raise InputError(f"{machine.name} has no constants of collectives to calibrate.")
    felt = [largest({name: (1 - STEP) * catalogue.value(*name)})[0] for name in rates]
    return [start, rates[int(np.argmax(felt))]]
