"""Fit of measurements of every kind for one overlay: kernels, collectives, training steps.

Each kind has constants of its own. Kernels are fitted first, and steps with the fitted constants of
kernels, so that the constants of steps explain only the rest of a step's time.
"""

from __future__ import annotations

from experiments.calibration.overlay.collectives import fit_collectives
from experiments.calibration.overlay.group import Group, with_fit
from experiments.calibration.overlay.kernels import fit_kernels
from experiments.calibration.overlay.measurements import Measurements
from experiments.calibration.overlay.training import fit_training
from topologies.catalogue.catalogue import Catalogue


def fit_all(
    measured: Measurements, catalogue: Catalogue, machine: str | None, *, chips: int | None = None
) -> list[Group]:
    """Fit the constants of every kind that was measured.

    ``catalogue``: catalogue whose constants the fits start from. ``machine``: machine of the
    collectives, without a count; by default the kit's. ``chips``: chips that the ranks of
    collectives run on.

    Raises InputError when the machine of collectives is not known, and for rows that cannot be
    predicted.
    """
    groups, shipped = [], catalogue
    if measured.kernels:
        groups.append(fit_kernels(measured, catalogue, machine))
        catalogue = with_fit(catalogue, groups[-1].fit)
    if measured.collectives:
        groups.append(fit_collectives(measured, catalogue, machine, chips))
        catalogue = with_fit(catalogue, groups[-1].fit)
    if measured.training:
        groups.append(fit_training(measured.training, catalogue, shipped))
    return groups
