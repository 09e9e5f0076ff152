"""Intervals of whole answers: a training step, a collective, a replica's first token."""

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
    from workloads.models.model import Model


def training_interval(model: Model, plan: Degrees, cluster: Cluster, seconds: float) -> Interval:
    """Interval of the predicted time of a training step [s].

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> from workloads.training.plan.plan import ParallelPlan
    >>> plan = ParallelPlan(tp=8, dp=8, global_batch=64)
    >>> ends = training_interval(named("llama-3.1-8b"), plan, cluster("dgx-h100:8"), 2.0)
    >>> ends.low < 2.0 < ends.high
    True
    """
    return interval(seconds, training_features(model, plan, cluster))


def collective_interval(
    cluster: Cluster,
    ranks: int,
    size_bytes: int,
    seconds: float,
    *,
    ideal: bool = False,
    crosses: bool | None = None,
) -> Interval:
    """Interval of the predicted time of a collective [s].

    A plain shape, or a machine run as ``ideal``, is the α–β model itself: its interval is a point.
    ``crosses`` says whether the group lies on several servers, where that is known.
    """
    if cluster.plain or not cluster.chip or ideal:
        return Interval(seconds, seconds, basis="rates and latencies as given, no machine behind")
    return interval(seconds, collective_features(cluster, ranks, size_bytes, crosses=crosses))


def serving_interval(model: Model, cluster: Cluster, chips: int, seconds: float) -> Interval:
    """Interval of a replica's predicted time per token [s]; its rate has the same factor."""
    return interval(seconds, serving_features(model, cluster, chips))


def first_token_interval(model: Model, cluster: Cluster, chips: int, seconds: float) -> Interval:
    """Interval of a replica's predicted time to first token [s].

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> ends = first_token_interval(named("llama-3.1-8b"), cluster("dgx-h100"), 1, 0.1)
    >>> ends.low < 0.1 < ends.high
    True
    """
    return interval(seconds, first_token_features(model, cluster, chips))
