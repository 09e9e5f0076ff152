"""Intervals of whole answers: a training step, a replica's time per token and first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.confidence.features import (
    Degrees,
    first_token_features,
    serving_features,
    training_features,
)
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
    """Interval of the predicted time of a training step [s].

    ``framework`` is the name of the framework, stated or assumed, and ``hull`` has the least and
    the greatest time that fields of no stated value leave open, over the predicted one.
    """
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
