"""One program of several jobs, whose ranks run side by side and meet on links only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import IntArray
from workloads.training.program.program import Program
from workloads.training.program.shared_memory import Draws


def together(programs: Sequence[Program]) -> Program:
    """Return the program of several jobs on one cluster; ``rank`` is counted through all of them.

    Stages, steps and ranks of each job follow those of the job before. Nothing else changes, so
    that ranks of different jobs never wait for each other.
    """
    streams, exchanges = [], []
    for program, steps, rows in zip(
        programs,
        _starts([len(each.steps) for each in programs]),
        _starts([len(each) for each in programs]),
        strict=True,
    ):
        for stream in program.streams:
            streams.append(replace(stream, ops=replace(stream.ops, step=stream.ops.step + steps)))
        for exchange in program.exchanges:
            exchanges.append(replace(exchange, members=exchange.members + rows))
    return Program(
        steps=tuple(step for program in programs for step in program.steps),
        step_ps=np.concatenate([program.step_ps for program in programs]),
        streams=tuple(streams),
        stage=job_stages(programs),
        rank=np.arange(sum(map(len, programs))),
        **{
            name: np.concatenate([getattr(program, name) for program in programs])
            for name in ("domain", "chip", "core", "count")
        },
        exchanges=tuple(exchanges),
        draws=Draws(
            *(
                np.concatenate(column)
                for column in zip(*(program.draws for program in programs), strict=True)
            )
        ),
        memory_bytes_per_s=0,
        facts=programs[0].facts[1:],
    )


def job_stages(programs: Sequence[Program]) -> IntArray:
    """Return the stage of each row, counted through all jobs."""
    starts = _starts([len(program.streams) for program in programs])
    return np.concatenate(
        [program.stage + start for program, start in zip(programs, starts, strict=True)]
    )


def _starts(lengths: Sequence[int]) -> list[int]:
    """Return where each part begins when parts of these lengths follow one another."""
    return [0, *np.cumsum(lengths)[:-1].tolist()]
