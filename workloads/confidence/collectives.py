"""Interval of the time of a collective, which reads no residual where no machine is simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.confidence.interval import Interval

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster


def collective_interval(
    cluster: Cluster,
    ranks: int,
    size_bytes: int,
    seconds: float,
    *,
    ideal: bool = False,
    tool: str = "",
    crosses: bool | None = None,
) -> Interval:
    """Interval of the predicted time of a collective [s].

    A plain shape, or a machine run as ``ideal``, is the α–β model itself: its interval is a point.
    ``tool`` is the one that times it, see :mod:`workloads.confidence.timing_tool`: without one the
    interval holds what any of them shows. ``crosses`` says whether the group lies on several
    servers, where that is known.
    """
    if cluster.plain or not cluster.chip or ideal:
        return Interval(seconds, seconds, basis="rates and latencies as given, no machine behind")
    if not seconds:
        return Interval(0.0, 0.0, basis="one rank alone, which sends nothing")
    from workloads.confidence.features import collective_features
    from workloads.confidence.split_conformal import interval

    features = collective_features(cluster, ranks, size_bytes, seconds, tool=tool, crosses=crosses)
    return interval(seconds, features)
