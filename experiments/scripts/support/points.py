"""Points of an experiment: independent pieces of its work, run on all cores with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cluster_sim.processes import available_workers, forked
from cluster_sim.progress import Watch, unwatched

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

    >>> each(abs, [1, -2, 3], workers=1)
    [1, 2, 3]
    """
    count = min(workers or available_workers(), len(points))
    with forked(function, points, count) as results:
        return [next(results) for _ in watch(points, task)]
