"""Fits of catalogue constants to measured times, as far as the data determine them.

Residuals are logarithms of predicted over measured time, with a soft loss for poor rows. A constant
is fitted if its effect is no combination of those chosen before. Kernels come first, so that the
constants of steps explain only the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from experiments.calibration.measurements import Measurements
from experiments.validation.predictions.collectives import time_s
from experiments.validation.predictions.kernels import predict as predict_kernel
from experiments.validation.predictions.training import filled, long_step, question
from experiments.validation.reading.rows import machines_for
from experiments.validation.reading.tool_outputs import Measured
from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.catalogue.reader import COLUMNS, Entry
from topologies.clusters.names import cluster
from topologies.support.arrays import BoolArray, FloatArray
from topologies.support.errors import InputError
from workloads.training.program.groups import SharedParts

Predict = Callable[[Catalogue], FloatArray]

STEP = 0.02  # relative change of a constant from which its effect is measured
LEAST_EFFECT = 0.02
"""Least elasticity of a row's time for which the row counts as depending on a constant."""
LEAST_APART = 0.05
"""Least share of a constant's effect that combinations of the others must leave unexplained."""
FURTHEST = 20.0  # factor by which a fit may change a constant that has no bound of its own
NEAR = 1e-3  # relative distance from a limit within which the limit counts as having stopped a fit
SOFT = 0.1  # residual from which a row counts less than its square


@dataclass(frozen=True)
class Constant:
    """A constant of the catalogue that a fit may change."""

    part: str
    quantity: str

    @property
    def most(self) -> float:
        """Largest physical value in SI units; infinite without a limit."""
        is_share = "efficiency" in self.quantity or self.quantity.startswith("gemm_sustained")
        return 1.0 if is_share else np.inf

    def __str__(self) -> str:
        """Name in the form that ``--variant`` takes."""
        return f"{self.part}.{self.quantity}"


NONE: FloatArray = np.zeros(0)


@dataclass(frozen=True, eq=False)
class ConstantsFit:
    """Fitted constants, and the errors of the rows before and after the fit."""

    # Catalogue rows graded measured, with two standard errors as their range
    entries: tuple[Entry, ...]
    kept: Mapping[str, str]  # constants that were not fitted, with the reason
    # before, after (rows,): relative errors with the catalogue's constants and with the fitted ones
    before: FloatArray
    after: FloatArray
    stopped: tuple[str, ...] = ()
    name: str = ""  # ``kernels``, ``collectives`` or ``training``
    # apart, apart_before (rows,): those of rows left out of the fit, after it and before
    apart: FloatArray = field(default_factory=lambda: NONE)
    apart_before: FloatArray = field(default_factory=lambda: NONE)


def fit_constants(
    predict: Predict,
    measured_s: FloatArray,
    constants: Sequence[Constant],
    catalogue: Catalogue,
    *,
    note: str,
) -> ConstantsFit:
    """Fit constants, the most important first, to measured times of rows [s]."""
    # A later constant that the data cannot tell from earlier ones keeps its value.
    first = predict(catalogue)
    slopes = {constant: _effect(predict, first, constant, catalogue) for constant in constants}
    chosen, kept = _tell_apart(slopes)
    # One row more than constants tells how well the rows are met.
    chosen = chosen[: max(0, len(measured_s) - 1)]
    kept |= {
        str(constant): f"{len(measured_s)} rows are too few to fit it as well and tell the error"
        for constant in constants
        if constant not in chosen and str(constant) not in kept
    }
    before = first / measured_s - 1

    def residuals(logs: FloatArray) -> FloatArray:
        changed = with_values(catalogue, dict(zip(chosen, np.exp(logs).tolist(), strict=True)))
        return np.asarray(np.log(predict(changed) / measured_s))

    # A constant may matter at the start and no longer at the best values of the others, as when a
    # step turns from latency-bound to bandwidth-bound. Such constants leave, and the fit is redone.
    while chosen:
        logs, spread, at_limit, felt = _best(residuals, chosen, catalogue)
        unfelt = [constant for constant, is_felt in zip(chosen, felt, strict=True) if not is_felt]
        if not unfelt:
            break
        # The others may be felt where the one least worth knowing has kept its value.
        kept[str(unfelt[-1])] = "no row depends on it once the others are fitted"
        chosen.remove(unfelt[-1])
    else:
        return ConstantsFit((), kept, before, before)
    entries = tuple(
        _entry(constant, float(value), float(wide), catalogue, note)
        for constant, value, wide in zip(chosen, np.exp(logs), spread, strict=True)
    )
    after = np.exp(residuals(logs)) - 1
    stopped = tuple(str(constant) for constant, at in zip(chosen, at_limit, strict=True) if at)
    return ConstantsFit(entries, kept, before, np.asarray(after), stopped)


