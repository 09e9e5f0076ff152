"""``python -m tools.ship_cycles FILE.csv``: rebuilds the table of cycles that is shipped."""

from __future__ import annotations

import csv
import itertools
import sys

import numpy as np

from cluster_sim.collectives.algorithms.cycles import Grid, find


def shipped_boxes() -> list[Grid]:
    """List the boxes of sides 1, 2 and 4 in a 4x4x4 torus, with equal rates or half on one axis."""
    boxes = []
    for sizes, rates in itertools.product(
        itertools.product((1, 2, 4), repeat=3), ((1, 2, 2), (1, 1, 1))
    ):
        used = [units for size, units in zip(sizes, rates, strict=True) if size > 1]
        kept = tuple(size for size in sizes if size > 1)
        if kept:
            units = tuple(rate // min(used) for rate in used)
            boxes.append(Grid(kept, tuple(size == 4 for size in kept), units))
    return sorted(set(boxes), key=lambda box: (box.chips, box.sizes, box.units))


def main(path: str) -> None:
    """Search all shipped boxes and write the table of cycles."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sizes", "wraps", "units", "both_ways", "order"])
        for box in shipped_boxes():
            cycles = find(box, np.random.default_rng(0))
            for order in cycles.orders.tolist():
                writer.writerow(
                    [
                        "x".join(map(str, box.sizes)),
                        "x".join(str(int(wrap)) for wrap in box.wraps),
                        "x".join(map(str, box.units)),
                        int(cycles.both_ways),
                        " ".join(map(str, order)),
                    ]
                )


if __name__ == "__main__":
    main(sys.argv[1])
