"""Exchanges of experts by the kernels of a library: DeepEP's and TensorRT-LLM's, as measured.

Such a kernel begins, then moves all copies of a rank's tokens at a rate of its own, those that stay
included, while what leaves the server crosses the network. Both hinder each other, so that the time
is the root of the sum of their squares. The constants were fitted to the table ``expert_exchange``.
"""

from __future__ import annotations

from math import hypot

import numpy as np

from cluster_sim.collectives.group import Group
from topologies.catalogue.catalogue import Catalogue

EXPERTS = "experts"
LIBRARIES = ("deepep", "deepep-low-latency", "trtllm")
WAYS = ("dispatch", "combine")
"""Directions of an exchange: to the experts, and back."""
MERGING = "deepep"
"""Library that sends a token once to a server, and once to each rank there."""


def visited(places: int, experts: int) -> float:
    """Mean number of places that a token visits, experts being anywhere alike: n (1 − (1 − 1/n)^k).

    Examples
    --------
    >>> visited(1, 8), round(visited(4, 8), 2)
    (1.0, 3.6)
    """
    return float(places * (1 - (1 - 1 / places) ** experts))


def known(catalogue: Catalogue, library: str, chip: str) -> bool:
    """Return whether the kernels of a library were measured on a chip."""
    return catalogue.has(_part(library, chip, "dispatch"), "copy_rate")


def library_s(
    catalogue: Catalogue, library: str, way: str, group: Group, sent_bytes: float, experts: int
) -> float:
    """Time of an exchange by a library's kernel [s].

    Parameters
    ----------
    catalogue : Catalogue
        Has the library's constants for the chip.
    library : str
        One of ``LIBRARIES``.
    way : str
        One of ``WAYS``.
    group : Group
        Ranks among which experts are divided, as many on each server.
    sent_bytes : float
        All tokens of a rank, each counted once [B].
    experts : int
        Experts of a token.
    """
    part = _part(library, group.cluster.chip, way)
    servers = len(np.unique(np.asarray(group.chips) // group.cluster.chips_per_domain))
    copies = crossing = float(experts)
    if library == MERGING:
        copies, crossing = visited(group.ranks, experts), visited(servers, experts)
    moved_s = copies * sent_bytes / catalogue.value(part, "copy_rate")
    if servers == 1:
        return catalogue.value(part, "launch") + moved_s
    away = crossing * (servers - 1) / servers
    away_s = away * sent_bytes / catalogue.value(part, "network_rate")
    begin_s = catalogue.value(part, "launch") + catalogue.value(part, "network_start")
    return begin_s + hypot(moved_s, away_s)


def _part(library: str, chip: str, way: str) -> str:
    return f"{EXPERTS}.{library}.{chip}.{way}"
