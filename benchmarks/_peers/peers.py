"""The other simulators: what each needs on the path, what it is given, and how close it comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks._peers import astra_sim, loggopsim, simgrid
from benchmarks._peers.work import Work

FLOAT_ERROR, STARTED_MPI_CALL = 1e-9, 1e-5
"""Parts of the time by which floating point, and SMPI's time for a call, may move a result."""
OTHER_ORDER = 0.25
"""Part of the time by which chunks in another order on the links may move a result."""


class Peer(NamedTuple):
    """Another simulator.

    Attributes
    ----------
    name : str
    needs : tuple of str
        Programs that must be on the path.
    suits : function of Work
        Whether it can be given this work, in reasonable time and memory.
    prepare : function of (Work, folder)
        Writes the input files; returns the command to measure.
    simulated_s : function of str
        Simulated time [s], from what the command printed.
    tolerance : function of Work
        Part of the time by which it may differ from ours.
    """

    name: str
    needs: tuple[str, ...]
    suits: Callable[[Work], bool]
    prepare: Callable[[Work, Path], tuple[str, ...]]
    simulated_s: Callable[[str], float]
    tolerance: Callable[[Work], float]

    def missing(self) -> list[str]:
        """Programs that it needs and that are not on the path."""
        return [program for program in self.needs if shutil.which(program) is None]


def _ring(most_hops: int, work: Work) -> bool:
    return work.kind == "all-reduce" and len(work.sides) == 1 and work.hops <= most_hops


def _astra_sim(name: str, binary: str, kinds: tuple[str, ...]) -> Peer:
    return Peer(
        name=name,
        needs=(binary,),
        suits=lambda work: work.kind in kinds and astra_sim.suits(work),
        prepare=partial(astra_sim.prepare, binary),
        simulated_s=astra_sim.simulated_s,
        tolerance=lambda work: OTHER_ORDER if work.kind == "all-to-all" else astra_sim.ROUNDING,
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
