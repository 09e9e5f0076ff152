"""Comparison of ``auto`` with ``best`` near the lengths at which Trainium's runtime switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cluster_sim.collectives import Group
    from experiments.cli.commands.collective.groups import Measure
    from experiments.cli.commands.collective.inputs import CollectiveInputs


def beside_best(
    row: dict[str, Any],
    inputs: CollectiveInputs,
    groups: Sequence[Group],
    measure_best: Callable[[], Measure],
) -> dict[str, Any]:
    """Add the choice of ``best`` to a row of ``auto`` that is slower near a switch of the runtime.

    The row gets ``switches``, the algorithms that ``auto`` takes at lengths near its own,
    ``best_algorithm`` and ``best_time_s`` [s]. Other rows are returned as they are.
    """
    from cluster_sim.collectives import KINDS, CollectiveCall
    from cluster_sim.collectives.algorithms.registry import switched

    if inputs.algorithm != "auto" or inputs.op not in KINDS or inputs.fault:
        return row
    near = switched(CollectiveCall(inputs.op, groups[0], row["size_bytes"]))
    if len(near) == 1:
        return row
    best, _ = measure_best()(row["size_bytes"])
    if best["time_s"] >= row["time_s"]:
        return row
    named = {"best_algorithm": best["algorithm"], "best_time_s": best["time_s"]}
    return {**row, "switches": list(near), **named}


def tell_switches(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a remark on every row that is slower than necessary by the runtime's choice."""
    from topologies.units import format_bytes, format_seconds

    for row in rows:
        if row.get("best_time_s") is not None:  # rows beside measurements all have the column
            other = " or ".join(name for name in row["switches"] if name != row["algorithm"])
            click.echo(
                f"{format_bytes(row['size_bytes'])}: the Neuron runtime takes {row['algorithm']} "
                f"by the length of the buffer, and {other} at lengths near it. --algorithm best: "
                f"{row['best_algorithm']}, {format_seconds(row['best_time_s'])}."
            )
