"""``cluster-sim calibrate``: one's own collective measurements as a catalogue overlay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.common import Json, Overlay, Variant, print_json

if TYPE_CHECKING:
    from experiments.calibration.fabric import Fitted
    from experiments.validation.nccl_tests import Measured


def calibrate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What nccl-tests or nccom-test printed.")
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The machine, without a count.")
    ],
    collective: Annotated[
        str | None, typer.Option("--collective", help="Where the text does not name it.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="Where the text does not tell.")
    ] = None,
    chips: Annotated[
        int | None, typer.Option("--chips", min=1, help="That the ranks run on; as many as ranks.")
    ] = None,
    overlay: Annotated[
        Path | None, typer.Option("--overlay", metavar="OUT.csv", help="Write the overlay there.")
    ] = None,
    variant: Variant = None,
    catalogue: Overlay = None,
    json: Json = False,
) -> None:
    """Fit the step time and the efficiency of a fabric to measured times.

    Prints the rows of a catalogue overlay, to be used with --catalogue; times are used, never the
    printed bandwidths, whose GB may be GiB.
    """
    from cluster_sim.files import whole_file
    from experiments.calibration.fabric import fit
    from experiments.validation.nccl_tests import read_measured
    from topologies.catalogue.catalogue import choose

    measured = read_measured(file, collective)
    fitted = fit(
        measured,
        cluster,
        choose(variant or (), catalogue),
        collective=collective,
        ranks=ranks,
        chips=chips,
    )
    if overlay:
        with whole_file(overlay) as part:
            part.write_text(fitted.csv(), encoding="utf-8")
    if json:
        print_json(_document(measured, fitted))
        return
    if not overlay:
        typer.echo(fitted.csv(), nl=False)
    printed = f", printed in {measured.bandwidth_unit}" if measured.bandwidth_unit else ""
    typer.echo(
        f"{len(measured)} measurements{printed}: median error {_median(fitted.before):.1%} before, "
        f"{_median(fitted.after):.1%} with the fitted rows.",
        err=True,
    )


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
