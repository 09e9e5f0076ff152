"""Ring collectives over one or several cycles of the same ranks at once.

In round t the rank at position p of a cycle sends block ``p - 1 - t`` (reduce-scatter and
all-reduce) or ``p - t`` (all-gather) to position p + 1, which sends it on in the next round. Where
each step crosses a link of its own and nothing else is shared, a block leaves no sooner than its
link has carried what came before: one array expression gives the ends of a round.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    broadcast_slices,
    waits_for_receivers,
)
from cluster_sim.collectives.algorithms.cycles import all_rings, both_ways, one_ring
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.few_ranks import (
    MOST_OPS,
    repeated_rounds_ps,
    schedule_of_few,
    spans_many_domains,
    with_one_latency,
    with_uplink_rate,
)
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import (
    EVERY,
    Channels,
    Chunks,
    Messages,
    cut,
    no_messages,
    one_chunk_messages,
)
from cluster_sim.engine.repeats import simulate_rounds
from cluster_sim.hardware.communication_costs import CommunicationCosts
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.build import merge
from cluster_sim.schedule.repeats import LargerBlocks, Rounds
from cluster_sim.schedule.table import HORIZON_PS, Edges, Schedule, transfer_ps
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from topologies.shapes.basic import Torus
from topologies.support.arrays import IntArray, distinct
from topologies.support.errors import InputError

ROUNDS_FROM = 200_000
"""Messages from which rounds are held a few at a time; fewer are as fast all at once."""
MOST_MESSAGES = 2 * 10**9
"""Most messages of rings that are run round by round, which takes about a quarter of an hour."""
RANKS_OF_FEW = 3
"""Ranks of a ring that stands for a longer one; with two, a ring and its reverse would be equal."""


def ring(call: CollectiveCall, rings: IntArray, slices: int = 1) -> Messages:
    """Write a call over cycles of its ranks, each cycle's share cut into ``slices``."""
    # 2 (n - 1) rounds of size / n bytes for an all-reduce, n - 1 for others (Patarasuk & Yuan,
    # 2009).
    rounds, reducing = (call.ranks - 1) * call.ways, (call.ranks - 1) * call.reduces
    messages = ring_rounds(
        rings, slices, ring_chunks(call, rings, slices), rounds, reducing=reducing
    )
    return replace(messages, handshakes=waits_for_receivers(call.group, call.size_bytes))


def ring_chunks(call: CollectiveCall, rings: IntArray, slices: int) -> Chunks:
    """Cut the payload into a chunk for each cycle, slice and position, numbered in this order."""
    order = np.repeat(rings, slices, axis=0)
    shards = cut(cut(call.size_bytes, call.ranks), len(order)).T
    pieces = np.take_along_axis(shards, order, axis=1)
    return Chunks.table(
        pieces, source=EVERY if call.reduces else order, target=EVERY if call.gathers else order
    )


def ring_rounds(
    rings: IntArray, slices: int, chunks: Chunks, rounds: int, *, reducing: int
) -> Messages:
    """Write rounds of rings, the first ``reducing`` of which add to what the receiver holds."""
    count, ranks = rings.shape
    parts = count * slices
    if rounds == 0:
        return no_messages(chunks, ranks)
    channels = Channels.table(rings, np.roll(rings, -1, axis=1))
    round_ = np.arange(rounds, dtype=np.int32)[:, None, None]
    channel = np.repeat(np.arange(count * ranks, dtype=np.int32).reshape(count, ranks), slices, 0)
    messages = one_chunk_messages(
        channel=np.broadcast_to(channel, (rounds, parts, ranks)),
        first=_blocks(rounds, parts, ranks, reducing > 0),
        reduce=round_ < reducing,
        step=round_,
        edges=_next_round(rounds, parts, ranks),
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )
    return replace(messages, cycles=count)


def _blocks(rounds: int, parts: int, ranks: int, reduces: bool) -> IntArray:
    """Return the chunk that each position sends in each round, int32 (rounds, parts, ranks)."""
    first = np.arange(ranks, dtype=np.int32) - np.int32(reduces)
    block = (first - np.arange(rounds, dtype=np.int32)[:, None]) % np.int32(ranks)
    base = np.arange(parts, dtype=np.int32)[:, None] * np.int32(ranks)
    return block[:, None, :] + base


