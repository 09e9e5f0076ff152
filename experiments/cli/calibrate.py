"""``cluster-sim calibrate``: one's own collective measurements as a catalogue overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.common import Json, Overlay, Variant, print_json


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
    import numpy as np

    from cluster_sim.files import whole_file
    from cluster_sim.measured import read_measured
    from experiments.calibration.own import fit
    from topologies.catalogue import choose

    measured = read_measured(file)
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
    before, after = (float(np.median(np.abs(error))) for error in (fitted.before, fitted.after))
    if json:
        rows = [
            {
                "part": entry.part,
                "quantity": entry.quantity,
                "value": entry.value,
                "unit": entry.unit,
                "low": entry.low,
                "high": entry.high,
            }
            for entry in fitted.entries
        ]
        print_json(
            {
                "rows": rows,
                "measurements": len(measured),
                "bandwidth_unit": measured.bandwidth_unit,
                "median_abs_error_before": before,
                "median_abs_error": after,
            }
        )
        return
    if not overlay:
        typer.echo(fitted.csv(), nl=False)
    printed = f", printed in {measured.bandwidth_unit}" if measured.bandwidth_unit else ""
    typer.echo(
        f"{len(measured)} measurements{printed}: median error {before:.1%} before, "
        f"{after:.1%} with the fitted rows.",
        err=True,
    )
