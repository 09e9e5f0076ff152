"""Explanation of an iteration: the time of each kernel and collective, and the inputs behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.files.table import Table
from workloads.kernels.chip_share import family
from workloads.training.iteration import Iteration
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    import pandas as pd


def steps(run: Iteration) -> pd.DataFrame:
    """Return every kernel and collective of every stage; columns as in :func:`step_table`."""
    return step_table(run).frame()


def step_table(run: Iteration) -> Table:
    """Return every kernel and collective of every stage, those with the longest total time first.

    Returns ``stage``, ``step``, ``what`` (the category); ``calls`` on one rank; ``call_s``,
    ``total_s`` [s]; of a communication its ``operation``, the ``size_bytes`` of a rank's buffer [B]
    and the ``ranks`` that take part; ``provenance`` of the time.
    """
    program = run.program
    rows = []
    for stage, stream in enumerate(program.streams):
        numbers, calls = np.unique(stream.ops.step, return_counts=True)
        for number, count in zip(numbers.tolist(), calls.tolist(), strict=True):
            step = program.steps[number]
            if step.axis:
                call_s = _communication_s(run, stage, number)
            else:
                call_s = program.step_ps[number] / PS_PER_S
            rows.append(_row(run, stage, step, count, call_s))
    return Table.of_rows(sorted(rows, key=lambda row: -row["total_s"]))


def _row(run: Iteration, stage: int, step: LayerOp, calls: int, call_s: float) -> dict[str, Any]:
    return {
        "stage": stage,
        "step": step.name,
        "what": step.what,
        "calls": calls,
        "call_s": call_s,
        "total_s": calls * call_s,
        "operation": step.collective,
        "size_bytes": step.size_bytes,
        "ranks": _ranks(run.plan, step),
        "provenance": step.provenance or run.provenance["collectives"],
    }


def _ranks(plan: ParallelPlan, step: LayerOp) -> int:
    if step.collective in ("", "send"):
        return 1
    groups = {
        "tp": plan.tp,
        "cp": plan.cp,
        "dp": plan.replicas,
        "etp": plan.expert_tp,
        "ep": plan.ep,
        "edp": plan.expert_replicas,
        "norm": plan.norm_ranks,
    }
    return groups.get(step.axis, 2)


def _communication_s(run: Iteration, stage: int, number: int) -> float:
    """Duration of the communication step of this number in the slowest group of a stage [s]."""
    program = run.program
    step = program.streams[stage].ops.step
    slowest_ps = 0
    for exchange in program.exchanges:
        for role in program.roles(exchange):
            if role.stage == stage:
                calls = step[role.ops] == number
                slowest_ps = max(slowest_ps, int(exchange.duration_ps[:, calls].max(initial=0)))
    return slowest_ps / PS_PER_S


def inputs(run: Iteration) -> pd.DataFrame:
    """Return the catalogue's numbers behind the times; columns as in :func:`input_table`."""
    return input_table(run).frame()


def input_table(run: Iteration) -> Table:
    """Return the catalogue's numbers behind the times, each with its value, grade and source."""
    catalogue: Catalogue = run.cluster.catalogue or shipped_catalogue()
    chip = run.cluster.chip
    wanted = [(chip, name) for name in catalogue.quantities(chip) if name in _CHIP]
    kernels = f"kernels.{family(chip, catalogue).name}"
    wanted += [(kernels, name) for name in _read_for(chip, catalogue, kernels)]
    if run.cluster.scale_out and run.cluster.scale_out.name in catalogue.parts():
        fabric = run.cluster.scale_out.name
        wanted += [(fabric, name) for name in catalogue.quantities(fabric) if name in _FABRIC]
    wanted += [("training", name) for name in _read_for(chip, catalogue, "training")]
    entries = [catalogue.entry(*row) for row in wanted]
    return Table(
        {
            "part": [entry.part for entry in entries],
            "quantity": [entry.quantity for entry in entries],
            "value": [entry.written for entry in entries],
            "grade": [entry.grade for entry in entries],
            "source": [entry.source for entry in entries],
            "note": [entry.note for entry in entries],
        }
    )


def _read_for(chip: str, catalogue: Catalogue, part: str) -> list[str]:
    """Quantities of a part that hold for a chip."""
    # A quantity whose name ends with a chip, such as ``scheduling_trn2``, is read for that chip
    # alone and replaces the general one, ``scheduling``.
    names = catalogue.quantities(part)
    chips = [other for other in catalogue.parts() if catalogue.has(other, "family")]
    other_chips = tuple(f"_{other}" for other in chips if other != chip)
    return [
        name for name in names if not name.endswith(other_chips) and f"{name}_{chip}" not in names
    ]


_CHIP = (
    "bf16_peak", "bf16_matmul", "fp8_peak", "fp8_matmul", "hbm_bytes", "hbm_usable_bytes",
    "hbm_bandwidth", "link_bandwidth", "z_link_bandwidth", "link_latency", "collective_step",
    "collective_launch", "collective_efficiency", "hbm_in_collectives", "nic_bandwidth",
)  # fmt: skip
"""Quantities of a chip that the times of a step depend on."""
_FABRIC = ("step_latency", "efficiency", "oversubscription", "port_bandwidth", "radix")
"""Quantities of the network between servers that the times of a step depend on."""