def _next_round(rounds: int, parts: int, ranks: int) -> Edges:
    """Return the edges from position p in round t to p + 1 in round t + 1, in every part."""
    per_round = parts * ranks
    messages, edges = rounds * per_round, (rounds - 1) * per_round
    position = np.arange(per_round, dtype=np.int32).reshape(parts, ranks)
    following = np.roll(position, -1, axis=1).ravel()
    starts = np.arange(1, rounds, dtype=np.int32)[:, None] * np.int32(per_round)
    ptr = np.minimum(np.arange(messages + 1, dtype=np.int64), edges)
    return Edges(ptr, np.ravel(starts + following), np.broadcast_to(np.int64(0), edges))


def in_rounds(call: CollectiveCall, costs: CommunicationCosts, rings: IntArray) -> Rounds | None:
    """Write a call over rings as rounds; None for too few, and for several domains."""
    ranks = call.ranks
    if call.kind not in RING_KINDS or len(call.group.domains) > 1 or ranks <= RANKS_OF_FEW:
        return None
    # The first round waits for no other, and from the last none follows. Between them are the other
    # rounds of the reduce-scatter and those of the all-gather.
    if call.kind == "all-reduce":
        repeats = np.array([1, ranks - 2, ranks - 2, 1])
    else:
        repeats = np.array([1, ranks - 3, 1])
    chunks = ring_chunks(call, rings, costs.slices)
    size_bytes = chunks.size_bytes.reshape(-1, ranks)
    least, most = size_bytes.min(axis=1), size_bytes.max(axis=1)

    def with_blocks(size_bytes: IntArray) -> Schedule:
        """Write the rounds as if each ring cut its share into blocks of one size [B]."""
        alike = replace(chunks, size_bytes=np.repeat(size_bytes, ranks))
        reducing = call.reduces * len(repeats) // call.ways
        messages = ring_rounds(rings, costs.slices, alike, len(repeats), reducing=reducing)
        messages = replace(messages, handshakes=waits_for_receivers(call.group, call.size_bytes))
        return schedule_of_few(messages, call.group.cluster, call.group.chip_of_rank, costs)

    schedule, larger = with_blocks(least), None
    ops = (len(schedule) - ranks) // len(repeats)
    if (most > least).any():
        block = np.asarray(schedule.labels["chunk"])[:ops]
        both = merge(schedule, with_blocks(most))
        larger = LargerBlocks(both, size_bytes > least[:, None], block)
    return Rounds(schedule, ops, repeats, larger)


def _round_by_round_ps(
    call: CollectiveCall, costs: CommunicationCosts, rings_of: Callable[[CollectiveCall], IntArray]
) -> int | None:
    """Return the time of all messages, some rounds at a time [ps]; None where all fit at once."""
    if call.kind not in RING_KINDS:
        return None
    rings = rings_of(call)
    messages = len(rings) * costs.slices * call.ways * call.ranks**2
    if messages < ROUNDS_FROM:
        return None
    if messages > MOST_MESSAGES and len(call.group.domains) == 1:
        raise InputError(
            f"{call.kind} round rings of {call.ranks:,} ranks is {messages:.1e} messages; a "
            f"quarter of an hour runs {MOST_MESSAGES:.0e}. Use fewer ranks or --algorithm rdh."
        )
    rounds = in_rounds(call, costs, rings)
    return None if rounds is None else simulate_rounds(rounds)


