"""``cluster-sim measure-kit``: measurement scripts, whose results ``calibrate`` reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.options.invocation import Invocation
from topologies.options import option

if TYPE_CHECKING:
    from experiments.calibration.kit import Manifest


@dataclass(frozen=True)
class KitInputs:
    """Folder and chip of a kit."""

    folder: Path = field(
        metadata=option("A new folder for the scripts and results", metavar="DIR", argument=True)
    )
    chip: str = field(
        metadata=option("Chip to measure: trn1, trn2, trn3 or a GPU such as h200", metavar="CHIP")
    )


def measure_kit(inputs: KitInputs, call: Invocation) -> None:
    """Write the scripts that an owner of hardware runs.

    The scripts time matrix products, attention, element-wise work, launches, copies, collectives
    and training steps with public tools. `calibrate DIR` reads their results.
    """
    from experiments.calibration.kit import write_kit

    manifest = write_kit(inputs.folder, inputs.chip)
    call.answer(
        lambda: asdict(manifest),
        lambda: _print(manifest, inputs.folder),
        lambda run: run.json("manifest", asdict(manifest), title="Manifest of the kit"),
    )


def _print(manifest: Manifest, folder: Path) -> None:
    print(f"{len(manifest.files)} files for {manifest.chip} in {folder}.")
    print(f"On the machine: sh {folder}/run_all.sh (KIT_QUICK=1 tries it in a minute)")
    print(f"Then, anywhere: cluster-sim calibrate {folder} --overlay mine.csv")
