"""Columns with the ends of the intervals of an experiment's times."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from topologies.clusters.cluster import Cluster
    from workloads.training.iteration import Iteration


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
    from workloads.confidence.answers import collective_interval

    calls = zip(*(frame[name].tolist() for name in ("ranks", "size_bytes", "time_s")), strict=True)
    ends = [collective_interval(cluster, *call, ideal=ideal) for call in calls]
    return frame.assign(low_s=[end.low for end in ends], high_s=[end.high for end in ends])
