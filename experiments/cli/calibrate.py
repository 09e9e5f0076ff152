"""``cluster-sim calibrate``: one's own collective measurements as a catalogue overlay."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli.inputs import CatalogueInputs
from experiments.cli.invocation import Invocation
from topologies.options import option

if TYPE_CHECKING:
    from experiments.calibration.fabric import Fitted
    from experiments.reports.run_directory import Run
    from experiments.validation.nccl_tests import Measured


@dataclass(frozen=True)
class MeasurementInputs:
    """Measurements and the machine that they were taken on."""

    file: Path = field(
        metadata=option("Output of nccl-tests or nccom-test", metavar="FILE", argument=True)
    )
    cluster: str = field(metadata=option("Machine without a count", metavar="NAME"))
    collective: str | None = field(
        default=None, metadata=option("Operation, where the output does not name it")
    )
    ranks: int | None = field(
        default=None, metadata=option("Number of ranks, where the output does not name it", least=2)
    )
    chips: int | None = field(
        default=None, metadata=option("Chips that the ranks run on", least=1, default="one a rank")
    )
    overlay: Path | None = field(
        default=None,
        metadata=option("Write the fitted rows there", metavar="OUT.csv", recorded=False),
    )


def calibrate(asked: MeasurementInputs, catalogue: CatalogueInputs, call: Invocation) -> None:
    """Fit a fabric to your own collective measurements.

    Fits the step time and the efficiency of a fabric to measured times, and prints the rows of a
    catalogue overlay, to be used with --catalogue. Times are used, never the printed bandwidths,
    whose GB may be GiB.
    """
    from cluster_sim.files import whole_file
    from experiments.calibration.fabric import fit
    from experiments.validation.nccl_tests import read_measured

    measured = read_measured(asked.file, asked.collective)
    fitted = fit(
        measured,
        asked.cluster,
        catalogue.read(),
        collective=asked.collective,
        ranks=asked.ranks,
        chips=asked.chips,
    )
    if asked.overlay:
        with whole_file(asked.overlay) as part:
            part.write_text(fitted.csv(), encoding="utf-8")
    call.answer(
        lambda: _document(measured, fitted),
        lambda: _print(measured, fitted, alone=asked.overlay is None),
        lambda run: _write(run, measured, fitted),
    )


def _print(measured: Measured, fitted: Fitted, *, alone: bool) -> None:
    if alone:
        sys.stdout.write(fitted.csv())
    printed = f", printed in {measured.bandwidth_unit}" if measured.bandwidth_unit else ""
    sys.stderr.write(
        f"{len(measured)} measurements{printed}: median error {_median(fitted.before):.1%} before, "
        f"{_median(fitted.after):.1%} with the fitted rows.\n"
    )


def _write(run: Run, measured: Measured, fitted: Fitted) -> None:
    import pandas as pd

    document = _document(measured, fitted)
    run.table("overlay", pd.DataFrame(document.pop("rows")), title="Fitted rows")
    run.json("summary", document, title="Errors before and after")


def _median(errors: Any) -> float:
    import numpy as np

    return float(np.median(np.abs(errors)))


def _document(measured: Measured, fitted: Fitted) -> dict[str, Any]:
    names = ("part", "quantity", "value", "unit", "low", "high")
    return {
        "rows": [{name: getattr(entry, name) for name in names} for entry in fitted.entries],
        "measurements": len(measured),
        "bandwidth_unit": measured.bandwidth_unit,
        "median_abs_error_before": _median(fitted.before),
        "median_abs_error": _median(fitted.after),
    }