def _best(
    residuals: Callable[[FloatArray], FloatArray], chosen: Sequence[Constant], catalogue: Catalogue
) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray]:
    """Return logs and relative errors of constants, which are at a limit, and which rows feel."""
    start = np.log([catalogue.value(constant.part, constant.quantity) for constant in chosen])
    highest = [
        min(at + np.log(FURTHEST), np.log(constant.most))
        for at, constant in zip(start, chosen, strict=True)
    ]
    start = np.minimum(start, np.array(highest) - 1e-9)
    lowest = start - np.log(FURTHEST)
    best = least_squares(
        residuals,
        start,
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=SOFT,
        diff_step=np.full(len(chosen), STEP / 2),
    )
    slopes = np.asarray(best.jac, float)
    freedom = len(best.fun) - slopes.shape[1]
    covariance = np.linalg.pinv(slopes.T @ slopes) * 2 * float(best.cost) / freedom
    at_limit = (best.x < lowest + NEAR) | (best.x > np.array(highest) - NEAR)
    there = residuals(best.x)
    lower = best.x - STEP * np.eye(len(chosen))
    effects = [(there - residuals(logs)) / STEP for logs in lower]
    spread = np.where(at_limit, np.inf, np.sqrt(np.maximum(0.0, np.diag(covariance))))
    felt = np.array([np.abs(effect).max() >= LEAST_EFFECT for effect in effects])
    return best.x, spread, at_limit, felt


def with_values(catalogue: Catalogue, values: Mapping[Constant, float]) -> Catalogue:
    """Return the catalogue with some constants replaced."""
    rows = [
        catalogue.entry(constant.part, constant.quantity)._replace(
            exact=Fraction(value), low=None, high=None
        )
        for constant, value in values.items()
    ]
    return catalogue.with_rows(rows)


def _effect(
    predict: Predict, first: FloatArray, constant: Constant, catalogue: Catalogue
) -> FloatArray:
    """Elasticity of every row's time to a constant; (rows,)."""
    value = catalogue.value(constant.part, constant.quantity)
    down = value * (1 + STEP) > constant.most
    factor = 1 / (1 + STEP) if down else 1 + STEP
    changed = predict(with_values(catalogue, {constant: value * factor}))
    return np.asarray(np.log(changed / first) / np.log(factor))


def _tell_apart(slopes: Mapping[Constant, FloatArray]) -> tuple[list[Constant], dict[str, str]]:
    """Return the constants whose effects are independent, and the reasons against the others."""
    chosen: list[Constant] = []
    kept: dict[str, str] = {}
    for constant, slope in slopes.items():
        if np.abs(slope).max(initial=0.0) < LEAST_EFFECT:
            kept[str(constant)] = "no row depends on it"
            continue
        basis = np.reshape([slopes[other] for other in chosen], (len(chosen), len(slope))).T
        weights, *_ = np.linalg.lstsq(basis, slope, rcond=None)
        size = np.linalg.norm(slope)
        if np.linalg.norm(slope - basis @ weights) < LEAST_APART * size:
            names = ", ".join(
                str(other)
                for other in chosen
                if abs(slopes[other] @ slope) > size * np.linalg.norm(slopes[other]) / 2
            )
            kept[str(constant)] = f"the data cannot tell it from {names or 'the constants above'}"
        else:
            chosen.append(constant)
    return chosen, kept


def _entry(
    constant: Constant, value: float, spread: float, catalogue: Catalogue, note: str
) -> Entry:
    """Return the catalogue row of a fitted constant, with two standard errors as its range."""
    old = catalogue.entry(constant.part, constant.quantity)
    wide = np.exp(min(2 * spread, np.log(FURTHEST)))
    low, high = value / wide, value * wide
    return old._replace(
        variant="",
        exact=Fraction(value),
        grade="measured",
        source="own measurement",
        written="",
        note=f"{note}; was {old.written}",
        low=min(low, value),
        high=max(value, min(high, constant.most)),
    )


