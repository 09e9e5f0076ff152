"""Fit of measurements of every kind for one overlay: kernels, collectives, training steps.

Each kind has constants of its own. Kernels are fitted first, and steps with the fitted constants of
kernels, so that the constants of steps explain only the rest of a step's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.calibration.overlay.constants import (
    STEP,
    Constant,
    ConstantsFit,
    fit_constants,
    with_values,
)
from experiments.calibration.overlay.measurements import Measurements
from experiments.validation.predictions.collectives import time_s
from experiments.validation.predictions.kernels import predict as predict_kernel
from experiments.validation.predictions.outcome import Outcome
from experiments.validation.predictions.training import predict as predict_step
from experiments.validation.reading.machines import machines_for
from experiments.validation.reading.nccl_tests import Measured
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.kernels.chip_share import family


def fit_all(
    measured: Measurements, catalogue: Catalogue, machine: str | None, *, chips: int | None = None
) -> list[Group]:
    """Fit the constants of every kind that was measured."""
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


SMALLEST = 1e-30
"""Value below which a constant counts as zero, which has no logarithm to fit."""
NONE: FloatArray = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Group:
    """The fit of one kind of measurement.

    ``name``: ``kernels``, ``collectives`` or ``training``.
    ``apart, apart_before`` (rows,): errors of rows that were left out of the fit, with the fitted
        constants and with the catalogue's.
    """

    name: str
    fit: ConstantsFit
    apart: FloatArray
    apart_before: FloatArray


def with_fit(catalogue: Catalogue, fit: ConstantsFit) -> Catalogue:
    """Return the catalogue with the fitted constants."""
    return with_values(
        catalogue, {Constant(entry.part, entry.quantity): entry.value for entry in fit.entries}
    )


def predicted_s(outcome: Outcome, name: str) -> float:
    """Return a predicted time [s]."""
    return float(outcome.predicted[name])


def column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    """Return a column of rows as numbers; (rows,)."""
    return np.array([float(row[name]) for row in rows])


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


KERNEL_CONSTANTS = (
    *("gemm_sustained", "gemm_memory_efficiency", "elementwise_efficiency", "launch"),
    *("activation_efficiency", "norm_efficiency", "softmax_efficiency", "gather_efficiency"),
    *("attention_efficiency", "attention_backward_efficiency", "attention_diagonal"),
    *("attention_launch", "issue_columns", "gemm_first_bytes", "gather_descriptor"),
    *("activation_efficiency_fp32", "norm_efficiency_fp32", "softmax_efficiency_fp32"),
    *("decode_attention_efficiency", "decode_attention_pair", "unfused_score_bytes"),
)
RUNTIME = "runtime.neuron"
UNFITTED = ("layer",)
"""Kernels whose rows stay out of the fit, as a test of it."""


def fit_kernels(measured: Measurements, catalogue: Catalogue, machine: str | None) -> Group:
    """Fit the constants of kernels to measured kernels of one chip."""
    rows = [_kernel_row(row, measured, machine, catalogue) for row in measured.kernels]
    rows = _one_load(rows)
    fitted = [row for row in rows if row["kernel"] not in UNFITTED and _known(row, catalogue)]
    apart = [row for row in rows if row["kernel"] in UNFITTED]
    if not fitted:
        raise InputError("no kernel row is of a kind that can be fitted. Run the kit's scripts.")
    constants = kernel_constants(fitted, catalogue)
    fit = fit_constants(
        lambda varied: _kernel_times(fitted, varied),
        column(fitted, "kernel_s"),
        constants,
        catalogue,
        note=f"fitted to {len(fitted)} kernels of {fitted[0]['chip']}",
    )
    return Group(
        "kernels",
        fit,
        _kernel_errors(apart, with_fit(catalogue, fit)),
        _kernel_errors(apart, catalogue),
    )


def _kernel_errors(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
    """Relative errors of the predicted times of rows; (rows,)."""
    if not rows:
        return NONE
    return _kernel_times(rows, catalogue) / column(rows, "kernel_s") - 1


def _kernel_row(
    row: Mapping[str, Any], measured: Measurements, machine: str | None, catalogue: Catalogue
) -> dict[str, Any]:
    """Return a row with its chip and cores, from its file, the kit or the machine."""
    chip = row.get("chip")
    cores = row.get("cores")
    if not chip and measured.manifest:
        chip, cores = measured.manifest.chip, cores or measured.manifest.cores
    if not chip and machine:
        chip = cluster(machine).chip
    if not chip:
        raise InputError(
            "a profile does not name its chip. Add --cluster, or give the kit's folder."
        )
    if not chip_family(str(chip), catalogue).is_neuron:
        cores = None  # kernels of a GPU run on the whole chip
    return {**row, "chip": chip, "cores": cores}


def _one_load(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop products on an otherwise idle chip where loaded ones were measured as well."""
    loaded = any(row["kernel"] == "gemm" and row.get("load") == "loaded" for row in rows)
    kept = [
        row
        for row in rows
        if not (loaded and row["kernel"] == "gemm" and row.get("load") != "loaded")
    ]
    return [{**row, "load": None} for row in kept]


