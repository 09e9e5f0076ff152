"""Points of an experiment: independent pieces of its work, run on all cores with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cluster_sim.processes import available_workers, forked
from cluster_sim.progress import Watch, unwatched
from topologies.clusters.cluster import Cluster
from workloads.confidence.answers import collective_interval
from workloads.training.iteration import Iteration

if TYPE_CHECKING:
    import pandas as pd


Point = TypeVar("Point")
Result = TypeVar("Result")


def each(
    function: Callable[[Point], Result],
    points: Sequence[Point],
    watch: Watch = unwatched,
    *,
    task: str = "points",
    workers: int | None = None,
) -> list[Result]:
    """Return what a function gives for every point, in the order of the points.

    ``function``: its results must be picklable, and must not depend on earlier points. ``watch``:
    shows the progress, such as a bar; nothing by default. ``task``: word for the points beside the
    bar. ``workers``: number of processes, by default one for each core, where processes can be
    forked (:func:`cluster_sim.processes.can_fork`). Results do not depend on it.
    """
    count = min(workers or available_workers(), len(points))
    with forked(function, points, count) as results:
        return [next(results) for _ in watch(points, task)]


def step_ends(step: Iteration) -> dict[str, float]:
    """Ends ``low_s`` and ``high_s`` of the interval of a step's time [s]."""
    ends = step.interval
    return {"low_s": ends.low, "high_s": ends.high}


def with_collective_ends(
    frame: pd.DataFrame, cluster: Cluster, *, ideal: bool = False
) -> pd.DataFrame:
    """Add ``low_s`` and ``high_s`` to rows of :func:`cluster_sim.collectives.rows` [s].

    ``frame``: rows of one cluster, with ``ranks``, ``size_bytes`` and ``time_s``. ``ideal``:
    whether the times are those of the α–β model, whose interval is a point.
    """
    calls = zip(*(frame[name].tolist() for name in ("ranks", "size_bytes", "time_s")), strict=True)
    ends = [collective_interval(cluster, *call, ideal=ideal) for call in calls]
    return frame.assign(low_s=[end.low for end in ends], high_s=[end.high for end in ends])
