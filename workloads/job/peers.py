"""Checkpoints in the host memory of peers: how often they are taken, and what a recovery costs.

Units stand in pairs. Each keeps its part of the state, and its partner's, in host memory, as Gemini
does (SOSP 2023); copies go over the scale-out adapters in times that training leaves them idle, so
that the job does not stand still. A unit that fails gets its part back from its partner. Only when
both of a pair are out is the state gone, and the job goes back to the last checkpoint on the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import host_bytes_per_server
from topologies.errors import InputError
from workloads.job.state import State

VERSIONS = 2
"""Copies of each part that a server holds: one that is whole, and the next one as it comes in."""
PARTS_HELD = 2
"""Parts that a server holds: its own and that of its partner."""


@dataclass(frozen=True)
class PeerCopies:
    """Copies of a job's state in the host memory of its units.

    Attributes
    ----------
    every_s : float
        Computing time between two copies [s].
    copy_s : float
        Time that a copy takes, before which it cannot be used [s].
    restart_s : float
        From a noticed failure, with all units there, to the first step [s].
    bytes_per_server : float
        Host memory that the copies take [B].
    host_bytes : float, optional
        Host memory of a server; None where nothing states it [B].
    """

    every_s: float
    copy_s: float
    restart_s: float
    bytes_per_server: float
    host_bytes: float | None = None

    def lost_s(self, computed_s: float) -> float:
        """Computing time that a failure loses so long after a start [s].

        Examples
        --------
        A copy every ten seconds that takes four: after 23 s that of 10 s is whole, after 24 s
        that of 20 s.

        >>> copies = PeerCopies(10.0, 4.0, 60.0, 1e9)
        >>> [copies.lost_s(after) for after in (3.0, 23.0, 24.0)]
        [3.0, 13.0, 4.0]
        """
        whole = math.floor(max(0.0, computed_s - self.copy_s) / self.every_s)
        return computed_s - whole * self.every_s


@dataclass(frozen=True)
class PeerLinks:
    """Way from the memory of a server to that of its partner.

    Attributes
    ----------
    bytes_per_s : float
        Rate of the adapters of one server; by default a copy takes no time [B/s].
    share : float
        Part of it that copies take beside the traffic of training.
    """

    bytes_per_s: float = math.inf
    share: float = 1.0

    @classmethod
    def of(cls, cluster: Cluster, catalogue: Catalogue) -> PeerLinks:
        """Read a cluster's adapters; without a fabric a copy takes no time."""
        if cluster.scale_out is None:
            return cls()
        adapters = cluster.scale_out.bandwidth_bytes_per_s * cluster.chips_per_server
        return cls(float(adapters), catalogue.value("job.peer", "network_share"))

    def copies(self, part_bytes: float, *, step_s: float, start_s: float) -> PeerCopies:
        """Copy after every step, or as often as the network lets it.

        Parameters
        ----------
        part_bytes : float
            State that a server holds [B].
        step_s, start_s : float
            Optimizer step; from a noticed failure to the first step without reading the state [s].
        """
        copy_s = part_bytes / (self.bytes_per_s * self.share)
        return PeerCopies(
            every_s=step_s * max(1, math.ceil(copy_s / step_s)),
            copy_s=copy_s,
            restart_s=start_s + part_bytes / self.bytes_per_s,
            bytes_per_server=held_bytes(part_bytes),
        )


def held_bytes(part_bytes: float) -> float:
    """Return the host memory that copies take on a server with a part of so many bytes [B].

    Examples
    --------
    >>> held_bytes(100e9)
    400000000000.0
    """
    return PARTS_HELD * VERSIONS * part_bytes


def room_for_copies(cluster: Cluster, catalogue: Catalogue) -> float:
    """Return the host memory of a server that copies may take, infinity where none is known [B]."""
    host = host_bytes_per_server(cluster, catalogue)
    return math.inf if host is None else catalogue.value("job.peer", "host_share") * host


def peer_copies(
    state: State,
    cluster: Cluster,
    servers: int,
    *,
    step_s: float,
    start_s: float,
    catalogue: Catalogue,
) -> PeerCopies:
    """Return the copies of a job: after every step, or as often as the network lets them.

    Parameters
    ----------
    state : State
    cluster : Cluster
    servers : int
        Servers that hold different parts of the state.
    step_s : float
        Optimizer step [s].
    start_s : float
        From a noticed failure to the first step, without reading the state [s].
    catalogue : Catalogue
        Part ``job.peer``.

    Raises
    ------
    InputError
        For a cluster without a fabric between its units, and copies that take more than the share
        of the hosts' memory that is left for them.
    """
    if cluster.scale_out is None or cluster.domains < 2:
        raise InputError(
            f"--checkpoint peer copies state to another unit, and {cluster.name} has one. Use a "
            "cluster of several, or --checkpoint async."
        )
    part = state.checkpoint_bytes / servers
    copies = PeerLinks.of(cluster, catalogue).copies(part, step_s=step_s, start_s=start_s)
    host = host_bytes_per_server(cluster, catalogue)
    if host is not None and copies.bytes_per_server > room_for_copies(cluster, catalogue):
        raise InputError(
            f"--checkpoint peer keeps {copies.bytes_per_server / 1e9:,.0f} GB in the host memory "
            f"of each server, {PARTS_HELD * VERSIONS} times its part of the state, and "
            f"{cluster.name} has {host / 1e9:,.0f} GB a server, "
            f"{catalogue.value('job.peer', 'host_share'):.0%} of it for copies "
            "(job.peer host_share). "
            "Use more chips, --zero 1 to divide the state among all, or --checkpoint async."
        )
    return replace(copies, host_bytes=host)
