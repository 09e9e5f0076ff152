"""Costs of communication beyond link rate and latency: efficiencies, issue times, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray

RUNTIME = "neuron-runtime"  # part of the catalogue that holds what is known of the Neuron runtime
COSTS_KEPT = 64  # results that are kept: every collective of a cluster asks for the same ones
DMA_SHARES = 60
"""Shares of a chip's DMA engines that a byte takes which one cycle copies between its ranks; 60 can
be divided among one to six cycles, and among ten, as on an UltraServer, without a remainder."""
PACKET_BYTES = 2**16
"""Packet of collective copies, the smallest piece that is worth sending by itself [B]."""


@dataclass(frozen=True)
class CommunicationCosts:
    """Costs of communication on a chip; by default none, as on plain shapes and with ``ideal``."""

    efficiency: Fraction = Fraction(1)  # share of a scale-up link's rate that large transfers reach
    scale_out_bytes_per_s: int = 1  # usable, of one chip's adapter, one direction
    issue_ps: int = 0  # for which a CC-Core is busy with a message; 0 if it is not modelled
    step_ps: int = 0  # from the start of its issue until a message is on the wire
    launch_ps: int = 0  # before the first messages of a collective
    handshake_ps: int = 0  # further time before the first messages between chips
    cc_slots: int = 1  # CC-Cores of a chip
    slices: int = 1  # of a ring step, so that issue and reduction overlap the wire
    # Rate at which collectives can access the memory; 0 if unknown, as is then all that follows.
    hbm_bytes_per_s: int = 0
    hbm_peak_bytes_per_s: int = 0  # nominal rate of the memory
    # Rates of DMA engines: from rank to rank of a chip, to all for one cycle, of all engines.
    copy_bytes_per_s: int = 1
    dma_bytes_per_s: int = 1
    engines_bytes_per_s: int = 1
    # Reads and writes of a byte in memory, for a copy and for a sum; then those within a pair of
    # ranks that share what one of them received.
    copy_accesses: int = 0
    reduce_accesses: int = 0
    fused_copy_accesses: int = 0
    fused_reduce_accesses: int = 0
    stores: bool = True  # chips on the way store a message first, as in the α–β model

    def scale_up(self, rate_bytes_per_s: IntArray) -> IntArray:
        """Return the usable rates of scale-up links [B/s], rounded down."""
        rates, where = np.unique(rate_bytes_per_s, return_inverse=True)
        part, whole = self.efficiency.numerator, self.efficiency.denominator
        usable = [max(1, int(rate) * part // whole) for rate in rates.tolist()]
        return np.array(usable, np.int64)[where]

    def dma_shares(self, cycles: int) -> int:
        """Return the shares of the DMA engines that a byte copied inside a chip takes."""
        # Each directed cycle has queues of its own, so several copy faster, up to the rate of all
        # engines.
        least = -(-DMA_SHARES * self.dma_bytes_per_s // self.engines_bytes_per_s)
        return min(DMA_SHARES, max(least, -(-DMA_SHARES // cycles)))


@lru_cache(maxsize=COSTS_KEPT)
def communication_costs(
    cluster: Cluster, *, ideal: bool = False, sbuf: bool = False
) -> CommunicationCosts:
    """Look up the costs on the chips of a cluster; ``sbuf`` keeps buffers in scratchpads."""
    scale_out, chip, catalogue = cluster.scale_out, cluster.chip, cluster.catalogue
    rate = scale_out.bandwidth_bytes_per_s if scale_out else 1
    if cluster.plain or ideal or catalogue is None or not chip:
        return CommunicationCosts(scale_out_bytes_per_s=rate, stores=cluster.plain)

    step = catalogue.ps(chip, "collective_step", 0)
    outside = scale_out.name if scale_out else ""
    costs = CommunicationCosts(
        efficiency=_efficiency(catalogue, chip, "collective_efficiency"),
        scale_out_bytes_per_s=max(1, int(rate * _efficiency(catalogue, outside, "efficiency"))),
        issue_ps=min(step, catalogue.ps(chip, "collective_issue", step)),
        step_ps=step,
        launch_ps=catalogue.ps(chip, "collective_launch", 0),
        handshake_ps=catalogue.ps(chip, "collective_handshake", 0),
        cc_slots=catalogue.integer(chip, "cc_cores", 16),
        slices=catalogue.integer(RUNTIME, "ring_slices"),
        stores=False,
    )
    costs = _with_memory(costs, catalogue, chip)
    if not sbuf:
        return costs
    return replace(
        costs, copy_accesses=0, reduce_accesses=0, fused_copy_accesses=0, fused_reduce_accesses=0
    )


def within_chip(
    costs: CommunicationCosts, cluster: Cluster, op: str, ranks: int
) -> CommunicationCosts:
    """Return the costs among the ranks of one chip, as far as the catalogue states them."""
    catalogue, chip = cluster.catalogue, cluster.chip
    if catalogue is None or not chip or costs.hbm_bytes_per_s == 0:
        return costs
    # Rates of copies inside a chip depend on the operation and on the number of ranks.
    start, rate = "chip_collective_launch", f"copy_{op.replace('-', '_')}_{ranks}"
    if catalogue.has(chip, start):
        costs = replace(costs, launch_ps=catalogue.ps(chip, start))
    if catalogue.has(chip, rate):
        copy = int(catalogue.entry(chip, rate).exact)
        costs = replace(costs, copy_bytes_per_s=copy, dma_bytes_per_s=copy * ranks)
    return costs


def _with_memory(costs: CommunicationCosts, catalogue: Catalogue, chip: str) -> CommunicationCosts:
    """Add rates and accesses of memory, from the accesses of a chunk that the vendor states."""
    if not catalogue.has(chip, "hbm_in_collectives") or not catalogue.has(chip, "collective_copy"):
        return costs
    # The vendor counts the accesses of one chunk over two ranks, so a message has half of a ring's;
    # of a pair of ranks, one message has a ring's accesses and the other has the rest.
    ring, pair = (
        [
            catalogue.integer(RUNTIME, f"{name}_{op}_hbm_accesses")
            for op in ("all_gather", "reduce_scatter")
        ]
        for name in ("ring", "kangaring")
    )
    share, copy = (
        catalogue.entry(chip, name).exact for name in ("hbm_in_collectives", "collective_copy")
    )
    peak = catalogue.entry(chip, "hbm_bandwidth").exact
    return replace(
        costs,
        # At least 1 B/s: 0 means that the memory is not known.
        hbm_bytes_per_s=max(1, int(share * peak)),
        hbm_peak_bytes_per_s=max(1, int(peak)),
        copy_bytes_per_s=max(1, int(copy)),
        dma_bytes_per_s=max(1, int(copy * catalogue.integer(chip, "ranks_per_chip"))),
        engines_bytes_per_s=max(1, int(_engines(catalogue, chip))),
        copy_accesses=ring[0] // 2,
        reduce_accesses=ring[1] // 2,
        fused_copy_accesses=pair[0] - ring[0] // 2,
        fused_reduce_accesses=pair[1] - ring[1] // 2,
    )


def _engines(catalogue: Catalogue, chip: str) -> Fraction:
    """Return the rate of all DMA engines [B/s], 1 where unknown: cycles then add nothing."""
    if not catalogue.has(chip, "dma_bandwidth"):
        return Fraction(1)
    return catalogue.entry(chip, "dma_bandwidth").exact


def _efficiency(catalogue: Catalogue, part: str, quantity: str) -> Fraction:
    stated = catalogue.has(part, quantity)
    return catalogue.entry(part, quantity).exact if stated else Fraction(1)
