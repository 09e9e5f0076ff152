"""Resources that messages share besides links: memory, DMA engines, uplinks of racks.

The last hop of such a message is a flow. It holds the link's slot and is as fast as the link, or
slower where shared resources limit it. A share is in the schedule only where it can limit a flow: a
memory that can take in all that can arrive at its chip at once slows nothing down, and to leave it
out changes no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import DMA_SHARES, CommunicationCosts
from cluster_sim.hardware.fabric import Fabric, Paths
from cluster_sim.schedule.table import Flows
from topologies.arrays import BoolArray, IntArray, distinct

Rows = tuple[IntArray, IntArray, IntArray, IntArray]
"""Columns of shares: channel, resource, and the weights for a copy and for a sum."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shared resources that messages use, grouped by channel."""

    ptr: IntArray  # (channels + 1,): messages of channel c use resource[ptr[c]:ptr[c + 1]]
    resource: IntArray  # (shares,)
    # Rate of the resource that 1 B/s of a message takes [B/s] …
    copy: IntArray  # … that replaces what the receiver holds
    added: IntArray  # … that is added to it

    @classmethod
    def grouped(cls, channels: int, tables: list[Rows]) -> Shares:
        """Group the rows of several tables by channel, keeping the order of tables in each."""
        channel, *columns = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        order = np.argsort(channel, kind="stable")
        ptr = np.zeros(channels + 1, np.int64)
        np.cumsum(np.bincount(channel, minlength=channels), out=ptr[1:])
        return cls(ptr, *(column[order].astype(np.int32) for column in columns))

    def flows(self, op: IntArray, channel: IntArray, reduces: BoolArray, cap: IntArray) -> Flows:
        """Return the flows of ops, no faster than ``cap``, with the shares of their channels."""
        count = np.diff(self.ptr)[channel]
        ptr = np.zeros(len(op) + 1, np.int64)
        np.cumsum(count, out=ptr[1:])
        row = np.arange(ptr[-1]) + np.repeat(self.ptr[:-1][channel] - ptr[:-1], count)
        weight = np.where(np.repeat(reduces, count), self.added[row], self.copy[row])
        return Flows(op.astype(np.int32), cap, ptr, self.resource[row], weight.astype(np.int32))


def shares(
    messages: Messages, chip_of_rank: IntArray, fabric: Fabric, paths: Paths, *, contended: bool
) -> Shares | None:
    """Return the shared resources of each channel, or None if none can limit a flow.

    ``contended``: whether others may access the same memories, so that every memory can limit a
    flow.
    """
    channels = messages.channels
    chips = _Ends(chip_of_rank[channels.src], chip_of_rank[channels.dst], ~channels.joins)
    fused = np.zeros(len(channels), np.bool_) if channels.fused is None else channels.fused
    tables = [
        rows
        for rows in (
            *_memory(chips, fused, fabric, paths, messages, contended=contended),
            *_uplinks(chips, fabric),
        )
        if len(rows[0])
    ]
    return Shares.grouped(len(channels), tables) if tables else None


@dataclass(frozen=True, eq=False)
class _Ends:
    """Chips at both ends of each channel, and whether the channel carries data."""

    src: IntArray
    dst: IntArray
    sends: BoolArray

    @property
    def inside(self) -> BoolArray:
        """Return whether a channel joins two ranks of one chip, bool (channels,)."""
        inside: BoolArray = self.sends & (self.src == self.dst)
        return inside

    @property
    def apart(self) -> bool:
        """Return whether any channel leads from one chip to another."""
        return bool((self.sends & (self.src != self.dst)).any())


def _memory(
    chips: _Ends,
    fused: BoolArray,
    fabric: Fabric,
    paths: Paths,
    messages: Messages,
    *,
    contended: bool,
) -> Iterator[Rows]:
    """Yield the shares of memories and of DMA engines.

    Chips of a collective send as much as they receive, so the sender's reads are charged to the
    memory of the receiver. A message from another chip is as fast as its link and the memory
    allow; a message between two ranks of a chip is moved by DMA engines, whose rate limits it.
    """
    costs = fabric.costs
    if not costs.hbm_bytes_per_s:
        return
    shares = costs.dma_shares(messages.cycles if chips.apart else 1)
    if costs.copy_accesses:
        can_saturate = np.ones(len(fabric.resources), np.bool_)
        if not contended:
            most = costs.reduce_accesses if messages.reduce.any() else costs.copy_accesses
            arriving = _arriving(chips, fabric, paths, shares)
            can_saturate = arriving * most > costs.hbm_bytes_per_s
        memory = fabric.hbm(chips.dst)
        channel = np.flatnonzero(chips.sends & can_saturate[memory])
        yield channel, memory[channel], *_weights(fused[channel], costs)
    channel = np.flatnonzero(chips.inside)
    taken = np.full(len(channel), shares, np.int32)
    yield channel, fabric.dma(chips.dst[channel]), taken, taken


def _arriving(chips: _Ends, fabric: Fabric, paths: Paths, shares: int) -> IntArray:
    """Return the highest rate at which data can arrive at each memory's chip, by resource [B/s]."""
    last = paths.resource[paths.ptr[1:] - 1]
    links = distinct(last[chips.sends & (last >= 0)])
    peer, owner = fabric.resources.peer[links], fabric.resources.owner[links]
    rate = np.zeros(len(fabric.resources), np.int64)
    np.add.at(rate, fabric.hbm(np.where(peer >= 0, peer, owner)), fabric.rate[links])
    copied = DMA_SHARES * fabric.costs.dma_bytes_per_s // shares
    rate[fabric.hbm(distinct(chips.dst[chips.inside]))] += copied
    return rate


def _weights(fused: BoolArray, costs: CommunicationCosts) -> tuple[IntArray, IntArray]:
    """Return the memory accesses of a message that replaces data, and of one that is added."""
    return (
        np.where(fused, costs.fused_copy_accesses, costs.copy_accesses),
        np.where(fused, costs.fused_reduce_accesses, costs.reduce_accesses),
    )


def _uplinks(chips: _Ends, fabric: Fabric) -> Iterator[Rows]:
    """Yield the shares of up- and downlinks between racks, for messages between domains."""
    per_domain = fabric.cluster.chips_per_domain
    far = np.flatnonzero(chips.sends & (chips.src // per_domain != chips.dst // per_domain))
    if not len(fabric.uplinks) or not len(far):
        return
    channel, resource = fabric.climbing(chips.src[far], chips.dst[far])
    once = np.ones(len(channel), np.int32)
    yield far[channel], resource, once, once
