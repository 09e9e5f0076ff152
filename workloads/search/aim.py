"""``Aim``: the measure that a search for plans optimises, and the extent of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from topologies.errors import InputError, suggestion

TOP = 10  # plans that the list of results shows
SIMULATED = 2  # plans that are simulated for each plan that the list shows
OBJECTIVES = ("time", "cost", "energy")
MOST_MARGIN = 0.9


@dataclass(frozen=True)
class Aim:
    """Measure that a search for plans optimises, and the extent of the search."""

    # ("time", "cost", "energy"): measure by which the simulated plans are ranked. On one cluster at
    # one price the cost is proportional to time; energy also depends on whether chips compute or
    # wait.
    objective: str = "time"
    finalists: int = SIMULATED * TOP  # number of the best estimates that are simulated in full
    # Fields of a plan. Of plans that agree in all of these fields only the one with the best
    # estimate is simulated; ``("tp", "pp")`` gives a plan for each way to divide the model.
    # ``overlap`` is varied only if it is among them.
    each: Sequence[str] = ()
    memory_margin: float = 0.0  # share of a rank's memory that a plan must leave free
    # Processes that simulate finalists in parallel; 0 for two on large clusters, else one
    processes: int = 0
    lnc: int | None = None  # physical cores of a logical core of Trainium

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            near = suggestion(str(self.objective), OBJECTIVES)
            raise InputError(
                f"objective {self.objective!r} is none of {', '.join(OBJECTIVES)}.{near}"
            )
        if isinstance(self.finalists, bool) or self.finalists < 1:
            raise InputError(
                f"finalists is {self.finalists}; at least one plan must be simulated. Use 20."
            )
        if not 0 <= self.memory_margin <= MOST_MARGIN:
            raise InputError(
                f"memory margin {self.memory_margin:g} is outside 0 to {MOST_MARGIN}: a share of a "
                "rank's memory, such as 0.1."
            )


class AimFields(TypedDict, total=False):
    """Fields of :class:`Aim` as keyword arguments, for type checkers."""

    objective: str
    finalists: int
    each: Sequence[str]
    memory_margin: float
    processes: int
    lnc: int | None
