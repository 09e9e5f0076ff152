"""Collectives in which ranks send straight to one another: meshes, all-to-alls and permutes."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.hierarchical import rank_table
from cluster_sim.collectives.call import RING_KINDS, CollectiveCall
from cluster_sim.collectives.few_ranks import schedule_of_few
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
from cluster_sim.hardware.communication_costs import CommunicationCosts, communication_costs
from cluster_sim.schedule.table import PS_PER_S, Edges
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing import Routes, routes
from topologies.shapes.basic import Torus
from topologies.shapes.links import coordinates, domain_links
from topologies.support.arrays import BoolArray, IntArray, distinct, pointers, runs


def mesh(call: CollectiveCall) -> Messages:
    """Write an all-reduce, all-gather or reduce-scatter by direct exchange of shards."""
    ranks, reduces, gathers = call.ranks, call.reduces, call.gathers
    rank = np.arange(ranks, dtype=np.int32)
    chunks = Chunks.table(
        cut(call.size_bytes, ranks),
        source=EVERY if reduces else rank,
        target=EVERY if gathers else rank,
    )
    if ranks == 1:
        return no_messages(chunks, ranks)
    src, dst, channels = _all_pairs(ranks)
    channel = ranks + np.arange(len(src), dtype=np.int32)
    # Blocks of channel, chunk, whether it is added, and step. On every rank a join stands between
    # the parts of a shard and their sum.
    blocks = [(channel, dst, True, 0)] * reduces + [(rank, rank, False, 0)] * (reduces and gathers)
    blocks += [(channel, src, False, int(reduces))] * gathers
    channels_used, first, *rest = zip(*blocks, strict=True)
    reduce, step = (np.repeat(values, list(map(len, first))) for values in rest)
    return one_chunk_messages(
        channel=np.concatenate(channels_used),
        first=np.concatenate(first),
        reduce=reduce,
        step=step,
        edges=_two_phases(ranks, dst) if len(blocks) == 3 else None,
        channels=channels,
        chunks=chunks,
        ranks=ranks,
    )


def _whole_buffers(call: CollectiveCall, src: IntArray, dst: IntArray) -> Messages:
    """Write one step in which each source sends its whole buffer to its receiver."""
    return one_chunk_messages(
        channel=np.arange(len(src)),
        first=np.zeros(len(src), np.int32),
        reduce=call.reduces,
        channels=Channels.table(src, dst),
        chunks=Chunks.table([call.size_bytes], EVERY if call.reduces else 0, EVERY),
        ranks=call.ranks,
    )


def _all_pairs(ranks: int) -> tuple[IntArray, IntArray, Channels]:
    """Return source, destination and channels of all pairs; first come the channels for joins."""
    rank = np.arange(ranks, dtype=np.int32)
    dst = (rank + np.arange(1, ranks, dtype=np.int32)[:, None]) % np.int32(ranks)
    src = np.broadcast_to(rank, dst.shape).ravel()
    channels = Channels.table(np.append(rank, src), np.append(rank, dst.ravel()))
    return src, dst.ravel(), channels


def _two_phases(ranks: int, dst: IntArray) -> Edges:
    """Return edges from the first phase to the receivers' joins, and from these to the second."""
    pairs, rank = len(dst), np.arange(ranks)
    second = pairs + ranks + np.arange(pairs).reshape(ranks - 1, ranks)
    sources = np.append(np.arange(pairs), np.repeat(pairs + rank, ranks - 1))
    return Edges.from_pairs(2 * pairs + ranks, sources, np.append(pairs + dst, second.T))


def _mesh_messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "broadcast":
        others = np.arange(1, call.ranks)
        return _whole_buffers(call, np.zeros_like(others), others)
    return mesh(call)


def _mesh_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    ranks = call.ranks
    if call.kind == "broadcast" or ranks == 1:
        return ranks - 1
    return ranks * (call.ways * ranks - 1)  # with a join a rank between two ways


MESH = Algorithm(
    name="mesh",
    summary="every shard straight to its owner, and back to all",
    kinds=(*RING_KINDS, "broadcast"),
    messages=_mesh_messages,
    message_count=_mesh_count,
    rounds=lambda call, costs: call.ways if call.ranks > 1 else 0,
    crosses_links=True,
)
SINGLE_STEP_MESH = Algorithm(
    name="single-step-mesh",
    summary="the whole buffer to everybody",
    kinds=("all-reduce",),
    messages=lambda call, costs: _whole_buffers(call, *_all_pairs(call.ranks)[:2]),
    message_count=lambda call, costs: call.ranks * (call.ranks - 1),
    rounds=lambda call, costs: int(call.ranks > 1),
    # Each rank receives the whole buffer of every other rank.
    memory_accesses=lambda call, costs: Fraction(
        call.ranks * (call.ranks - 1) * costs.reduce_accesses
    ),
    crosses_links=True,
)


