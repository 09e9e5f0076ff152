"""Memory that kernels and collectives share, for the rank vector: as longer durations.

The rank vector follows clocks, which no other op can slow. So one rank of each stage is run at the
collective level, where ops that contend for memory are flows, and every kernel and call takes as
long in the rank vector as it took there on average.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.trace.trace import run
from topologies.arrays import IntArray
from workloads.training.execution.layout import OWN, Layout, lay_out
from workloads.training.execution.lower import lower
from workloads.training.program.exchanges import Exchange
from workloads.training.program.fold import keep
from workloads.training.program.program import Program, fits_in_memory_rate

APART = 0.01
"""Share of a step by which these durations may miss flows on memory; 0.98 % was the most in 360
random plans, 0.01 % the mean. Without them steps were up to 8.5 % too short."""


def with_shared_memory(program: Program) -> Program:
    """Return the program with the durations that memory leaves to ops which overlap."""
    if not program.memory_bytes_per_s or fits_in_memory_rate(program):
        return program
    few = keep(program, np.unique(program.stage, return_inverse=True)[1])
    times, layout = run(lower(few, memory=True)).times, lay_out(few)
    lasts = times.end_ps - times.start_ps
    both = zip(few.exchanges, program.exchanges, strict=True)
    return replace(
        program,
        step_ps=_kernels(few, layout, lasts),
        exchanges=tuple(_calls(few, layout, lasts, *pair) for pair in both),
    )


def _kernels(few: Program, layout: Layout, lasts: IntArray) -> IntArray:
    """Mean time of each step's kernel where ops last so long [ps]."""
    sums, ops = np.zeros(len(few.steps)), np.zeros(len(few.steps))
    for row, stage in enumerate(few.stage.tolist()):
        step = few.streams[stage].ops.step
        begin = int(layout.offset[row, OWN])
        sums += np.bincount(step, lasts[begin : begin + len(step)], len(sums))
        ops += np.bincount(step, minlength=len(ops))
    mean = np.rint(sums / np.maximum(1, ops)).astype(np.int64)
    kernel = np.array([not step.axis for step in few.steps])
    return np.where(kernel, np.maximum(few.step_ps, mean), few.step_ps)


def _calls(
    few: Program, layout: Layout, lasts: IntArray, exchange: Exchange, whole: Exchange
) -> Exchange:
    """Return an exchange whose calls are longer by the share that they were among few ranks."""
    took = np.zeros(exchange.calls, np.int64)
    for members in exchange.members:
        for row, role in zip(members.tolist(), exchange.role.tolist(), strict=True):
            op = layout.offset[row, OWN] + exchange.ops[role]
            np.maximum(took, lasts[op], out=took)
    alone = exchange.duration_ps[exchange.kind].max(axis=0)
    longer = np.maximum(1.0, took / np.maximum(1, alone))
    return replace(whole, duration_ps=np.rint(whole.duration_ps * longer).astype(np.int64))
