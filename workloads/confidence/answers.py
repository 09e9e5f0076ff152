"""Intervals of whole answers: a replica's tokens, a collective; kinds of models and chips."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from topologies.catalogue.catalogue import chip_family, shipped_catalogue
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import (
    FIRST_TOKEN,
    FIRST_TOKEN_EXPERTS,
    SERVING,
    SERVING_EXPERTS,
    Prediction,
    collective_kind,
)
from workloads.confidence.split_conformal import interval
from workloads.confidence.timing_tool import hull
from workloads.kernels.chip_share import family
from workloads.kernels.precision import ELEMENT_BYTES

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.confidence.interval import Interval
    from workloads.models.model import Model

WIDTHS = (4, 8, 16)  # bits of weights, the next larger of which names a family


def collective_features(
    cluster: Cluster,
    ranks: int,
    size_bytes: int,
    seconds: float,
    *,
    tool: str = "",
    crosses: bool | None = None,
) -> Prediction:
    """Return the features of a collective on a machine of the catalogue."""
    # ``seconds``: predicted time inside a graph [s], from which the times that tools may show
    # follow. ``crosses``: whether the group lies on several servers; by default, where the cluster
    # has several, more ranks than a server has chips do.
    if crosses is None:
        crosses = ranks > cluster.chips_per_domain
    catalogue = cluster.catalogue or shipped_catalogue()
    runtime = chip_family(cluster.chip, catalogue).runtime
    least, most = hull(tool, runtime, seconds, catalogue, cluster.domains)
    return Prediction(
        collective_kind(size_bytes),
        cluster.chip,
        ranks=ranks,
        tool=tool,
        crosses=crosses and cluster.domains > 1,
        below=math.log(least / seconds),
        above=math.log(most / seconds),
    )


def serving_features(
    model: Model, cluster: Cluster, chips: int, *, precision: str = "", engine: str = ""
) -> Prediction:
    """Return the features of a replica's time per token, which its rate shares."""
    # ``precision`` is that of the weights, by default of the stored ones; ``engine`` may be empty.
    return Prediction(
        SERVING if model.experts is None else SERVING_EXPERTS,
        cluster.chip,
        ranks=chips,
        tool=engine,
        family=model_family(model, precision or model.precision),
    )


def of_first_token(per_token: Prediction) -> Prediction:
    """Return the features of a replica's time to first token from those of its time per token."""
    kinds = {SERVING: FIRST_TOKEN, SERVING_EXPERTS: FIRST_TOKEN_EXPERTS}
    return replace(per_token, kind=kinds[per_token.kind])


def model_family(model: Model, precision: str) -> str:
    """Return the family of a served model, whose members have similar errors."""
    windows = any(layer.window for layer in model.each_layer)
    words = ["dense" if model.experts is None else "experts"]
    words += ["latent attention"] * (model.latent is not None)
    words += ["recurrent layers"] * (model.recurrence is not None)
    words += ["attention in windows"] * windows
    return "; ".join([*words, weight_width(precision)])


def weight_width(precision: str) -> str:
    """Return the width of weights in words."""
    bits = int(8 * ELEMENT_BYTES.get(precision, 2.0))
    return f"{next((width for width in WIDTHS if bits <= width), bits)} bits"


def kernels_assumed(chip: str, catalogue: Catalogue | None = None) -> bool:
    """Return whether the kernels of a chip rest on assumed numbers, by default the shipped ones."""
    return family(chip, catalogue).provenance == "assumed"


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
