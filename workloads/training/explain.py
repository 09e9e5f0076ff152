"""Explanation of an iteration: its kernels and collectives, the inputs behind it, its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cluster_sim.plot.perfetto import MOST_CHIPS, Counter, counter
from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray
from workloads.training.iteration import Iteration
from workloads.training.layers.steps import LayerOp
from workloads.training.memory.memory import chunk_activations, memory, stack_of
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import chunk_layers


def step_table(run: Iteration) -> list[dict[str, Any]]:
    """Return every kernel and collective of every stage, the longest total time first."""
    # Returns ``stage``, ``step``, ``what`` (the category); ``calls`` on one rank; ``call_s``,
    # ``total_s`` [s]; of a communication its ``operation``, the ``size_bytes`` of a rank's buffer
    # [B] and the ``ranks`` that take part; ``provenance`` of the time.
    program = run.program
    rows: list[dict[str, Any]] = []
    for stage, stream in enumerate(program.streams):
        numbers, calls = np.unique(stream.ops.step, return_counts=True)
        for number, count in zip(numbers.tolist(), calls.tolist(), strict=True):
            step = program.steps[number]
            if step.axis:
                call_s = _communication_s(run, stage, number)
            else:
                call_s = program.step_ps[number] / PS_PER_S
            rows.append(
                {
                    "stage": stage,
                    "step": step.name,
                    "what": step.what,
                    "calls": count,
                    "call_s": call_s,
                    "total_s": count * call_s,
                    "operation": step.collective,
                    "size_bytes": step.size_bytes,
                    "ranks": _ranks(run.plan, step),
                    "provenance": step.provenance or run.provenance["collectives"],
                }
            )
    return sorted(rows, key=lambda row: -row["total_s"])


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


def input_table(run: Iteration) -> list[dict[str, Any]]:
    """Return the catalogue's numbers behind the times, each with its value, grade and source."""
    rows = [row for cluster in run.joined.clusters for row in _inputs(cluster)]
    return list({tuple(row.values()): row for row in rows}.values())


def _inputs(cluster: Cluster) -> list[dict[str, Any]]:
    catalogue, chip = cluster.numbers, cluster.chip
    wanted = [(chip, name) for name in catalogue.quantities(chip) if name in _CHIP]
    kernels = chip_family(chip, catalogue).kernels
    wanted += [(kernels, name) for name in _read_for(chip, catalogue, kernels)]
    if cluster.scale_out and cluster.scale_out.name in catalogue.parts():
        fabric = cluster.scale_out.name
        wanted += [(fabric, name) for name in catalogue.quantities(fabric) if name in _FABRIC]
    wanted += [("training", name) for name in _read_for(chip, catalogue, "training")]
    entries = [catalogue.entry(*row) for row in wanted]
    return [
        {
            "part": entry.part,
            "quantity": entry.quantity,
            "value": entry.written,
            "grade": entry.grade,
            "source": entry.source,
            "note": entry.note,
        }
        for entry in entries
    ]


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


# Memory in use over the time of a simulated step: a constant part, and kept activations.


def memory_in_use(run: Iteration, trace: Trace) -> list[Counter]:
    """Return the memory in use of each simulated rank, as a counter of its chip."""
    # Weights, gradients and optimizer states are in memory throughout the step. The activations of
    # a microbatch in a chunk of layers are in memory from the start of its first op there to the
    # end of its last. Buffers and fragments, which exist only for a moment, are not counted.
    labels, model, plan = trace.schedule.labels, run.model, run.plan
    if any(name not in labels for name in ("rank", "stage", "layer", "microbatch")):
        return []
    rank, stage, layer, microbatch = (
        np.asarray(labels[name]) for name in ("rank", "stage", "layer", "microbatch")
    )
    ran = (trace.times.start_ps >= 0) & (trace.times.end_ps > trace.times.start_ps)
    in_use = []
    for number in np.unique(rank[ran])[:MOST_CHIPS].tolist():
        of_rank = np.flatnonzero((rank == number) & ran)
        its_stage = int(stage[of_rank[0]])
        cluster = run.joined.of_stage(its_stage)
        catalogue = cluster.numbers
        stack, kept = stack_of(catalogue), memory(model, plan, its_stage, catalogue, cluster.chip)
        constant = kept.weights + kept.gradients + kept.optimizer
        chunks = chunk_layers(model, plan, its_stage)
        sizes = [chunk_activations(model, plan, its_stage, k, stack) for k in range(plan.vpp)]
        passes = of_rank[(layer[of_rank] >= 0) & (microbatch[of_rank] >= 0)]
        start, end, chunk = _spans(trace, passes, layer, microbatch, chunks)
        held = np.concatenate([[constant], np.array(sizes, np.float64)[chunk]])
        spans = np.append(0, start), np.append(trace.total_ps, end)
        owner = int(trace.schedule.resources.owner[trace.schedule.resource[of_rank].max()])
        name = f"memory in use, rank {number}"
        in_use.append(counter(name, "B", *spans, held, chip=owner))
    return in_use


def _spans(
    trace: Trace, op: IntArray, layer: IntArray, microbatch: IntArray, chunks: Sequence[IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Start, end [ps] and chunk of each microbatch's activations in each chunk of layers."""
    chunk_of = np.full(max(int(chunk.max(initial=-1)) for chunk in chunks) + 1, -1, np.int64)
    for number, layers in enumerate(chunks):
        chunk_of[layers] = number
    pair = microbatch[op].astype(np.int64) * len(chunks) + chunk_of[layer[op]]
    pairs, place = np.unique(pair, return_inverse=True)
    start = np.full(len(pairs), np.iinfo(np.int64).max)
    end = np.zeros(len(pairs), np.int64)
    np.minimum.at(start, place, trace.times.start_ps[op])
    np.maximum.at(end, place, trace.times.end_ps[op])
    return start, end, pairs % len(chunks)
