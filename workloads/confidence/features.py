"""Features of a prediction on which its uncertainty depends, from model, plan and machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.families import chip_family
from workloads.confidence.kinds import (
    BARE,
    FIRST_TOKEN,
    FIRST_TOKEN_EXPERTS,
    FRAMEWORK,
    PLAN,
    SERVING,
    SERVING_EXPERTS,
    Prediction,
    collective_kind,
    training_kind,
)
from workloads.confidence.timing_tool import hull
from workloads.kernels.chip_share import family
from workloads.kernels.precision import ELEMENT_BYTES

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model

WIDTHS = (4, 8, 16)  # bits of weights, the next larger of which names a family
OPEN = frozenset({"recompute", "overlap"})
"""Fields of a plan without which little is known of how it runs."""


class Degrees(Protocol):
    """Fields of a parallel plan that the uncertainty of a training step depends on."""

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""

    @property
    def cp(self) -> int:
        """Context-parallel degree."""

    @property
    def zero(self) -> int:
        """ZeRO stage, 0 to 3."""

    @property
    def attention(self) -> str:
        """Attention kernel, ``fused`` or ``unfused``."""

    @property
    def lora_rank(self) -> int:
        """Rank of the adapters; 0 where weights are trained."""

    @property
    def framework(self) -> str:
        """Framework and its settings; empty for the usual one."""

    @property
    def names_framework(self) -> bool:
        """Return whether the framework was stated by its name."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields that nobody stated."""

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""

    @property
    def ranks_per_chip(self) -> int:
        """Ranks that share a chip."""


def training_features(
    model: Model,
    plan: Degrees,
    cluster: Cluster,
    framework: str,
    hull: tuple[float, float] = (1.0, 1.0),
) -> Prediction:
    """Return the features of a training step."""
    return Prediction(
        training_kind(
            experts=model.experts is not None,
            zero=plan.zero,
            unfused=plan.attention == "unfused",
            adapters=plan.lora_rank > 0,
        ),
        cluster.chip,
        tp=plan.tp,
        cp=plan.cp,
        ranks=max(1, plan.ranks // plan.ranks_per_chip),
        assumed=kernels_assumed(cluster.chip, cluster.catalogue),
        framework=framework,
        stated=_told(plan),
        below=math.log(hull[0]),
        above=math.log(hull[1]),
    )


def _told(plan: Degrees) -> str:
    """Return the level of what is told by a plan."""
    if OPEN & {*plan.assumed}:
        return FRAMEWORK if plan.names_framework else BARE
    if not plan.names_framework:
        return PLAN
    return "" if ":" in plan.framework else FRAMEWORK


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


def first_token_features(
    model: Model, cluster: Cluster, chips: int, *, precision: str = "", engine: str = ""
) -> Prediction:
    """Return the features of a replica's time to first token; see :func:`serving_features`."""
    per_token = serving_features(model, cluster, chips, precision=precision, engine=engine)
    return replace(per_token, kind=FIRST_TOKEN if model.experts is None else FIRST_TOKEN_EXPERTS)


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


def model_family(model: Model, precision: str) -> str:
    """Return the family of a served model, whose members have similar errors."""
    windows = any(layer.window for layer in model.each_layer)
    words = ["dense" if model.experts is None else "experts"]
    words += ["latent attention"] * (model.latent is not None)
    words += ["recurrent layers"] * (model.recurrence is not None)
    words += ["attention in windows"] * windows
    return "; ".join([*words, weight_width(precision)])


def weight_width(precision: str) -> str:
    """Return the width of weights in words.

    >>> weight_width("mxfp4"), weight_width("bf16")
    ('4 bits', '16 bits')
    """
    bits = int(8 * ELEMENT_BYTES.get(precision, 2.0))
    return f"{next((width for width in WIDTHS if bits <= width), bits)} bits"


def kernels_assumed(chip: str, catalogue: Catalogue | None = None) -> bool:
    """Return whether the kernels of a chip rest on assumed numbers, by default the shipped ones.

    >>> kernels_assumed("h100"), kernels_assumed("trn3")
    (False, True)
    """
    return family(chip, catalogue).provenance == "assumed"
