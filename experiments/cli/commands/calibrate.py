"""``cluster-sim measure-kit`` and ``calibrate``: own measurements, and a catalogue overlay."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.options.inputs import CatalogueInputs, Invocation
from experiments.reports.formatting import idle_entry, idle_sentences, values_of
from topologies.support.errors import InputError
from topologies.support.files.writing import whole_file
from topologies.support.options import required, setting

if TYPE_CHECKING:
    from experiments.calibration.fit import ConstantsFit
    from experiments.calibration.measurements import Measurements
    from experiments.reports.run_directory import Run

WORSE = 0.01  # growth of the error of rows that took no part in a fit from which it is named


@dataclass(frozen=True)
class MeasurementInputs:
    """Measurements, and the machine on which they were taken."""

    file: tuple[Path, ...] = required(
        "Output of nccl-tests, nccom-test or neuron-profile, rows of kernels or training "
        "steps, or the folder of a kit (`measure-kit` writes one); may be several",
        metavar="FILE|DIR…",
        argument=True,
    )
    cluster: str | None = setting(
        None, "Machine of the measurements, without a count", metavar="NAME", default="the kit's"
    )
    collective: str | None = setting(
        None, "Collective operation, where the measurements do not name it"
    )
    ranks: int | None = setting(
        None, "Number of ranks, where the measurements do not state it", least=2
    )
    chips: int | None = setting(
        None, "Chips that the ranks run on", least=1, default="as the kit states, or one a rank"
    )
    overlay: Path | None = setting(
        None,
        "Write the fitted rows to this file, which is replaced",
        metavar="OUT.csv",
        recorded=False,
    )


def calibrate(
    inputs: MeasurementInputs, catalogue_inputs: CatalogueInputs, call: Invocation
) -> None:
    """Fit the catalogue to your own measurements.

    Fits constants of kernels, collectives and training steps to measured times, and prints the rows
    of a catalogue overlay, to be used with --catalogue. A constant that the measurements cannot
    tell from another keeps its value and is named. Fits to collectives use their times, never the
    printed bandwidths, whose GB may be GiB.
    """
    from experiments.calibration.fit import fit_all, overlay_text
    from experiments.calibration.measurements import read_measurements

    catalogue = catalogue_inputs.read()
    stated = read_measurements(inputs.file, inputs.collective)
    idle = _idle_options(inputs, stated)
    measured = stated.named(inputs.collective, inputs.ranks)
    fits = fit_all(measured, catalogue, inputs.cluster, chips=inputs.chips)
    text = overlay_text([entry for fit in fits for entry in fit.entries])
    if inputs.overlay is not None:
        with whole_file(inputs.overlay) as part:
            part.write_text(text, encoding="utf-8")
    results = _document(fits, measured)
    call.answer(
        {**results, **idle_entry(idle)},
        lambda _: _print(results, "" if inputs.overlay else text),
        lambda run, _: _write(run, results),
        notes=[
            *idle_sentences(idle),
            *(f"File {name} holds no measurement." for name in stated.unread),
        ],
    )


def _idle_options(inputs: MeasurementInputs, measured: Measurements) -> dict[str, str]:
    """Return each stated option about collectives that no measurement needs, with the reason."""
    series = [each for _, each in measured.collectives]
    reasons = {}
    if not series:
        names = ("collective", "ranks", "chips")
        reasons = dict.fromkeys(names, "no measurement is of a collective")
    elif len(series) > 1 and all(each.ranks for each in series):
        reasons["ranks"] = "every measurement of a collective states its ranks"
    named = len(series) > 1 and all(each.collective for each in series)
    if named and not _chooses(inputs, measured):
        reasons["collective"] = "every measurement of a collective names it"
    return {name: why for name, why in reasons.items() if getattr(inputs, name) is not None}


def _chooses(inputs: MeasurementInputs, measured: Measurements) -> bool:
    """Return whether ``--collective`` chooses among several tables of a file."""
    from experiments.calibration.measurements import read_measurements

    try:
        return len(read_measurements(inputs.file)) != len(measured)
    except InputError:
        return True


def _print(results: Mapping[str, Any], text: str) -> None:
    sys.stdout.write(text)
    if results["left_out"]:
        sys.stderr.write(f"Rows left out, as they have no time: {results['left_out']}.\n")
    if results["bandwidth_unit"]:
        sys.stderr.write(f"Bandwidths are printed in {results['bandwidth_unit']}.\n")
    for fit in results["groups"]:
        if fit["measurements"]:
            sys.stderr.write(
                "{name}: {measurements} measurements; median error {median_abs_error_before:.1%} "
                "before, {median_abs_error:.1%} with the fitted rows.\n".format_map(fit)
            )
        if fit["apart"]:
            shipped, refitted = (fit[f"median_abs_error_apart{at}"] for at in ("_before", ""))
            worse = (
                " They are met better by the shipped rows: kernels alone, in short bursts, may run "
                "faster than in a step. Measure for longer (KIT_SECONDS) before you use these."
            )
            sys.stderr.write(
                f"{fit['name']}: {fit['apart']} more took no part in a fit; median error "
                f"{shipped:.1%} before, {refitted:.1%} with the fitted rows."
                f"{worse if refitted > shipped + WORSE else ''}\n"
            )
        for reason in dict.fromkeys(each["reason"] for each in fit["kept"]):
            names = [each["constant"] for each in fit["kept"] if each["reason"] == reason]
            sys.stderr.write(f"  Not fitted, as {reason}: {', '.join(names)}.\n")
        if fit["stopped"]:
            sys.stderr.write(
                f"  Ended at the limit of what is tried: {', '.join(fit['stopped'])}. Check "
                "--cluster, --ranks and --chips.\n"
            )


def _write(run: Run, document: Mapping[str, Any]) -> None:
    summary = {name: value for name, value in document.items() if name != "rows"}
    run.table("overlay", document["rows"], title="Fitted rows")
    run.json("summary", summary, title="Errors before and after")


def _median(errors: Any) -> float | None:
    """Median of the absolute errors; None without errors."""
    from experiments.validation.comparison import condensed

    return condensed(errors)["median_abs_error"]


def _document(fits: Sequence[ConstantsFit], measured: Measurements) -> dict[str, Any]:
    entries = [entry for fit in fits for entry in fit.entries]
    series = [each for _, each in measured.collectives]
    units = dict.fromkeys(each.bandwidth_unit for each in series if each.bandwidth_unit)
    return {
        "rows": [
            values_of(entry, "part", "quantity", "value", "unit", "low", "high")
            for entry in entries
        ],
        "measurements": len(measured),
        "left_out": sum(each.failed for each in series),
        "bandwidth_unit": ", ".join(units),
        "groups": [
            {
                "name": fit.name,
                "measurements": len(fit.after),
                "median_abs_error_before": _median(fit.before),
                "median_abs_error": _median(fit.after),
                "apart": len(fit.apart),
                "median_abs_error_apart_before": _median(fit.apart_before),
                "median_abs_error_apart": _median(fit.apart),
                "stopped": list(fit.stopped),
                "kept": [{"constant": name, "reason": why} for name, why in fit.kept.items()],
            }
            for fit in fits
        ],
    }


@dataclass(frozen=True)
class KitInputs:
    """Folder and chip of a kit."""

    folder: Path = required(
        "A new folder for the scripts and results", metavar="DIR", argument=True
    )
    chip: str = required("Chip to measure: trn1, trn2, trn3 or a GPU such as h200", metavar="CHIP")


def measure_kit(inputs: KitInputs, call: Invocation) -> None:
    """Write scripts that measure your own machine.

    The scripts time matrix products, attention, element-wise work, launches, copies, collectives
    and training steps with public tools. `calibrate DIR` reads their results.
    """
    from experiments.calibration.kit import write_kit

    folder, manifest = inputs.folder, write_kit(inputs.folder, inputs.chip)
    call.answer(
        asdict(manifest),
        lambda _: click.echo(
            f"{len(manifest.files)} files for {manifest.chip} in {folder}.\n"
            f"On the machine: sh {folder}/run_all.sh (KIT_QUICK=1 tries it in a minute)\n"
            f"Then, anywhere: cluster-sim calibrate {folder} --overlay mine.csv"
        ),
        lambda run, document: run.json("manifest", document, title="Manifest of the kit"),
    )