def direct(group: Group, size_bytes: int | IntArray) -> Messages:
    """Write one message from each rank to each other, in rounds (see :func:`_pairs`)."""
    # A whole buffer of one rank [B], or what each rank has for each other (ranks, ranks) [B].
    src, dst, step, size = _sized_pairs(group, size_bytes)
    chunks = Chunks.table(size, src, dst)
    if not len(src):
        return no_messages(chunks, group.ranks)
    each = np.arange(len(src), dtype=np.int32)
    return one_chunk_messages(
        channel=each,
        first=each,
        step=step,
        channels=Channels.table(src, dst),
        chunks=chunks,
        ranks=group.ranks,
    )


def dimension_ordered(group: Group, size_bytes: int | IntArray) -> Messages:
    """Write messages that travel axis by axis, hop by hop, on a box of one rank a chip."""
    src, dst, step, whole = _sized_pairs(group, size_bytes)
    box = group.box
    if not len(src):
        return no_messages(Chunks.table([], src, dst), group.ranks)
    shape, local = group.cluster.shape, group.chips % group.cluster.chips_per_domain
    tied = _tied(group, src, dst)
    orders = [np.roll(box.axes[::-1], -turn).tolist() for turn in range(len(box.axes))]
    unused = [axis for axis in range(len(group.cluster.shape.sizes)) if axis not in box.axes]
    parts = cut(whole, len(orders))
    legs, pair, size = [], [], []
    for turn, order in enumerate(orders):
        # Pairs half-way round a ring send half of their bytes each way.
        halves = cut(parts[:, turn], 2)
        for tie, picked, share in (
            (1, ~tied, parts[:, turn]),
            (1, tied, halves[:, 0]),
            (-1, tied, halves[:, 1]),
        ):
            row = np.flatnonzero(picked)
            from_chip, to_chip = local[src[row]], local[dst[row]]
            legs.append(routes(shape, from_chip, to_chip, axis_order=[*order, *unused], tie=tie))
            pair.append(row)
            size.append(share[row])
    return _routed(group.ranks, src, dst, step, np.concatenate(pair), np.concatenate(size), legs)


def _routed(
    ranks: int,
    src: IntArray,
    dst: IntArray,
    step: IntArray,
    pair: IntArray,
    size: IntArray,
    legs: list[Routes],
) -> Messages:
    """Write messages over routes of their own, those with the most hops first."""
    hops = np.concatenate([leg.hops for leg in legs])
    begin = np.cumsum(hops) - hops
    link = np.concatenate([leg.link for leg in legs])
    order = np.lexsort((begin, -hops))
    pair, size, hops, begin = pair[order], size[order], hops[order], begin[order]
    along = runs(begin, hops)
    each = np.arange(len(pair), dtype=np.int32)
    return one_chunk_messages(
        channel=each,
        first=each,
        step=step[pair],
        channels=Channels.table(src[pair], dst[pair], pointers(hops), link[along]),
        chunks=Chunks.table(size, src[pair], dst[pair]),
        ranks=ranks,
    )


def _tied(group: Group, src: IntArray, dst: IntArray) -> BoolArray:
    """Return which pairs lie half-way round an even ring of some axis, bool (pairs,)."""
    local = group.chips % group.cluster.chips_per_domain
    shape = group.cluster.shape
    if not isinstance(shape, Torus):
        return np.zeros(len(src), np.bool_)
    tied = np.zeros(len(src), np.bool_)
    for at, axis in zip(coordinates(shape, local), shape.axes, strict=True):
        if axis.wrap and axis.size > 1:
            tied |= 2 * ((at[dst] - at[src]) % axis.size) == axis.size
    return tied


