"""Sizes at which the Neuron runtime switches from one algorithm to another.

The runtime chooses by the length of a buffer alone, so just below a switch a collective may take
longer than one of twice the bytes just above it. ``auto`` does as the runtime does, and says so.
"""

from __future__ import annotations

from dataclasses import replace

from cluster_sim.collectives.algorithms.neuron_runtime import is_trainium
from cluster_sim.collectives.algorithms.registry import choose_algorithm
from cluster_sim.collectives.call import CollectiveCall

NEAR = 4
"""Factor in bytes within which a switch counts as near."""


def switched(call: CollectiveCall) -> tuple[str, ...]:
    """Name the algorithms that ``auto`` chooses at this size and at sizes near it, in this order.

    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> server = whole(cluster("trn1.32xlarge"))
    >>> switched(CollectiveCall("all-reduce", server, 2**20))
    ('mesh', 'rdh')
    >>> switched(CollectiveCall("all-reduce", server, 2**29))
    ('multi-ring',)
    """
    if not is_trainium(call.group.cluster):
        return (choose_algorithm(call).name,)
    lengths = [call.size_bytes, max(1, call.size_bytes // NEAR), call.size_bytes * NEAR]
    names = [choose_algorithm(replace(call, size_bytes=length)).name for length in lengths]
    return tuple(dict.fromkeys(names))
