"""One program of several jobs, whose ranks run side by side and meet on links only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import IntArray
from workloads.training.program.program import Exchange, Program
from workloads.training.program.shared_memory import Draws
from workloads.training.program.stage import Stream


def together(programs: Sequence[Program]) -> Program:
    """Return the program of several jobs on one cluster; ``rank`` is counted through all of them.

    Stages, steps and ranks of each job follow those of the job before. Nothing else changes, so
    that ranks of different jobs never wait for each other.
    """
    streams, exchanges, stage = list[Stream](), list[Exchange](), list[IntArray]()
    steps = rows = 0
    for program in programs:
        stage.append(program.stage + len(streams))
        for stream in program.streams:
            streams.append(replace(stream, ops=replace(stream.ops, step=stream.ops.step + steps)))
        for exchange in program.exchanges:
            exchanges.append(replace(exchange, members=exchange.members + rows))
        steps, rows = steps + len(program.steps), rows + len(program)
    drawn = zip(*(program.draws for program in programs), strict=True)
    return Program(
        steps=tuple(step for program in programs for step in program.steps),
        step_ps=np.concatenate([program.step_ps for program in programs]),
        streams=tuple(streams),
        stage=np.concatenate(stage),
        rank=np.arange(rows),
        **{
            name: np.concatenate([getattr(program, name) for program in programs])
            for name in ("domain", "chip", "core", "count")
        },
        exchanges=tuple(exchanges),
        draws=Draws(*(np.concatenate(column) for column in drawn)),
        memory_bytes_per_s=0,
        facts=programs[0].facts[1:],
    )
