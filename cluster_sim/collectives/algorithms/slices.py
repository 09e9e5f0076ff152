"""Slices into which algorithms cut a buffer, so that hops and stages of a collective overlap."""

from __future__ import annotations

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.hardware.communication_costs import CommunicationCosts

MOST_SLICES = 16
"""Most slices of a collective in stages; the ops of its schedule grow with them."""
MOST_BROADCAST_SLICES = 1024
"""Most slices of a broadcast along a chain."""


def stage_slices(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return the slices of a collective in stages: as many as leave whole packets, at most 16."""
    return max(1, min(MOST_SLICES, call.size_bytes // (call.ranks * costs.packet_bytes)))


def broadcast_slices(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return the slices of a pipelined broadcast: enough to fill the chain, of whole packets."""
    most = min(MOST_BROADCAST_SLICES, 4 * call.ranks)
    return max(1, min(most, call.size_bytes // costs.packet_bytes))
