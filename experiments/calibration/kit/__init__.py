"""Measurement kit for owners of hardware: scripts, command lines and a manifest in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.support.errors import InputError, suggestion
from topologies.support.files.reading import read_text
from topologies.support.files.writing import whole_files

SCRIPTS = ("common", "products", "elementwise", "attention", "launches", "copies", "layer", "step")
"""Python scripts that both flavours have; ``backend`` differs between them."""
SERVED = ("models", "decode")
"""Scripts that only GPUs have: models of the Hub by transformers, and a served decoder."""
SERVED_ROWS = """\
| `models.py` | training steps of models of the Hub, by transformers and peft |
| `decode.py` | prefill and decode of Llama-3.1-8B in static batches |
"""
MANIFEST = "manifest.json"
LARGEST_MANIFEST_BYTES = 1_000_000
NEURON_MACHINES = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge", "trn3": "trn3-gen1"}
"""Trainium chips, and the machine on which their collectives are measured by default."""
FEWEST_CHIPS = {"trn1": "trn1.2xlarge", "trn2": "trn2.3xlarge"}
"""Machines with the fewest chips of a kind, where they are others."""
MEASURED = ("h100", "h200")  # chips on which the scripts have run
GPU_MACHINES = {
    "a100-40gb": "dgx-a100-40gb",
    "a100-80gb": "dgx-a100",
    "h100": "dgx-h100",
    "h200": "dgx-h200",
    "b200": "dgx-b200",
    "gb200": "gb200-nvl72",
}


@dataclass(frozen=True)
class Manifest:
    """Record of a kit's chip and machine in its folder."""

    chip: str
    flavour: str
    cluster: str  # machine on which collectives and steps are measured
    # ranks_per_chip, cores: logical cores of a chip; physical cores of a logical core
    ranks_per_chip: int
    cores: int
    files: tuple[str, ...] = ()


def manifest_for(chip: str) -> Manifest:
    """Return the manifest of a chip's kit.

    >>> manifest_for("trn2").ranks_per_chip, manifest_for("h200").flavour
    (4, 'cuda')
    """
    if chip in NEURON_MACHINES:
        catalogue = shipped_catalogue()
        ranks = catalogue.integer(chip, "ranks_per_chip")
        cores = catalogue.integer(chip, "cores") // ranks
        return Manifest(chip, "neuron", NEURON_MACHINES[chip], ranks, cores)
    if chip in GPU_MACHINES:
        return Manifest(chip, "cuda", GPU_MACHINES[chip], 1, 1)
    chips = (*NEURON_MACHINES, *GPU_MACHINES)
    raise InputError(
        f"there is no kit for chip {chip[:40]!r}; there are {', '.join(chips)}."
        + suggestion(chip, chips)
    )


def kit_files(manifest: Manifest) -> dict[str, str]:
    """Text of every file of a kit by its name, the manifest included."""
    flavour, replacements = manifest.flavour, _replacements(manifest)
    names = {f"{name}.py": f"{name}.py" for name in SCRIPTS}
    names["backend.py"] = f"backend_{flavour}.py"
    names["collectives.sh"] = f"collectives_{flavour}.sh"
    names["run_all.sh"] = f"run_all_{flavour}.sh"
    names["README.md"] = "README.md"
    if flavour == "cuda":
        names |= {f"{name}.py": f"{name}.py" for name in SERVED}
    if flavour == "neuron":
        names["loaded.sh"] = "loaded.sh"
    folder = files("experiments.calibration.kit") / "scripts"
    texts = {}
    for name, source in sorted(names.items()):
        text = (folder / f"{source}.in").read_text(encoding="utf-8")
        for word, value in replacements.items():
            text = text.replace(f"@{word}@", value)
        texts[name] = text
    document = {"kit": 1, **asdict(manifest), "files": sorted(texts)}
    texts[MANIFEST] = json.dumps(document, indent=1) + "\n"
    return texts


def _replacements(manifest: Manifest) -> Mapping[str, str]:
    """Values of the words between ``@`` in the templates."""
    ranks, neuron = manifest.ranks_per_chip, manifest.flavour == "neuron"
    return {
        "CHIP": manifest.chip,
        "CLUSTER": FEWEST_CHIPS.get(manifest.chip, manifest.cluster),
        "CORES": str(manifest.cores),
        "RANKS": str(ranks),
        "TWO_CHIPS": str(2 * ranks),
        "FOUR_CHIPS": str(4 * ranks),
        "SERVER": str(16 * ranks),
        "NEEDS": "torch-neuronx and aws-neuronx-tools" if neuron else "PyTorch and nccl-tests",
        "TOOL": "nccom-test" if neuron else "nccl-tests",
        "GRAPHS": "" if neuron else "A batch of calls is one CUDA graph where it can be. ",
        "SERVED": "" if neuron else SERVED_ROWS,
        "TRIED": _tried(manifest.chip),
        "LOADED": ", alone and (`loaded.sh`) with the chip loaded" if neuron else "",
    }


def _tried(chip: str) -> str:
    """Sentence of a kit's page on where its scripts have run."""
    if chip in MEASURED:
        return (
            "All scripts but those of collectives ran on one H100 and one H200 on 2026-11-28, in "
            "five minutes each\nwith `KIT_SECONDS=0.1`, the last model to be compiled cut off; "
            "they measured the tables `hopper_kernels`, `hopper_steps` and `hopper_decode`."
        )
    return (
        "These scripts were tried on a processor (`KIT_DEVICE=cpu`, GPU flavour) and have not been "
        "run on this chip by their\nauthors."
    )


def write_kit(folder: Path, chip: str) -> Manifest:
    """Write the kit of a chip into a folder that is new or empty."""
    described = manifest_for(chip)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not an empty folder. Name a new one.")
    texts = kit_files(described)
    with whole_files(folder) as part:
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")
    return replace(described, files=tuple(sorted(texts)))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a kit's folder."""
    path = folder / MANIFEST
    try:
        document = json.loads(read_text(path, limit_bytes=LARGEST_MANIFEST_BYTES))
        return manifest_for(str(document["chip"]))
    except (OSError, ValueError, KeyError, TypeError) as mistake:
        raise InputError(
            f"{folder} is not the folder of a kit: {MANIFEST} cannot be read "
            f"({_why(mistake)}). Write one with measure-kit."
        ) from None


def _why(mistake: Exception) -> str:
    if isinstance(mistake, KeyError | TypeError):
        return "it names no chip"
    return " ".join(str(mistake).split()).rstrip(".")[:200]