def _over_many_domains_ps(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return the time of a ring over many domains, from a few ranks or rounds [ps]; else None."""
    group = call.group
    if not spans_many_domains(call):
        return None
    if len(group.domains) == group.ranks:
        return _one_rank_a_domain_ps(call, costs)
    messages = costs.slices * group.ranks * (group.ranks - 1) * call.ways
    if messages <= MOST_OPS:
        return None
    return _few_rounds_ps(call, costs, group.cluster, _with_all_hops(group), group.ranks)


def _few_rounds_ps(
    call: CollectiveCall, costs: CommunicationCosts, cluster: Cluster, chips: IntArray, ranks: int
) -> int:
    """Return the time of a ring of very many messages, from a few of its rounds [ps]."""
    # Exact in bandwidth; latencies are those of the hops that are run: within 0.4 % of all rounds
    # where it was compared (123 and 82 ranks over 62 domains).
    blocks = cut(-(-call.size_bytes // call.ranks), costs.slices)
    chunks = Chunks.table(np.repeat(blocks, len(chips)), EVERY, EVERY)
    few, reducing = np.arange(len(chips))[None], (ranks - 1) * call.reduces

    def schedule_of(rounds: int) -> Schedule:
        messages = ring_rounds(few, costs.slices, chunks, call.ways * rounds, reducing=reducing)
        return schedule_of_few(messages, cluster, chips, costs)

    return repeated_rounds_ps(schedule_of, call.ranks - 1)


def _with_all_hops(group: Group) -> IntArray:
    """Return the shortest ring whose hops are those of a group's ring, in their order."""
    chips, each = group.chip_of_rank, group.cluster.chips_per_domain
    for count in np.flatnonzero((chips - chips[0]) % period(group.cluster) == 0)[1:].tolist():
        # Chips that repeat after whole periods of the fabric do the same in each; two periods have
        # the hop from one to the next in both directions.
        apart = chips[count:] - chips[:-count]
        if (apart == apart[0]).all():
            closes_alike = (chips[-1] - chips[count - 1]) % each == 0
            return chips[: 2 * count] if closes_alike and apart[0] else chips
    return chips


def _one_rank_a_domain_ps(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return the time of a ring with one rank in each of many domains, from three ranks [ps]."""
    group = call.group
    level = with_one_latency(group, group.chips, call.ways * (call.ranks - 1))
    chips = level.chips_per_domain * np.arange(RANKS_OF_FEW)
    slowest = with_uplink_rate(costs, group.cluster, group.chips)
    return _few_rounds_ps(call, slowest, level, chips, RANKS_OF_FEW)


def chain_broadcast(cycles: IntArray, size_bytes: int, slices: int) -> Messages:
    """Write a broadcast from rank 0 along cycles, slice after slice, each cycle with its share."""
    count, ranks = cycles.shape
    start = np.argmax(cycles == 0, axis=1)
    order = np.stack([np.roll(cycle, -by) for cycle, by in zip(cycles, start, strict=True)])
    chunks = Chunks.table(cut(cut(size_bytes, count), slices), 0, EVERY)
    if ranks == 1:
        return no_messages(chunks, ranks)
    parts = count * slices
    chunk = np.broadcast_to(np.arange(parts, dtype=np.int32)[:, None], (parts, ranks - 1))
    channel = np.repeat(np.arange(count * (ranks - 1)).reshape(count, -1), slices, axis=0)
    row = np.arange(parts * (ranks - 1)).reshape(parts, ranks - 1)
    slice_ = np.tile(np.arange(slices, dtype=np.int32), count)[:, None]
    hop = np.arange(ranks - 1, dtype=np.int32)
    messages = one_chunk_messages(
        channel=channel,
        first=chunk,
        step=hop + slice_,
        edges=Edges.from_pairs(row.size, row[:, :-1].ravel(), row[:, 1:].ravel()),
        channels=Channels.table(order[:, :-1], order[:, 1:]),
        chunks=chunks,
        ranks=ranks,
    )
    # Earlier slices go first where they meet later ones on a link.
    return replace(messages, priority=np.broadcast_to(slice_, chunk.shape).ravel(), cycles=count)


def _ring_algorithm(
    name: str,
    summary: str,
    rings: Callable[[CollectiveCall], IntArray],
    few: Callable[[CollectiveCall, CommunicationCosts], int | None] = lambda call, costs: None,
) -> Algorithm:
    """Make an algorithm that runs over the rings which ``rings`` returns for a call."""

    def messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
        """Write the messages of all rings."""
        chains = rings(call)
        if call.kind == "broadcast":
            slices = broadcast_slices(call, len(chains))
            return chain_broadcast(chains, call.size_bytes, slices)
        return ring(call, chains, costs.slices)

    def message_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
        """Count the messages of all rings without writing them."""
        if call.ranks == 1:
            return 0
        count = len(rings(call))
        if call.kind == "broadcast":
            return count * broadcast_slices(call, count) * (call.ranks - 1)
        return count * costs.slices * call.ranks * (call.ranks - 1) * call.ways

    def rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
        """Count the messages that follow one another along the longest chain."""
        if call.kind == "broadcast" and call.ranks > 1:
            chains = len(rings(call))
            return call.ranks - 2 + broadcast_slices(call, chains)
        return call.ways * (call.ranks - 1)

    def stands_for(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
        """Take a few of very many ranks, clocks of links, or some rounds at a time."""
        of_few = few(call, costs)
        if of_few is None:
            of_few = rings_alone_ps(call, costs, rings)
        return _round_by_round_ps(call, costs, rings) if of_few is None else of_few

    def streamed_ops(call: CollectiveCall, costs: CommunicationCosts) -> int:
        """Count the ops of a call whose rounds are alike."""
        rounds = in_rounds(call, costs, rings(call))
        return 0 if rounds is None else rounds.all_ops

    return Algorithm(
        name=name,
        summary=summary,
        kinds=(*RING_KINDS, "broadcast"),
        messages=messages,
        message_count=message_count,
        rounds=rounds,
        stands_for=stands_for,
        streamed_ops=streamed_ops,
    )


RING = _ring_algorithm(
    "ring", "one directed cycle", lambda call: one_ring(call.group), _over_many_domains_ps
)
BIDIRECTIONAL_RING = _ring_algorithm(
    "bidirectional-ring",
    "the cycle both ways, half the payload each",
    lambda call: both_ways(one_ring(call.group)),
)
MULTI_RING = _ring_algorithm(
    "multi-ring",
    "Hamiltonian cycles that share out all cables",
    lambda call: all_rings(call.group, call.size_bytes // (call.group.ranks_per_chip * call.ranks)),
)


REMEMBERED = 16  # groups whose links are remembered: a step calls each with many sizes


def rings_alone_ps(
    call: CollectiveCall, costs: CommunicationCosts, rings_of: Callable[[CollectiveCall], IntArray]
) -> int | None:
    """Time of a call over rings that share nothing [ps]; None for others, and past the horizon."""
    group = call.group
    torus = isinstance(group.cluster.shape, Torus) and len(group.domains) == 1
    # Messages take turns at links alone, and do not leave the torus.
    alone = group.ranks_per_chip == 1 and not costs.issue_ps and not costs.hbm_bytes_per_s
    if call.kind not in RING_KINDS or group.ranks == 1 or not (torus and alone):
        return None
    rings = rings_of(call)
    steps = _steps(group.cluster, costs, group.chips.tobytes(), rings.tobytes())
    if steps is None:
        return None
    rate_bytes_per_s, latency_ps = steps
    blocks_bytes = ring_chunks(call, rings, costs.slices).size_bytes
    blocks_bytes = blocks_bytes.reshape(len(rings), costs.slices, group.ranks)
    wire_ps = transfer_ps(blocks_bytes, np.array(rate_bytes_per_s)) * (blocks_bytes > 0)
    rounds = call.ways * (group.ranks - 1)
    return last_end_ps(wire_ps, latency_ps, rounds)


@functools.lru_cache(REMEMBERED)
def _steps(
    cluster: Cluster, costs: CommunicationCosts, chips: bytes, order: bytes
) -> tuple[int, int] | None:
    """Return rate [B/s] and latency [ps] of rings' steps; None where they differ or share links."""
    chip = np.frombuffer(chips, np.int64)
    here = chip[np.frombuffer(order, np.int32).reshape(-1, len(chip))]
    domain = distinct(chip // cluster.chips_per_domain)
    links = fabric(cluster, domain, costs=costs)
    paths = links.route(here.ravel(), np.roll(here, -1, axis=1).ravel())
    rates, latencies = distinct(links.rate[paths.resource]), distinct(paths.latency_ps)
    crosses_one = len(paths.resource) == here.size and bool((np.diff(paths.ptr) == 1).all())
    alone = crosses_one and len(distinct(paths.resource)) == here.size
    if not alone or len(rates) > 1 or len(latencies) > 1:
        return None
    return int(rates[0]), int(latencies[0])


def last_end_ps(wire_ps: IntArray, latency_ps: int, rounds: int) -> int | None:
    """Time at which the last message of all rounds has arrived [ps]; None past the horizon."""
    # (rings, slices, blocks): a link meets the blocks in falling order, and an empty one takes no
    # time and waits for nobody.
    slices = wire_ps.shape[1]
    if rounds * (slices * int(wire_ps.max()) + latency_ps) > HORIZON_PS:
        return None
    each = [np.ascontiguousarray(wire_ps[:, number]) for number in range(slices)]
    some_empty = [bool((wire == 0).any()) for wire in each]
    arrived = [np.zeros_like(wire) for wire in each]
    free = np.zeros_like(each[0])
    for _ in range(rounds):
        for number, wire in enumerate(each):
            sent = np.maximum(arrived[number], free) + wire
            if some_empty[number]:
                free = np.where(wire == 0, free, sent)
                sent = np.where(wire == 0, arrived[number], sent)
            else:
                free = sent
            arrived[number] = sent + latency_ps
        free = np.roll(free, -1, axis=1)  # the link that a block comes to next has carried the next
    return max(int(last.max()) for last in arrived)