def overlay_text(entries: Sequence[Entry]) -> str:
    """Text of a catalogue overlay with some rows, in SI units."""
    lines = [",".join(COLUMNS)]
    for entry in entries:
        low, high = (f"{side:.6g}" if side is not None else "" for side in (entry.low, entry.high))
        number = f"{entry.value:.6g}"
        # Rounding may have put the value outside of its range.
        low = number if low and float(low) > float(number) else low
        high = number if high and float(high) < float(number) else high
        note = entry.note.replace('"', "'")
        cells = [entry.part, entry.quantity, "", number, entry.unit, entry.grade, entry.source]
        lines.append(",".join([*cells, f'"{note}"', low, high]))
    return "\n".join(lines) + "\n"


def fit_all(
    measured: Measurements, catalogue: Catalogue, machine: str | None, *, chips: int | None = None
) -> list[ConstantsFit]:
    """Fit the constants of every kind that was measured."""
    fits, shipped = [], catalogue
    if measured.kernels:
        fits.append(fit_kernels(measured, catalogue, machine))
        catalogue = with_fit(catalogue, fits[-1])
    if measured.collectives:
        fits.append(fit_collectives(measured, catalogue, machine, chips))
        catalogue = with_fit(catalogue, fits[-1])
    if measured.training:
        fits.append(fit_training(measured.training, catalogue, shipped))
    return fits


Rows = Sequence[Mapping[str, Any]]
Apart = tuple[Callable[[Rows, Catalogue], FloatArray], str, Rows]
"""Predicted times of rows, the column of the measured ones, and rows that are left out of a fit."""
SMALLEST = 1e-30  # value below which a constant counts as zero


def with_fit(catalogue: Catalogue, fit: ConstantsFit) -> Catalogue:
    """Return the catalogue with the fitted constants."""
    return with_values(
        catalogue, {Constant(entry.part, entry.quantity): entry.value for entry in fit.entries}
    )


def column(rows: Rows, name: str) -> FloatArray:
    """Return a column of rows as numbers; (rows,)."""
    return np.array([float(row[name]) for row in rows])


Series = tuple[Measured, int]
"""Measured times of one collective at several sizes, and the chips that it used."""


def fit_collectives(
    measured: Measurements, catalogue: Catalogue, machine: str | None, chips: int | None
) -> ConstantsFit:
    """Fit the constants of a machine's collectives to measured series."""
    name = machine or (measured.manifest.cluster if measured.manifest else None)
    if name is None:
        raise InputError("collectives do not name their machine. Add --cluster.")
    per_chip = measured.manifest.ranks_per_chip if measured.manifest else 1
    series = [
        _series(file, collective, per_chip, chips) for file, collective in measured.collectives
    ]
    seconds = np.concatenate([part.time_s for part, _ in series])
    constants = collective_constants(series, name, catalogue)
    if not constants:
        raise InputError(f"{name} has no constants of collectives to calibrate.")
    fit = fit_constants(
        lambda varied: _collective_times(series, name, varied),
        seconds,
        constants,
        catalogue,
        note=f"fitted to {len(seconds)} collectives on {name}",
    )
    return replace(fit, name="collectives")


