"""Provenance of the times of an iteration: the worst grade among the inputs of each kind."""

from __future__ import annotations

from topologies.catalogue.catalogue import Catalogue
from workloads.kernels.chip_share import worst
from workloads.training.program.program import Program

KERNELS = {
    "gemm": (
        "attention.qkv", "attention.out", "mlp.up", "mlp.down", "output.logits", "attention.down",
        "attention.queries", "attention.keys-values", "experts.up", "experts.down", "shared.up",
        "shared.down", "router.logits",
    ),
    "attention": ("attention.core",),
    "elementwise": (
        "attention.norm", "attention.residual", "attention.rotate", "attention.compressed.norm",
        "mlp.norm", "mlp.residual", "mlp.activation", "experts.activation", "shared.activation",
        "router.choice", "output.norm", "loss",
    ),
    "optimizer": ("norm.squares", "optimizer.step"),
}  # fmt: skip
"""Beginnings of the names of kernels of each kind; a backward kernel's name has the same one."""
AGAIN = ("again.", "gradient.")
"""Prefixes of the names of kernels that run again, or whose gradient is like the kernel itself."""
LINKS = {"measured": "measured", "derived": "extrapolated"}
"""Grade of the times of collectives by the grade of the links' efficiency; others are assumed."""


def provenance(program_kernels: Program, catalogue: Catalogue, chip: str) -> dict[str, str]:
    """Return the provenance of the times of kernels by kind, and of collectives."""
    grades = {kind: _worst(program_kernels, names) for kind, names in KERNELS.items()}
    stated = catalogue.has(chip, "collective_efficiency")
    grade = catalogue.entry(chip, "collective_efficiency").grade if stated else "assumed"
    return {**grades, "collectives": LINKS.get(grade, "assumed")}


def _worst(program: Program, names: tuple[str, ...]) -> str:
    """Worst grade of the kernels whose names begin with ``names``; assumed if there is none."""
    graded = [
        step.provenance
        for step in program.steps
        if step.provenance and _without_prefix(step.name).startswith(names)
    ]
    return worst(*graded) if graded else "assumed"


def _without_prefix(name: str) -> str:
    for prefix in AGAIN:
        name = name.removeprefix(prefix)
    return name
