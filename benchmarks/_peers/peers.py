"""The other simulators: programs that each needs, work that it can run, and its tolerance."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks._peers import astra_sim, loggopsim, simgrid
from benchmarks._peers.step import Step
from benchmarks._peers.work import Work

FLOAT_ERROR, STARTED_MPI_CALL = 1e-9, 1e-5
"""Shares of the time by which floating point, and SMPI's time for a call, may change a result."""
OTHER_ORDER = 0.25
"""Share of the time by which another order of chunks on the links may change a result."""


class Peer(NamedTuple):
    """Another simulator."""

    name: str
    needs: tuple[str, ...]  # programs that must be on the path
    # Returns whether the simulator can run this work in reasonable time and memory
    suits: Callable[[Work], bool]
    # Writes the input files, and returns the command to measure
    prepare: Callable[[Work, Path], tuple[str, ...]]
    simulated_s: Callable[[str], float]  # reads the simulated time from the command's output [s]
    # Returns the share of the time by which the result may differ from ours
    tolerance: Callable[[Work], float]
    # Writes the input files of a training step, and returns the command to measure. Without it the
    # simulator runs collectives alone
    prepare_step: Callable[[Step, Path], tuple[str, ...]] | None = None

    def missing(self) -> list[str]:
        """Programs that the simulator needs and that are not on the path."""
        return [program for program in self.needs if shutil.which(program) is None]


def _ring(most_hops: int, work: Work) -> bool:
    """Return whether work is a ring all-reduce of at most so many messages."""
    return work.kind == "all-reduce" and len(work.sides) == 1 and work.hops <= most_hops


def _astra_sim(name: str, binary: str, kinds: tuple[str, ...]) -> Peer:
    return Peer(
        name=name,
        needs=(binary,),
        suits=lambda work: work.kind in kinds and astra_sim.suits(work),
        prepare=partial(astra_sim.prepare, binary),
        simulated_s=astra_sim.simulated_s,
        tolerance=lambda work: OTHER_ORDER if work.kind == "all-to-all" else astra_sim.ROUNDING,
        prepare_step=partial(astra_sim.prepare_step, binary),
    )


PEERS = (
    _astra_sim("ASTRA-sim, aware", astra_sim.AWARE, ("all-reduce", "all-to-all")),
    _astra_sim("ASTRA-sim, unaware", astra_sim.UNAWARE, ("all-reduce",)),
    Peer(
        name="LogGOPSim",
        needs=(loggopsim.BINARY, loggopsim.CONVERTER),
        suits=lambda work: work.kind == "all-reduce" and work.hops <= loggopsim.MOST_HOPS,
        prepare=loggopsim.prepare,
        simulated_s=loggopsim.simulated_s,
        tolerance=lambda _: FLOAT_ERROR,
    ),
    Peer(
        name="SimGrid, S4U",
        needs=("c++", "smpicc"),  # the latter comes with the library's headers
        suits=partial(_ring, 2_500_000),
        prepare=simgrid.prepare_s4u,
        simulated_s=simgrid.simulated_s,
        tolerance=lambda _: FLOAT_ERROR,
    ),
    Peer(
        name="SimGrid, SMPI",
        needs=("smpicc", "smpirun"),
        suits=partial(_ring, 600_000),
        prepare=simgrid.prepare_smpi,
        simulated_s=simgrid.simulated_s,
        tolerance=lambda _: STARTED_MPI_CALL,
    ),
)
