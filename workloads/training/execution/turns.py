"""Turns that collectives take on a link where several of them meet.

The rings of a DMA engine are served round robin, a packet at a time, and so are the queues of an
adapter, whose packets are shorter. Alone, the messages of a
collective queue on a link in the order of its schedule; where another collective crosses the link,
its messages must wait neither for the whole queue nor by priorities that order the slices of one
collective. So messages are cut into parts, and each part joins the queue when the one before it in
its own collective has left the link. Alone a collective takes the time that it takes uncut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cluster_sim.hardware.fabric import WAYS
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, Edges, Flows, Schedule
from cluster_sim.trace.trace import run
from topologies.catalogue.catalogue import Catalogue
from topologies.support.arrays import BoolArray, IntArray

OUTSIDE = ("tx", "rx")  # kinds of adapters; between them lie the links of racks, ``WAYS``


class Turns(NamedTuple):
    """Lengths on the links of a domain, and at adapters and beyond, or parts of that length."""

    links: int
    adapters: int


PARTS = Turns(4, 8)
"""Parts of the messages that are shortest, so that they wait for little beside what they take. Of
Llama-3.1-8B over the links of an UltraServer sharing costs 3.2 % of a step, in packets 3.3 %, in
whole messages 5.2 %. Below thin uplinks tensor parallelism of a toy sends 64 KiB at once: quarters
of them make steps up to 4 % shorter than packets do, eighths are packets."""


def shortest_turns(numbers: Catalogue) -> Turns:
    """Return the shortest parts of messages [B]: a packet of a DMA ring, and one of an adapter."""
    return Turns(*(numbers.integer("training", f"{of}_turn") for of in ("link", "adapter")))


def turn_bytes(exchanges: Iterable[Iterable[Schedule]], least: Turns) -> Turns:
    """Return the lengths of parts [B], for the exchange whose largest message is the shortest.

    ``exchanges``: schedules of the collectives of each exchange; ``least``: shortest parts [B].
    What sends no more than a packet at once does not count: few of its bytes are on the links.
    """
    largest = np.array([_largest(collectives) for collectives in exchanges]).reshape(-1, len(least))
    shortest = [
        min((size for size in sizes if size > packet), default=0)
        for sizes, packet in zip(largest.T.tolist(), least, strict=True)
    ]
    parts = zip(least, shortest, PARTS, strict=True)
    return Turns(*(max(packet, size // count) for packet, size, count in parts))


def _largest(collectives: Iterable[Schedule]) -> Turns:
    """Return the largest messages of some collectives [B], 0 where none is sent."""
    largest = Turns(0, 0)
    for each in collectives:
        queues, outside = on_queues(each), _outside(each)
        kinds = (queues & ~outside, queues & outside)
        sizes = (int(each.size_bytes[kind].max(initial=0)) for kind in kinds)
        largest = Turns(*map(max, largest, sizes))
    return largest


def _outside(chunks: Schedule) -> BoolArray:
    """Return which ops hold an adapter or a link between racks."""
    kinds = [name in OUTSIDE or name.endswith(WAYS) for name in chunks.resources.kinds]
    return np.append(np.array(kinds, np.bool_)[chunks.resources.kind], False)[chunks.resource]


def in_turns(alone: Schedule, part_bytes: Turns) -> Schedule:
    """Return a collective whose messages are cut into parts that take turns with those of others.

    A message goes on from chip to chip part by part as well.
    """
    queues, parts = on_queues(alone), _parts(alone, part_bytes)
    first = np.cumsum(parts) - parts
    op = np.repeat(np.arange(len(alone)), parts)
    part = np.arange(len(op)) - first[op]

    def cut(column: IntArray) -> IntArray:
        whole = column.astype(np.int64)[op]
        return np.asarray((part + 1) * whole // parts[op] - part * whole // parts[op])

    duration, flows = cut(alone.duration_ps), alone.flows
    return schedule(
        OpColumns(
            kind=alone.kind[op],
            resource=alone.resource[op],
            duration_ps=duration,
            size_bytes=cut(alone.size_bytes),
            # Links serve parts in the order in which they come; other queues are left as they are.
            priority=np.where(queues, 0, alone.priority)[op],
        ),
        edges=_edges(alone, queues, parts, duration),
        resources=alone.resources,
        flows=Flows(
            first[flows.op].astype(np.int32),
            flows.cap_bytes_per_s,
            flows.ptr,
            flows.resource,
            flows.weight,
        ),
    )


def ops_of(calls: Iterable[tuple[Schedule, int]], part_bytes: Turns) -> int:
    """Count the ops of collectives in parts of these lengths [B], each called so many times."""
    several = list(calls)
    ops = {id(one): one for one, _ in several}
    counts = {key: int(_parts(one, part_bytes).sum()) for key, one in ops.items()}
    return sum(counts[id(one)] * count for one, count in several)


def on_queues(chunks: Schedule) -> BoolArray:
    """Return which ops hold a link or an adapter, which serves one at a time."""
    return np.append(chunks.resources.slots == 1, False)[chunks.resource]


def _parts(alone: Schedule, part_bytes: Turns) -> IntArray:
    """Return into how many parts each op is cut: equally many on all links of a message's way."""
    cuts = on_queues(alone) & (alone.kind == FIXED)
    part = np.where(_outside(alone), part_bytes.adapters, part_bytes.links)
    most = np.minimum(-(-alone.size_bytes // part), alone.duration_ps)
    parts = np.where(cuts, np.maximum(1, most), 1).astype(np.int64)
    through = alone.edges.start_mask()
    src, dst = alone.edges.sources()[through], alone.edges.dst[through]
    while (parts[src] != parts[dst]).any():
        fewer = np.minimum(parts[src], parts[dst])
        np.minimum.at(parts, src, fewer)
        np.minimum.at(parts, dst, fewer)
    return parts


def _edges(alone: Schedule, queues: BoolArray, parts: IntArray, duration: IntArray) -> Edges:
    """Edges of the parts: as before, from part to part, and along the queue of each link."""
    first, edges, lasts = np.cumsum(parts) - parts, alone.edges, alone.duration_ps.astype(np.int64)
    last = first + parts - 1
    src, dst, through = edges.sources(), edges.dst, edges.start_mask()
    inner = np.delete(np.arange(int(parts.sum())), first)
    # A part of a message that is forwarded as it arrives may leave when it has begun to arrive.
    hop = np.flatnonzero(through)
    hop = np.repeat(hop, parts[src[hop]])
    number = np.arange(len(hop)) - np.searchsorted(hop, hop)
    sent, received = first[src[hop]] + number, first[dst[hop]] + number
    wire = edges.lag_ps - np.maximum(0, lasts[src] - lasts[dst])
    lag = wire[hop] + np.maximum(0, duration[sent] - duration[received])
    before, after = _neighbours(alone, queues)
    ends = ~through
    none = np.zeros(len(inner) + len(before), np.int64)
    return Edges.from_pairs(
        len(duration),
        np.concatenate([last[src[ends]], inner - 1, last[before], sent]),
        np.concatenate([first[dst[ends]], inner, first[after], received]),
        np.concatenate([edges.lag_ps[ends], none, np.maximum(1, lag)]),
        np.arange(int(ends.sum()) + len(none) + len(sent)) >= int(ends.sum()) + len(none),
    )


def _neighbours(alone: Schedule, queues: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the ops that follow one another on a link if the collective is alone."""
    times, ops = run(alone).times, np.flatnonzero(queues)
    held = alone.resource[ops]
    order = ops[np.lexsort((ops, times.start_ps[ops], held))]
    before, after = order[:-1], order[1:]
    same = alone.resource[before] == alone.resource[after]
    return before[same], after[same]
