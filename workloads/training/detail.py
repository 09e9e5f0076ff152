"""Detail of a simulated step, and what disturbs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy.typing as npt

from cluster_sim.hardware.fault_text import Fault
from cluster_sim.trace.trace import ENGINES
from topologies.errors import InputError, suggestion
from workloads.training.execution.jitter import Disturbance

LEVELS = ("auto", "chunk", "flow", "collective", "rank-vector")


@dataclass(frozen=True, eq=False)
class Detail:
    """Detail of a simulated step, and what disturbs it."""

    # ("auto", "chunk", "flow", "collective", "rank-vector"): unit in which communication is
    # simulated. ``collective`` runs each collective as one op; ``chunk`` writes out its messages
    # for all ranks; ``flow`` lets collectives share the bandwidth of links, each as one flow;
    # ``rank-vector`` keeps no trace, only the times of all ranks. ``auto`` takes the rank vector
    # when more than 1,024 different ranks are run and no fault strikes, else ``collective``
    level: str = "auto"
    # ("fast", "reference"): the compiled engine, or the one in SimPy, which is slower and equal to
    # the picosecond
    engine: str = "fast"
    folded: bool = True  # simulate ranks that do the same once. The times are the same either way.
    iterations: int = 1  # optimizer steps in a row, which overlap where the plan lets them
    # Resources that slow down or die; the ranks that they strike are not folded
    faults: Sequence[Fault] = ()
    # Jitter and stragglers. With jitter every rank is simulated; stragglers are not folded.
    disturbed: Disturbance | None = None
    # (chips of the plan,): chip that holds the first ranks, the chip that holds the next, and so
    # on; ascending by default
    chips: npt.ArrayLike | None = None
    allow_oversized: bool = False  # run a plan that does not fit in memory
    partial: bool = False  # allow a plan that leaves chips of the cluster idle
    # Keep the start and end of every op. Without them, ``auto`` takes the rank vector wherever it
    # gives the times of the compiled engine sooner.
    trace: bool = True

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            near = suggestion(str(self.level), LEVELS)
            raise InputError(f"level {self.level!r} is none of {', '.join(LEVELS)}.{near}")
        if self.engine not in ENGINES:
            near = suggestion(self.engine, ENGINES)
            raise InputError(f"engine {self.engine!r} is none of {', '.join(ENGINES)}.{near}")
        if isinstance(self.iterations, bool) or not 1 <= self.iterations <= MOST_ITERATIONS:
            raise InputError(
                f"iterations is {self.iterations!r}; it must be a whole number from 1 to "
                f"{MOST_ITERATIONS:,}."
            )


MOST_ITERATIONS = 1000  # largest number of optimizer steps in a row


class DetailFields(TypedDict, total=False):
    """Fields of :class:`Detail` as keyword arguments, for type checkers."""

    level: str
    engine: str
    folded: bool
    iterations: int
    faults: Sequence[Fault]
    disturbed: Disturbance | None
    chips: npt.ArrayLike | None
    allow_oversized: bool
    partial: bool
    trace: bool
