"""Costs of moving bytes beyond link rate and latency: efficiencies, and the issue of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from topologies.arrays import IntArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster

RUNTIME = "neuron-runtime"
PACKET_BYTES = 2**16
"""Packet of collective copies on chips for which the catalogue states none [B]."""


@dataclass(frozen=True)
class CommunicationCosts:
    """Costs of communication on one kind of chip; all neutral on plain shapes and ``ideal``.

    Attributes
    ----------
    efficiency : Fraction
        Share of a scale-up link's rate that large transfers reach.
    scale_out_bytes_per_s : int
        Usable rate of one chip's adapter, one direction [B/s]; 1 where there is none.
    issue_ps : int
        CC-Core time that issues one send [ps]; 0 for none.
    step_ps : int
        From the start of its issue until a send is on the wire [ps].
    launch_ps, handshake_ps : int
        Before the first sends of a collective [ps]; and, between chips, until they know of one
        another [ps].
    cc_slots, engine_slots : int
        CC-Cores of a chip; compute streams of a chip.
    slices : int
        Pieces that a ring step is cut into so that issue and reduction overlap the wire.
    packet_bytes : int
        Smallest piece worth sending by itself [B].
    hbm_bytes_per_s : int
        Rate at which collectives can draw from the memory of a chip [B/s]; 0 where it is not known,
        and neither are the next ones.
    hbm_peak_bytes_per_s : int
        Nominal rate of that memory [B/s].
    copy_bytes_per_s, dma_bytes_per_s : int
        Rate at which a rank can receive from another one of its chip, by DMA engines; that of all
        ranks of the chip together [B/s].
    copy_accesses, reduce_accesses : int
        Times that a byte of a message is read or written in memory.
    fused_copy_accesses, fused_reduce_accesses : int
        The same where it stays within a pair of ranks that share what one of them received.
    stores : bool
        Whether chips on the way store a message before they forward it, as the α–β model says.
    """

    efficiency: Fraction = Fraction(1)
    scale_out_bytes_per_s: int = 1
    issue_ps: int = 0
    step_ps: int = 0
    launch_ps: int = 0
    handshake_ps: int = 0
    cc_slots: int = 1
    engine_slots: int = 1
    slices: int = 1
    packet_bytes: int = PACKET_BYTES
    hbm_bytes_per_s: int = 0
    hbm_peak_bytes_per_s: int = 0
    copy_bytes_per_s: int = 1
    dma_bytes_per_s: int = 1
    copy_accesses: int = 0
    reduce_accesses: int = 0
    fused_copy_accesses: int = 0
    fused_reduce_accesses: int = 0
    stores: bool = True

    def scale_up(self, rate_bytes_per_s: IntArray) -> IntArray:
        """Usable rates of scale-up links, rounded down to whole bytes a second."""
        rates, where = np.unique(rate_bytes_per_s, return_inverse=True)
        part, whole = self.efficiency.numerator, self.efficiency.denominator
        usable = [max(1, int(rate) * part // whole) for rate in rates.tolist()]
        return np.array(usable, np.int64)[where]


def wire(cluster: Cluster, *, ideal: bool = False, sbuf: bool = False) -> CommunicationCosts:
    """Look up what communication costs on the chips of a cluster.

    Parameters
    ----------
    cluster : Cluster
    ideal : bool
        Link rates and latencies only.
    sbuf : bool
        The buffers are in the scratchpads of the cores, so that nothing is drawn from memory.
    """
    scale_out, chip, catalogue = cluster.scale_out, cluster.chip, cluster.catalogue
    rate = scale_out.bandwidth_bytes_per_s if scale_out else 1
    if cluster.plain or ideal or catalogue is None or not chip:
        return CommunicationCosts(scale_out_bytes_per_s=rate, stores=cluster.plain)

    def known_ps(quantity: str, otherwise: int = 0) -> int:
        return catalogue.ps(chip, quantity) if catalogue.has(chip, quantity) else otherwise

    step = known_ps("collective_step")
    outside = scale_out.name if scale_out else ""
    costs = CommunicationCosts(
        efficiency=_efficiency(catalogue, chip, "collective_efficiency"),
        scale_out_bytes_per_s=max(1, int(rate * _efficiency(catalogue, outside, "efficiency"))),
        issue_ps=min(step, known_ps("collective_issue", step)),
        step_ps=step,
        launch_ps=known_ps("collective_launch"),
        handshake_ps=known_ps("collective_handshake"),
        cc_slots=catalogue.integer(chip, "cc_cores") if catalogue.has(chip, "cc_cores") else 16,
        slices=catalogue.integer(RUNTIME, "ring_slices"),
        stores=False,
    )
    costs = _with_memory(costs, catalogue, chip)
    return _without_accesses(costs) if sbuf else costs


def within_chip(
    costs: CommunicationCosts, cluster: Cluster, op: str, ranks: int
) -> CommunicationCosts:
    """Costs among the ranks of one chip, where the catalogue states them for the operation.

    The runtime's copies inside a chip reach rates that depend on the operation and on the number
    of ranks, and a collective inside a chip has a start of its own.

    Parameters
    ----------
    costs : CommunicationCosts
        Costs of any group on this cluster.
    cluster : Cluster
    op : str
        Operation.
    ranks : int
        Ranks of the group, all of them on one chip.
    """
    catalogue, chip = cluster.catalogue, cluster.chip
    if catalogue is None or not chip or costs.hbm_bytes_per_s == 0:
        return costs
    start, rate = "chip_collective_launch", f"copy_{op.replace('-', '_')}_{ranks}"
    if catalogue.has(chip, start):
        costs = replace(costs, launch_ps=catalogue.ps(chip, start))
    if catalogue.has(chip, rate):
        copy = int(catalogue.entry(chip, rate).exact)
        costs = replace(costs, copy_bytes_per_s=copy, dma_bytes_per_s=copy * ranks)
    return costs


def _with_memory(costs: CommunicationCosts, catalogue: Catalogue, chip: str) -> CommunicationCosts:
    """Accesses of a message, from those of a chunk and two ranks that the vendor states."""
    if not catalogue.has(chip, "hbm_in_collectives") or not catalogue.has(chip, "collective_copy"):
        return costs
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
        # No less than 1 B/s: 0 stands for a memory that is not known.
        hbm_bytes_per_s=max(1, int(share * peak)),
        hbm_peak_bytes_per_s=max(1, int(peak)),
        copy_bytes_per_s=max(1, int(copy)),
        dma_bytes_per_s=max(1, int(copy * catalogue.integer(chip, "ranks_per_chip"))),
        copy_accesses=ring[0] // 2,
        reduce_accesses=ring[1] // 2,
        fused_copy_accesses=pair[0] - ring[0] // 2,
        fused_reduce_accesses=pair[1] - ring[1] // 2,
    )


def _without_accesses(costs: CommunicationCosts) -> CommunicationCosts:
    return replace(
        costs,
        copy_accesses=0,
        reduce_accesses=0,
        fused_copy_accesses=0,
        fused_reduce_accesses=0,
    )


def _efficiency(catalogue: Catalogue, part: str, quantity: str) -> Fraction:
    stated = part in catalogue.parts() and catalogue.has(part, quantity)
    return catalogue.entry(part, quantity).exact if stated else Fraction(1)
