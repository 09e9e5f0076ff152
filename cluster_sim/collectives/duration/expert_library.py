"""Exchanges of tokens between experts by a library's kernels: DeepEP's and TensorRT-LLM's.

A kernel moves all copies of a rank's tokens, its own included, while those for other servers cross
the network: the time beyond the launch is the root of the sum of their squares. Constants were
fitted to the table ``expert_exchange``; DeepEP's on H200 and B200 are assumed from H100's.
"""

from __future__ import annotations

from math import hypot

import numpy as np

from cluster_sim.collectives.group import Group
from topologies.catalogue.catalogue import Catalogue

EXPERTS = "experts"
LIBRARIES = ("deepep", "deepep-low-latency", "trtllm")
WAYS = ("dispatch", "combine")  # directions of an exchange: to the experts, and back
MERGING = "deepep"
"""Library that sends a token only once to each server, and once to each rank there."""


def visited(places: int, experts: int) -> float:
    """Mean number of places that a token visits: n (1 − (1 − 1/n)^k) for k experts at n places."""
    return float(places * (1 - (1 - 1 / places) ** experts))


def known(catalogue: Catalogue, library: str, chip: str) -> bool:
    """Return whether the rates of a library's kernels on a chip are known."""
    return catalogue.has(_part(library, chip, "dispatch"), "copy_rate")


def library_s(
    catalogue: Catalogue,
    library: str,
    way: str,
    group: Group,
    sent_bytes: float,
    experts: int,
    *,
    nodes: int = 0,
) -> float:
    """Time of an exchange in which a library sends each token to ``experts`` ranks [s]."""
    part = _part(library, group.cluster.chip, way)
    servers = len(np.unique(np.asarray(group.chips) // group.cluster.chips_per_domain))
    copies = crossing = float(experts)
    if library == MERGING:
        copies, crossing = visited(group.ranks, experts), visited(servers, experts)
    moved_s = copies * sent_bytes / catalogue.value(part, "copy_rate")
    if servers == 1:
        return catalogue.value(part, "launch") + moved_s
    crossing = min(crossing, nodes or crossing)
    # Of the copies for any server, 1/servers stay on their own.
    leaving = crossing * (servers - 1) / servers
    network_s = leaving * sent_bytes / catalogue.value(part, "network_rate")
    start_s = catalogue.value(part, "launch") + catalogue.value(part, "network_start")
    return start_s + hypot(moved_s, network_s)


def _part(library: str, chip: str, way: str) -> str:
    return f"{EXPERTS}.{library}.{chip}.{way}"