def _series(file: str, measured: Measured, per_chip: int, chips: int | None) -> Series:
    if measured.collective is None:
        raise InputError(f"{file} does not name the operation. Add --collective to a single file.")
    if measured.ranks is None:
        raise InputError(f"{file} does not tell the number of ranks. Add --ranks to a single file.")
    if measured.ranks < 2:
        raise InputError(
            f"{file}: {int(measured.ranks)} rank; a collective has at least 2. Correct nworkers."
        )
    return measured, chips or max(1, measured.ranks // per_chip)


def _collective_times(series: Sequence[Series], machine: str, catalogue: Catalogue) -> FloatArray:
    times = []
    for part, chips in series:
        whole = machines_for(machine, chips, catalogue)
        sizes = part.size_bytes.tolist()
        op, ranks = str(part.collective), int(part.ranks or 0)
        times += [time_s(op, whole, chips, ranks, int(size)) for size in sizes]
    return np.array(times)


def collective_constants(
    series: Sequence[Series], machine: str, catalogue: Catalogue
) -> list[Constant]:
    """Constants of the collectives of a machine, the most important first."""
    whole = machines_for(machine, max(chips for _, chips in series), catalogue)
    chip, fabric = whole.chip, whole.scale_out.name if whole.scale_out else ""
    inside = [
        (chip, f"copy_{str(part.collective).replace('-', '_')}_{part.ranks}")
        for part, chips in series
        if chips == 1
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
    return _constants(names, catalogue)


def _constants(names: Iterable[tuple[str, str]], catalogue: Catalogue) -> list[Constant]:
    """Return the constants that the catalogue has; one of zero has no logarithm to fit."""
    return [
        Constant(part, quantity)
        for part, quantity in names
        if catalogue.has(part, quantity) and catalogue.value(part, quantity) > SMALLEST
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
UNFITTED = ("layer",)  # kernels whose rows stay out of the fit, as a test of it


def fit_kernels(measured: Measurements, catalogue: Catalogue, machine: str | None) -> ConstantsFit:
    """Fit the constants of kernels to measured kernels of one chip."""
    rows = [_kernel_row(row, measured, machine, catalogue) for row in measured.kernels]
    # Products on an otherwise idle chip do not count where loaded ones were measured as well.
    products = [row for row in rows if row["kernel"] == "gemm"]
    idle = [row for row in products if row.get("load") != "loaded"]
    left_out = idle if len(idle) < len(products) else []
    rows = [{**row, "load": None} for row in rows if row not in left_out]
    fitted = [row for row in rows if row["kernel"] not in UNFITTED and _known(row, catalogue)]
    apart = [row for row in rows if row["kernel"] in UNFITTED]
    if not fitted:
        raise InputError("no kernel row is of a kind that can be fitted. Run the kit's scripts.")
    fit = fit_constants(
        lambda varied: _kernel_times(fitted, varied),
        column(fitted, "kernel_s"),
        kernel_constants(fitted, catalogue),
        catalogue,
        note=f"fitted to {len(fitted)} kernels of {fitted[0]['chip']}",
    )
    fit = replace(fit, name="kernels")
    return _beside(fit, catalogue, catalogue, (_kernel_times, "kernel_s", apart))


def _beside(
    fit: ConstantsFit, catalogue: Catalogue, shipped: Catalogue, apart: Apart
) -> ConstantsFit:
    """Return a fit with the relative errors of rows left out of it, after the fit and before."""
    times, measured, rows = apart
    after, before = (
        times(rows, each) / column(rows, measured) - 1 if rows else NONE
        for each in (with_fit(catalogue, fit), shipped)
    )
    return replace(fit, apart=after, apart_before=before)


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


def _known(row: Mapping[str, Any], catalogue: Catalogue) -> bool:
    """Return whether the model of kernels can predict a row."""
    try:
        return predict_kernel(row, catalogue).status == "ok"
    except InputError:
        return False


def kernel_constants(rows: Rows, catalogue: Catalogue) -> list[Constant]:
    """Constants of the kernels of the rows' chip, the most important first."""
    chip = str(rows[0]["chip"])
    part = chip_family(chip, catalogue).kernels
    pairs = [(f"{name}_{chip}", name) for name in KERNEL_CONSTANTS]
    names = [(part, of_chip if catalogue.has(part, of_chip) else name) for of_chip, name in pairs]
    neuron = chip_family(chip, catalogue).is_neuron
    runtimes = sorted({str(row["runtime"]) for row in rows if row.get("runtime") and neuron})
    names += [(RUNTIME, f"{runtime}_{end}") for runtime in runtimes for end in ("added", "least")]
    return _constants(names, catalogue)


def _kernel_times(rows: Rows, catalogue: Catalogue) -> FloatArray:
    return np.array([predict_kernel(row, catalogue).predicted["kernel_s"] for row in rows])


TRAINING_CONSTANTS = ("scheduling", "sharded_rate")
HOST_CONSTANTS = ("host_layer_pass", "host_adapter_pass")


def fit_training(rows: Rows, catalogue: Catalogue, shipped: Catalogue) -> ConstantsFit:
    """Fit the constants of steps to the rows that are not held out, if there are any."""

    def times(steps: Rows, catalogue: Catalogue) -> FloatArray:
        questions = (question(filled(row).values, catalogue) for row in steps)
        return np.array([long_step(*each, SharedParts()).seconds for each in questions])

    # Rows may be marked as a test of the fit, as the steps of a kit are.
    apart = [row for row in rows if row.get("held_out")]
    fitted = [row for row in rows if not row.get("held_out")]
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
    fit = replace(fit, name="training")
    return _beside(fit, catalogue, shipped, (times, "iteration_s", apart))


def training_constants(chip: str, catalogue: Catalogue) -> list[Constant]:
    """Constants of training steps on a chip, the most important first."""
    part = chip_family(chip, catalogue).kernels
    names = [("training", f"{name}_{chip}") for name in TRAINING_CONSTANTS]
    names += [(part, name) for name in (*HOST_CONSTANTS, "gemm_sustained", "host_dispatch")]
    return _constants(names, catalogue)