def _pairs(group: Group) -> tuple[IntArray, IntArray, IntArray]:
    """Return source, destination and round of all pairs of different ranks, round by round."""
    ranks, table = group.ranks, rank_table(group)
    places = np.arange(ranks)[None, :] if table is None else table
    step = np.arange(1, ranks, dtype=np.int32)[:, None]
    domain, place = np.divmod(np.argsort(places.ravel()), places.shape[1])
    # All ranks send the same number of domains, and of places inside the domain, on: no two send to
    # one rank, even where messages within domains do not wait for those between domains.
    to_domain = (domain + step // places.shape[1]) % len(places)
    dst = places[to_domain, (place + step) % places.shape[1]].astype(np.int32)
    src = np.arange(ranks, dtype=np.int32)
    spread = np.broadcast_to
    return spread(src, dst.shape).ravel(), dst.ravel(), spread(step - 1, dst.shape).ravel()


def _sized_pairs(
    group: Group, size_bytes: int | IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return source, destination, round and bytes of all pairs that have something to send."""
    src, dst, step = _pairs(group)
    if isinstance(size_bytes, np.ndarray):
        size = size_bytes[src, dst]
        sent = size > 0
        return src[sent], dst[sent], step[sent], size[sent]
    return src, dst, step, cut(size_bytes, group.ranks)[dst]


def permute(ranks: int, size_bytes: int) -> Messages:
    """Write a permute: each rank sends its buffer to the next, the last to the first."""
    src = np.arange(ranks, dtype=np.int32)
    dst = (src + 1) % np.int32(ranks)
    chunks = Chunks.table(np.full(ranks, size_bytes), src, dst)
    if ranks == 1:
        return no_messages(chunks, ranks)
    return one_chunk_messages(
        channel=src, first=src, channels=Channels.table(src, dst), chunks=chunks, ranks=ranks
    )


def _direct(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
    if call.kind == "permute":
        return permute(call.ranks, call.size_bytes)
    return direct(call.group, call.size_bytes)


def _direct_rounds(call: CollectiveCall, costs: CommunicationCosts) -> int:
    others = call.ranks - 1
    return min(1, others) if call.kind == "permute" else others


def _ordered_count(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Count the messages: one for each pair and order of axes, two where the pair is half-way."""
    pairs = call.ranks * (call.ranks - 1)
    return len(call.group.box.sizes) * (pairs + _tied_pairs(call.group))


MOST_COUNTED = 512
"""Ranks up to which the load of links by all pairs is counted."""


def whole_messages_win(call: CollectiveCall) -> bool:
    """Return whether whole messages end before their parts by axes, which take long to issue."""
    group, costs = call.group, communication_costs(call.group.cluster)
    few = costs.issue_ps and group.ranks <= MOST_COUNTED
    if not few or group.ranks_per_chip > 1 or group.filled_box is None:
        return False
    issue_ps = _ordered_count(call, costs) * costs.issue_ps // (group.ranks * costs.cc_slots)
    chips = group.chips.tobytes()
    each_bytes = call.size_bytes // group.ranks
    wire_ps = each_bytes * _busiest_ps(group.cluster, costs, chips)
    # Near the size at which links need as long as CC-Cores, both are run.
    if not issue_ps <= 4 * wire_ps < 4 * issue_ps:
        return wire_ps < issue_ps
    return _whole_end_first(group.cluster, costs, chips, call.size_bytes)


@functools.lru_cache(64)  # groups: a step calls each with many sizes
def _busiest_ps(cluster: Cluster, costs: CommunicationCosts, chips: bytes) -> float:
    """Return how long the busiest link is for a byte from each chip to each other [ps]."""
    local = np.frombuffer(chips, np.int64) % cluster.chips_per_domain
    src, dst = np.nonzero(~np.eye(len(local), dtype=np.bool_))
    links = domain_links(cluster.shape)
    bytes_on = np.bincount(routes(cluster.shape, local[src], local[dst]).link, minlength=len(links))
    return float((bytes_on / costs.scale_up(links.bandwidth_bytes_per_s)).max()) * PS_PER_S


@functools.lru_cache(1024)
def _whole_end_first(
    cluster: Cluster, costs: CommunicationCosts, chips: bytes, size_bytes: int
) -> bool:
    """Run whole messages and their parts by axes, and say whether the former end first."""
    group = Group(cluster, np.frombuffer(chips, np.int64))
    whole, parts = (
        run(schedule_of_few(messages, cluster, group.chips, costs)).total_ps
        for messages in (direct(group, size_bytes), dimension_ordered(group, size_bytes))
    )
    return whole <= parts


def _tied_pairs(group: Group) -> int:
    """Count pairs that lie half-way round an even ring of some axis, in closed form on a box."""
    shape = group.cluster.shape
    if not isinstance(shape, Torus):
        return 0
    local = group.chips % group.cluster.chips_per_domain
    untied = 1  # pairs that are half-way round along no axis: the product over the axes
    for at, axis in zip(coordinates(shape, local), shape.axes, strict=True):
        places = distinct(at)
        pairs = len(places) ** 2
        if axis.wrap and axis.size > 1 and axis.size % 2 == 0:
            pairs -= int(np.isin((places + axis.size // 2) % axis.size, places).sum())
        untied *= pairs
    return group.ranks**2 - untied


DIRECT = Algorithm(
    name="direct",
    summary="all-to-all pair by pair; permute to the next rank",
    kinds=("all-to-all", "permute"),
    messages=_direct,
    message_count=lambda call, costs: call.ranks * _direct_rounds(call, costs),
    rounds=_direct_rounds,
    crosses_links=True,
)
DIMENSION_ORDERED = Algorithm(
    name="dimension-ordered",
    summary="all-to-all hop by hop, split over the axis orders and both ways round at ties",
    kinds=("all-to-all",),
    suits=lambda call: call.group.ranks_per_chip == 1 and call.group.filled_box is not None,
    messages=lambda call, costs: dimension_ordered(call.group, call.size_bytes),
    message_count=_ordered_count,
    rounds=lambda call, costs: call.ranks - 1,
    crosses_links=True,
)
