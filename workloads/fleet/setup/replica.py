"""Replicas of a model that fit a machine, the one on the fewest chips first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving import Profile, profile

AUTO = "auto"
IN_TURN = ("bf16", "fp8")
"""Precisions that ``auto`` tries: BF16, and FP8 where the weights do not fit in BF16."""
KNOWN = (AUTO, *IN_TURN, "mxfp8", "fp4", "mxfp4")
"""Precisions that users may choose."""
LEAST_CACHE = 0.05
"""Share of the memory that weights have to leave to the cache."""
LONG_PROMPT = 4096
"""Length of the prompt for which the groups of experts are chosen [tokens]."""


@dataclass(frozen=True, eq=False)
class Replica:
    """A replica of a model that fits its chips.

    Attributes
    ----------
    served : Profile
        Memory and times of the replica.
    precision : str
        Precision of weights and products.
    """

    served: Profile
    precision: str


def fitting_replicas(
    model: Model, cluster: Cluster, *, tp: int | None = None, precision: str = AUTO
) -> Iterator[Replica]:
    """Yield the replicas that fit a unit, from the fewest chips on.

    One server is tried first, then each larger number of chips that divides a scale-up domain;
    numbers that divide the attention heads as well go before others. The weights have to leave 5 %
    of the memory to the cache. On Trainium, a mixture of experts whose experts fit twice is yielded
    a second time, with the groups of experts that make its prompts shortest. With precision
    ``auto``, BF16 is tried on all sizes, then FP8.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    tp : int, optional
        Chips of the replica, instead of the fewest.
    precision : str
        ``auto``, or a precision of the chip.

    Raises
    ------
    InputError
        When no size fits; the message is that of the first size.
    """
    catalogue = cluster.catalogue or shipped_catalogue()
    precisions = IN_TURN if precision == AUTO else (precision,)
    offered = [
        name
        for name in precisions
        if precision != AUTO or catalogue.has(cluster.chip, f"{name}_peak")
    ]
    least = 0.0 if tp is not None else LEAST_CACHE
    fault: InputError | None = None
    fits = False
    for name, size in product(offered, [tp] if tp is not None else _sizes(model, cluster)):
        try:
            served = profile(model, cluster, tp=size, precision=name)
        except InputError as refusal:
            fault = fault or refusal
            continue
        if _room(served) < least:
            continue
        fits = True
        yield Replica(served, name)
        divided = _with_divided_experts(model, cluster, size, name)
        if divided is not None:
            yield Replica(divided, name)
    if not fits:
        raise fault or InputError(
            f"{model.name} leaves no memory for a cache on {cluster.name}; choose a smaller "
            "precision."
        )


def _with_divided_experts(
    model: Model, cluster: Cluster, tp: int | None, precision: str
) -> Profile | None:
    """Return the profile whose groups of experts make a long prompt shortest, if any fits.

    Only Neuron's programs hold the experts twice, so that prompts can divide them in another way
    than decode does.
    """
    if not chip_family(cluster.chip, cluster.catalogue).is_neuron:
        return None
    most = model.experts.count if model.experts else 1
    groups = 2 ** np.arange(1, most.bit_length())
    candidates = []
    for ep in groups:
        try:
            served = profile(model, cluster, tp=tp, precision=precision, ep=int(ep))
        except InputError:
            continue
        if _room(served) >= LEAST_CACHE:
            candidates.append(served)
    return min(candidates, key=lambda candidate: candidate.prefill_s(LONG_PROMPT), default=None)


def _room(served: Profile) -> float:
    """Share of the memory that remains for the cache beside the weights."""
    return served.kv_budget_bytes / (served.kv_budget_bytes + served.weights_bytes)


def _sizes(model: Model, cluster: Cluster) -> list[int | None]:
    """Sizes to try, in chips: one server (None), then larger divisors of the scale-up domain."""
    server, domain = cluster.chips_per_server, cluster.chips_per_domain
    larger = [size for size in range(server + 1, domain + 1) if domain % size == 0]
    return [None, *sorted(larger, key=lambda size: (model.heads % size != 0, size))]
