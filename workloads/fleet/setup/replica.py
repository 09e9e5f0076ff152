"""The replica of a model on a machine: the fewest chips, and the precision, in which it fits."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.catalogue.catalogue import catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving import Profile, profile

AUTO = "auto"
IN_TURN = ("bf16", "fp8")
"""Precisions that ``auto`` tries: BF16, and FP8 where the weights do not fit in BF16."""
KNOWN = (AUTO, *IN_TURN, "mxfp8", "fp4", "mxfp4")
"""Precisions that a fleet may be asked for."""
LEAST_CACHE = 0.05
"""Share of the memory that weights have to leave to the cache."""


@dataclass(frozen=True, eq=False)
class Replica:
    """A replica that fits.

    Attributes
    ----------
    served : Profile
    precision : str
        Of weights and products.
    """

    served: Profile
    precision: str


def shortest_replica(
    model: Model, cluster: Cluster, *, tp: int | None = None, precision: str = AUTO
) -> Replica:
    """Return the replica on the fewest chips of a unit, whole servers first.

    One server is tried, then each larger number of chips that divides a scale-up domain, those
    first that divide the attention heads as well; the weights have to leave 5 % of the memory to
    the cache. In precision ``auto`` BF16 is tried on all sizes,
    then FP8.

    Parameters
    ----------
    tp : int, optional
        Chips of the replica, instead of the fewest.
    precision : str
        ``auto``, or a precision of the chip.

    Raises
    ------
    InputError
        When no size fits; the last reason is told.
    """
    sizes = [tp] if tp is not None else _sizes(model, cluster)
    known = cluster.catalogue or catalogue()
    fault: InputError | None = None
    for name in IN_TURN if precision == AUTO else (precision,):
        if precision == AUTO and not known.has(cluster.chip, f"{name}_peak"):
            continue
        for size in sizes:
            try:
                served = profile(model, cluster, tp=size, precision=name)
            except InputError as refusal:
                fault = fault or refusal
                continue
            room = served.kv_budget_bytes / (served.kv_budget_bytes + served.weights_bytes)
            if tp is not None or room >= LEAST_CACHE:
                return Replica(served, name)
    raise fault or InputError(
        f"{model.name} leaves no memory for a cache on {cluster.name}; choose a smaller precision."
    )


def _sizes(model: Model, cluster: Cluster) -> list[int | None]:
    """One server, then larger divisors of the scale-up domain."""
    server, domain = cluster.chips_per_server, cluster.chips_per_domain
    larger = [size for size in range(server + 1, domain + 1) if domain % size == 0]
    return [None, *sorted(larger, key=lambda size: (model.heads % size != 0, size))]
