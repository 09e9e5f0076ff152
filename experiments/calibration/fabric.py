"""Fit one's own measurements of a collective: two constants of the fabric, as a catalogue overlay.

Small messages show the time of a step, large ones the share of the link rate that is reached; the
fit finds the pair with which the simulated times come nearest to the measured ones, in logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from experiments.calibration.constants import Constant, ConstantsFit, fit_constants
from experiments.validation.collectives import time_s
from experiments.validation.machines import machines_for
from experiments.validation.nccl_tests import Measured
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError

Name = tuple[str, str]
"""Part and quantity."""

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
    """Fit the step time and the efficiency of a fabric.

    Parameters
    ----------
    measured : Measured
    machine : str
        A named machine without count.
    catalogue : Catalogue
        Catalogue whose constants are the start.
    collective, ranks, chips : optional
        Where the text does not say; chips as many as ranks by default.

    Raises
    ------
    InputError
        When the operation or the ranks are not known, and for fewer than two sizes.
    """
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
    """A collective on a machine whose constants change.

    Attributes
    ----------
    machine : str
    chips : int
    operation : str
    ranks : int
    catalogue : Catalogue
        Constants that are not changed.
    """

    machine: str
    chips: int
    operation: str
    ranks: int
    catalogue: Catalogue

    def with_catalogue(self, catalogue: Catalogue) -> _Simulated:
        """Return the same collective on a machine with other constants."""
        return replace(self, catalogue=catalogue)

    def times_s(self, changed: Mapping[Name, float], size_bytes: FloatArray) -> FloatArray:
        """Times of these buffers with some constants replaced [s]."""
        rows = [
            replace(self.catalogue.entry(*name), value=value, exact=Fraction(value))
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
    """Operation and ranks, from the text or from the user."""
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
    """Part and quantity of the start and of the rate that a cluster's times rest on.

    Parameters
    ----------
    machine : Cluster
    largest : function of changed constants
        Time of the largest buffer [s]: the rate that it feels most is the one to fit.
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
    rates = [(part, name) for part, name in rates if _known(catalogue, part, name)]
    if not _known(catalogue, *start) or not rates:
        raise InputError(f"{machine.name} has no constants of collectives to calibrate.")
    felt = [largest({name: (1 - STEP) * catalogue.value(*name)})[0] for name in rates]
    return [start, rates[int(np.argmax(felt))]]


def _known(catalogue: Catalogue, part: str, quantity: str) -> bool:
    return part in catalogue.parts() and catalogue.has(part, quantity)
