"""Features of a prediction on which its uncertainty depends, from model, plan and machine."""

from __future__ import annotations

import math
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
from workloads.kernels.chip_share import family

if TYPE_CHECKING:
    from topologies.catalogue.catalogue import Catalogue
    from topologies.clusters.cluster import Cluster
    from workloads.models.model import Model

OPEN = frozenset({"recompute", "overlap"})
"""Fields of a plan without which little is known of how it runs."""
NEURON = "neuron"
"""Collective runtime of Trainium and Inferentia."""


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
    def framework(self) -> str:
        """Framework and its settings; empty for the usual one."""

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
    """Return the features of a training step.

    Parameters
    ----------
    model : Model
    plan : ParallelPlan
    cluster : Cluster
    framework : str
        Name of the framework, stated or assumed.
    hull : pair of float
        Least and greatest time that fields of no stated value leave open, over the predicted time.
    """
    return Prediction(
        training_kind(
            experts=model.experts is not None,
            zero=plan.zero,
            unfused=plan.attention == "unfused",
        ),
        cluster.chip,
        tp=plan.tp,
        cp=plan.cp,
        ranks=max(1, plan.ranks // plan.ranks_per_chip),
        assumed=kernels_assumed(cluster.chip, cluster.catalogue),
        framework=framework,
        told=_told(plan),
        below=math.log(hull[0]),
        above=math.log(hull[1]),
    )


def _told(plan: Degrees) -> str:
    """Return the level of what is told by a plan."""
    if OPEN & {*plan.assumed}:
        return BARE if "framework" in plan.assumed else FRAMEWORK
    if not plan.framework or "framework" in plan.assumed:
        return PLAN
    return "" if ":" in plan.framework else FRAMEWORK


def collective_features(
    cluster: Cluster, ranks: int, size_bytes: int, *, crosses: bool | None = None
) -> Prediction:
    """Return the features of a collective on a machine of the catalogue.

    Parameters
    ----------
    cluster : Cluster
    ranks : int
    size_bytes : int
    crosses : bool, optional
        Whether the group lies on several servers; by default, where the cluster has several, more
        ranks than a server has chips do.
    """
    if crosses is None:
        crosses = ranks > cluster.chips_per_domain
    return Prediction(
        collective_kind(size_bytes),
        cluster.chip,
        ranks=ranks,
        assumed=_links_assumed(cluster),
        crosses=crosses and crosses_servers(cluster),
    )


def crosses_servers(cluster: Cluster) -> bool:
    """Return whether collectives over all of a cluster cross servers by the Neuron runtime."""
    several = cluster.domains > 1 and bool(cluster.chip)
    return several and chip_family(cluster.chip, cluster.catalogue).runtime == NEURON


def first_token_features(model: Model, cluster: Cluster, chips: int) -> Prediction:
    """Return the features of a replica's time to first token."""
    kind = FIRST_TOKEN if model.experts is None else FIRST_TOKEN_EXPERTS
    return _replica(kind, cluster, chips)


def serving_features(model: Model, cluster: Cluster, chips: int) -> Prediction:
    """Return the features of a replica's time per token, which its rate shares."""
    kind = SERVING if model.experts is None else SERVING_EXPERTS
    return _replica(kind, cluster, chips)


def _replica(kind: str, cluster: Cluster, chips: int) -> Prediction:
    """Return the features of a time of one replica."""
    assumed = kernels_assumed(cluster.chip, cluster.catalogue)
    return Prediction(kind, cluster.chip, ranks=chips, assumed=assumed)


def kernels_assumed(chip: str, catalogue: Catalogue | None = None) -> bool:
    """Return whether the kernels of a chip rest on assumed numbers, by default the shipped ones.

    Examples
    --------
    >>> kernels_assumed("h100"), kernels_assumed("trn3")
    (False, True)
    """
    return family(chip, catalogue).provenance == "assumed"


def _links_assumed(cluster: Cluster) -> bool:
    """Return whether the share of the links' rate that collectives reach is assumed."""
    catalogue = cluster.catalogue or shipped_catalogue()
    for part, quantity in (
        (f"nccl.{cluster.chip}", "efficiency"),
        (cluster.chip, "collective_efficiency"),
    ):
        if catalogue.has(part, quantity):
            return catalogue.entry(part, quantity).grade == "assumed"
    return True
