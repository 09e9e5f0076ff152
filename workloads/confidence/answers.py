"""Intervals of whole answers: a training step, a replica's tokens, a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.confidence.features import (
    Degrees,
    collective_features,
    first_token_features,
    serving_features,
    training_features,
)
from workloads.confidence.interval import Interval
from workloads.confidence.split_conformal import interval

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster
    from workloads.confidence.interval import Interval
    from workloads.models.model import Model


def training_interval(
    model: Model,
    plan: Degrees,
    cluster: Cluster,
    seconds: float,
    framework: str,
    hull: tuple[float, float] = (1.0, 1.0),
) -> Interval:
    """Interval of the predicted time of a training step [s]."""
    # ``framework`` is the name of the framework, stated or assumed, and ``hull`` has the least and
    # the greatest time that fields of no stated value leave open, over the predicted one.
    return interval(seconds, training_features(model, plan, cluster, framework, hull))


def serving_interval(
    model: Model,
    cluster: Cluster,
    chips: int,
    seconds: float,
    *,
    precision: str = "",
    engine: str = "",
) -> Interval:
    """Interval of a replica's predicted time per token [s]; its rate has the same factor."""
    features = serving_features(model, cluster, chips, precision=precision, engine=engine)
    return interval(seconds, features)


def first_token_interval(
    model: Model,
    cluster: Cluster,
    chips: int,
    seconds: float,
    *,
    precision: str = "",
    engine: str = "",
) -> Interval:
    """Interval of a replica's predicted time to first token [s]."""
    features = first_token_features(model, cluster, chips, precision=precision, engine=engine)
    return interval(seconds, features)


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
    """Interval of the predicted time of a collective [s]."""
    # A plain shape, or a machine run as ``ideal``, is the α–β model itself: its interval is a
    # point. ``tool`` is the one that times it, see :mod:`workloads.confidence.timing_tool`: without
    # one the interval holds what any of them shows. ``crosses`` says whether the group lies on
    # several servers, where that is known.
    if cluster.plain or not cluster.chip or ideal:
        return Interval(seconds, seconds, basis="rates and latencies as given, no machine behind")
    if not seconds:
        return Interval(0.0, 0.0, basis="one rank alone, which sends nothing")
    features = collective_features(cluster, ranks, size_bytes, seconds, tool=tool, crosses=crosses)
    return interval(seconds, features)
