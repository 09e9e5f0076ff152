"""Size of a replica: its chips and ranks, and one rank's share of the model."""

from __future__ import annotations

import math

from topologies.catalogue.catalogue import Catalogue
from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving.rank.share import RankShare

LNC1 = "lnc1"
"""Variant of a Trainium chip whose logical cores are single physical ones."""


def replica_share(
    model: Model,
    cluster: Cluster,
    tp: int | None,
    precision: str,
    catalogue: Catalogue,
    *,
    chips: int | None = None,
) -> RankShare:
    """Return one rank's part of a model in a replica of a tensor-parallel degree.

    The parameters are those of :func:`workloads.serving.profile.profile`. If the degree is the
    number of all physical cores of the chips, the catalogue of the result has LNC=1.
    """
    if not cluster.chip:
        raise InputError("nothing can be served on a cluster without chips; name a machine.")
    logical = chip_family(cluster.chip, catalogue).ranks_per_chip
    room = chips or cluster.chips_per_domain
    physical = catalogue.integer(cluster.chip, "cores", 1)
    if tp and logical < physical and tp == room * physical and (room == 1 or chips):
        catalogue = catalogue.with_variants({f"{cluster.chip}.ranks_per_chip": LNC1})
        return RankShare(model, cluster, room, precision, catalogue, tp)
    least = 1 if room == 1 else room + 1
    if tp and logical > 1 and (chips or room == 1) and least <= tp <= room * logical:
        return RankShare(model, cluster, -(-tp // logical), precision, catalogue, tp)
    return RankShare(model, cluster, _chips(model, cluster, tp), precision, catalogue)


def _chips(model: Model, cluster: Cluster, tp: int | None) -> int:
    """Number of chips of a replica; a degree above the chips of a domain counts logical cores."""
    if tp is None:
        return cluster.chips_per_server
    domain = cluster.chips_per_domain
    cores = chip_family(cluster.chip, cluster.catalogue).ranks_per_chip
    if not 1 <= tp <= domain * cores:
        also = f", or up to {domain * cores} cores" if cores > 1 else ""
        raise InputError(
            f"tp {tp}: a replica lies within one scale-up domain of {domain} chips. "
            f"Use 1 to {domain} chips{also}."
        )
    chips = tp if tp <= domain else tp // cores
    whole = tp <= domain or tp % cores == 0
    if not whole or (domain % chips and model.heads % chips):
        sizes = [str(size) for size in range(1, domain + 1) if domain % size == 0]
        raise InputError(
            f"tp {tp} divides neither the {model.heads} heads of {model.name} nor the {domain} "
            f"chips of a domain evenly. Use {', '.join(sizes)} chips."
        )
    return chips


def check_mixers(model: Model) -> None:
    """Refuse a model without keys and values, whose requests would take no room in the cache."""
    if model.recurrence is not None and all(
        layer.mixer != "attention" for layer in model.each_layer
    ):
        raise InputError(
            f"cannot serve {model.name}: all its mixers are {model.recurrence.name} layers, which "
            "keep a state and no keys and values. Use a model with some attention."
        )


def check_groups(rank: RankShare) -> None:
    """Refuse a number of expert groups that does not divide the ranks and the experts."""
    some, ep = rank.model.experts, rank.ep
    if ep == 1:
        return
    if some is None:
        raise InputError(f"ep {ep}: {rank.model.name} has no experts to divide. Use 1.")
    most = math.gcd(rank.ranks, some.count)
    if ep < 1 or most % ep:
        raise InputError(
            f"ep {ep}: groups must divide the {rank.ranks} ranks of the replica and the "
            f"{some.count} experts of {rank.model.name}. Use a divisor of {most}."
        )
