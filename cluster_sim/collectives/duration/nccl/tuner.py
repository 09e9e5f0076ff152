"""The protocol that NCCL picks for a collective: the fastest by its own cost model.

NCCL moves bytes in three protocols. LL sends a flag with every four bytes, so that it never waits
but wastes half of the wire; LL128 sends a flag with every 120 bytes; Simple sends long slices
behind a fence, which are slow to start and fast to run. Where switches can reduce, NVLS is a fourth
choice. NCCL has a table of the start, step and rate of each, and takes the least sum. Machines do
not follow that table: where NCCL changes to another protocol, measured times jump, by a factor of
two on some machines. So the costs that NCCL believes are apart from the true ones here. This module
has the believed costs, catalogue part ``nccl-tuner``; the true ones are in ``nccl.<chip>``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.duration.nccl.load import Load, Number
from topologies.catalogue.catalogue import Catalogue

PROTOCOLS = ("ll", "ll128", "simple")
PART = "nccl-tuner"


@dataclass(frozen=True)
class Believed:
    """Cost of one protocol on a machine, as NCCL's tuner believes it."""

    start_s: float  # before the first byte
    step_s: float  # over NVLink
    far_step_s: float  # between servers
    rate: float  # bus bandwidth inside a domain [B/s], 0 where the tuner does not use the protocol
    far_rate: float  # of one rank's adapter [B/s]


@dataclass(frozen=True)
class Tuner:
    """Costs and limits of a machine, as NCCL's tuner believes them."""

    protocols: tuple[Believed, ...]  # in the order of PROTOCOLS
    in_switch_s: float  # start of a reduction in the switch …
    in_switch_rate: float  # … and its bus bandwidth [B/s]; 0 where it cannot reduce
    message_bytes: float  # longest message that an exchange sends in protocol LL
    short_tree_bytes: float = 0.0  # longest buffer that a tree in LL128 carries in LL
    # Size of the buffer, divided by the chips of a server, from which a tree's chunks have their
    # full length; the second where few servers reduce in their switches [B].
    whole_chunks: float = np.inf
    whole_chunks_of_few: float = np.inf
    # Longest buffer that a tree in LL128 carries over 2, 4, 8, … domains [B]; empty where the
    # network plugin states none.
    tree_bytes: tuple[float, ...] = ()

    def longest_tree_bytes(self, domains: Number) -> Number | None:
        """Longest buffer that a tree in LL128 carries [B]; None where no plugin picks one."""
        if not self.tree_bytes:
            return None
        doublings = np.arange(1, len(self.tree_bytes) + 1)
        return np.asarray(np.interp(np.log2(domains), doublings, self.tree_bytes))


def tuner(catalogue: Catalogue, chip: str, fabric: str, adapter_rate: float) -> Tuner:
    """Look up what the tuner believes of a chip and a fabric ("" for none)."""
    of_chip, share = f"{PART}.{chip}", catalogue.value(PART, "ll128_share")
    links = catalogue.value(of_chip, "link_rate")
    has_channel = catalogue.has(of_chip, "ll128_channel_rate")
    channel = catalogue.value(of_chip, "ll128_channel_rate", 0.0)
    flight = catalogue.value(f"{PART}.{fabric}", "latency") if fabric else 0.0
    rates = {
        "ll": (
            catalogue.value(of_chip, "ll_rate"),
            adapter_rate * catalogue.value(PART, "ll_share"),
        ),
        "ll128": (links * share * has_channel, min(adapter_rate * share, channel)),
        "simple": (links, adapter_rate),
    }
    believed = [
        Believed(
            catalogue.value(PART, f"{name}_start"),
            catalogue.value(PART, f"{name}_step"),
            catalogue.value(PART, f"{name}_far_step") + flight * (2 if name == "simple" else 1),
            *rates[name],
        )
        for name in PROTOCOLS
    ]
    return Tuner(
        tuple(believed),
        catalogue.value(PART, "in_switch_start"),
        links * catalogue.value(of_chip, "in_switch_share", 0.0),
        catalogue.value(PART, "message"),
        catalogue.value(PART, "short_tree"),
        catalogue.value(PART, "whole_chunks"),
        catalogue.value(PART, "whole_chunks_of_few"),
        _tree_bytes(catalogue, f"{PART}.{fabric}") if fabric else (),
    )


def _tree_bytes(catalogue: Catalogue, part: str) -> tuple[float, ...]:
    """Read the largest buffers of trees in LL128 over 2, 4, 8, ... domains that are stated [B]."""
    names = (f"tree_up_to_{2**level}" for level in range(1, 16))
    stated = itertools.takewhile(lambda name: catalogue.has(part, name), names)
    return tuple(catalogue.value(part, name) for name in stated)


def pick(load: Load, tuner: Tuner, true_s: Sequence[Number]) -> Number:
    """Time of the protocol that the tuner picks [s], from the true times of ``PROTOCOLS`` and NVLS.

    Where one that the tuner believes to have a higher rate truly takes less time, that time is
    taken instead, so that more bytes never take less time.
    """
    believed = [_believed(load, protocol) for protocol in tuner.protocols]
    believed.append(_in_switch(load, tuner))
    start, slope = (
        np.stack(np.broadcast_arrays(*column)) for column in zip(*believed, strict=True)
    )
    cost = start + slope * load.size
    chosen = np.take_along_axis(slope, np.argmin(cost, axis=0, keepdims=True), axis=0)
    allowed = np.where(slope <= chosen, np.stack(np.broadcast_arrays(*true_s)), np.inf)
    shortest: Number = allowed.min(axis=0)
    return shortest


def _believed(load: Load, protocol: Believed) -> tuple[Number, Number]:
    """Believed start [s] and time for each byte [s/B] of a protocol round the ring."""
    if not protocol.rate:
        return np.inf, np.inf
    far_steps = load.domains - 1
    steps = load.steps + load.far_steps - far_steps
    start = protocol.start_s + steps * protocol.step_s + far_steps * protocol.far_step_s
    far = load.outside / protocol.far_rate if protocol.far_rate else 0.0
    return start, np.maximum(load.inside / protocol.rate, far) / load.size


def _in_switch(load: Load, tuner: Tuner) -> tuple[Number, Number]:
    if not tuner.in_switch_rate:
        return np.inf, np.inf
    reduces = np.asarray(load.in_switch) > 0
    rate = tuner.in_switch_rate * (1 - 1 / np.asarray(load.ranks, float))
    return np.where(reduces, tuner.in_switch_s, np.inf), np.where(reduces, 1 / rate, np.inf)