def _known(row: Mapping[str, Any], catalogue: Catalogue) -> bool:
    """Return whether the model of kernels can predict a row."""
    try:
        return predict_kernel(row, catalogue).status == "ok"
    except InputError:
        return False


def kernel_constants(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> list[Constant]:
    """Constants of the kernels of the rows' chip, the most important first."""
    chip = str(rows[0]["chip"])
    part = f"kernels.{family(chip, catalogue).name}"
    constants = []
    for name in KERNEL_CONSTANTS:
        of_chip = f"{name}_{chip}"
        quantity = of_chip if catalogue.has(part, of_chip) else name
        if catalogue.has(part, quantity) and catalogue.value(part, quantity) > SMALLEST:
            most = 1.0 if "efficiency" in name or name == "gemm_sustained" else np.inf
            constants.append(Constant(part, quantity, most))
    neuron = chip_family(chip, catalogue).is_neuron
    runtimes = sorted({str(row["runtime"]) for row in rows if row.get("runtime") and neuron})
    return constants + [
        Constant(RUNTIME, f"{runtime}_{name}")
        for runtime in runtimes
        for name in ("added", "least")
        if catalogue.has(RUNTIME, f"{runtime}_{name}")
    ]


def _kernel_times(rows: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
    return np.array([predicted_s(predict_kernel(row, catalogue), "kernel_s") for row in rows])


TRAINING_CONSTANTS = ("scheduling", "sharded_rate")
HOST_CONSTANTS = ("host_layer_pass", "host_adapter_pass")


def fit_training(
    rows: Sequence[Mapping[str, Any]], catalogue: Catalogue, shipped: Catalogue
) -> Group:
    """Fit the constants of steps to the rows that are not held out, if there are any."""

    def times(steps: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
        return np.array([predicted_s(predict_step(row, catalogue), "iteration_s") for row in steps])

    def errors(steps: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> FloatArray:
        return times(steps, catalogue) / column(steps, "iteration_s") - 1 if steps else NONE

    apart = [row for row in rows if _held_out(row)]
    fitted = [row for row in rows if not _held_out(row)]
    fit = ConstantsFit((), {}, NONE, NONE)
    if fitted:
        chip = machines_for(str(fitted[0]["cluster"]), 1).chip
        fit = fit_constants(
            lambda varied: times(fitted, varied),
            column(fitted, "iteration_s"),
            training_constants(chip, catalogue),
            catalogue,
            note=f"fitted to {len(fitted)} training steps on {chip}",
        )
    return Group("training", fit, errors(apart, with_fit(catalogue, fit)), errors(apart, shipped))


def _held_out(row: Mapping[str, Any]) -> bool:
    """Return whether a row is marked as a test of the fit, as the steps of a kit are."""
    return bool(row.get("held_out"))


def training_constants(chip: str, catalogue: Catalogue) -> list[Constant]:
    """Constants of training steps on a chip, the most important first."""
    part = f"kernels.{family(chip, catalogue).name}"
    names = [("training", f"{name}_{chip}") for name in TRAINING_CONSTANTS]
    names += [(part, name) for name in HOST_CONSTANTS]
    names += [(part, "gemm_sustained"), (part, "host_dispatch")]
    return [
        Constant(where, quantity, 1.0 if quantity == "gemm_sustained" else np.inf)
        for where, quantity in names
        if catalogue.has(where, quantity) and catalogue.value(where, quantity) > SMALLEST
    ]


Name = tuple[str, str]

NCCL_RATES = ("efficiency", "in_switch_efficiency", "exchange_efficiency")


def fit_fabric(
    measured: Measured,
    machine: str,
    catalogue: Catalogue,
    *,
    collective: str | None = None,
    ranks: int | None = None,
    chips: int | None = None,
) -> ConstantsFit:
    """Fit the step time and the efficiency of a fabric to one series.

    Small messages determine the time of a step, large ones the share of the link rate that is
    reached.
    """
    operation, count = _operation_and_ranks(measured, collective, ranks)
    series = Series(operation, count, chips or count, measured)
    largest = replace(measured, size_bytes=measured.size_bytes.max(keepdims=True))

    def largest_s(changed: Mapping[Name, float]) -> float:
        values = {Constant(*name): value for name, value in changed.items()}
        varied = with_values(catalogue, values)
        return float(_collective_times([replace(series, measured=largest)], machine, varied)[0])

    chosen = constants_of(machines_for(machine, series.chips, catalogue), largest_s)
    return fit_constants(
        lambda varied: _collective_times([series], machine, varied),
        measured.time_s,
        [Constant(*name, 1.0 if "efficiency" in name[1] else np.inf) for name in chosen],
        catalogue,
        note=f"fitted on {machine}",
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
    machine: Cluster, largest_s: Callable[[Mapping[Name, float]], float]
) -> list[Name]:
    """Return the constants to fit: a latency, and the rate that limits large buffers.

    ``largest_s``: returns the time of the largest buffer [s]; the rate on which it depends most is
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
    felt = [largest_s({name: (1 - STEP) * catalogue.value(*name)}) for name in rates]
    return [start, rates[int(np.argmax(felt))]]
