"""Lower bounds of a collective's time: injection, cuts and memory at nominal rates, and latency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import fewest_accesses, hops_along
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import CommunicationCosts, communication_costs
from cluster_sim.schedule.table import PS_PER_S
from topologies.routing import clos, routes, scale_out_paths
from topologies.shapes.basic import Shape, Torus
from topologies.shapes.links import Links, coordinates, domain_links
from topologies.support.arrays import BoolArray, IntArray, distinct

MAX_PAIRS = 1 << 16
"""Pairs of chips among which the farthest is sought; of larger groups only pairs with the first
chip are compared."""
MOST_PLACES = 1 << 25
"""Chips times cuts across one axis that are examined; of a larger domain fewer cuts are, which give
the same bound where the axis is a ring."""
LINKS_AT_ONCE = 1 << 17  # links that are summed at a time, so that no array of all of them is made
MOST_STACKED_CUTS = 16
"""Cuts along an axis that are examined where switches lead to switches: each is a flow problem."""


AROUND = "cut around a domain"
"""Name of the bound on what a scale-up domain can exchange with all others."""


@dataclass(frozen=True)
class Bound:
    """One reason why a collective cannot be faster: ``what``, such as ``"cut across Z"``."""

    what: str
    time_ps: int


def lower_bound(call: CollectiveCall, *, ideal: bool = False, sbuf: bool = False) -> Bound:
    """Return the tightest of all bounds of a call; if ``ideal`` or in ``sbuf``, memory is none."""
    return max(bounds(call, ideal=ideal, sbuf=sbuf), key=lambda bound: bound.time_ps)


def bounds(call: CollectiveCall, *, ideal: bool = False, sbuf: bool = False) -> list[Bound]:
    """Return all bounds of a call where chips alone reduce."""
    group = call.group
    reasons = [Bound("nothing to move", 0)]
    if len(group.chips) > 1 and call.size_bytes > 0:
        least = least_latency(group)
        # With fewer bytes than ranks some pairs of an all-gather have nothing to tell each other.
        everybody = call.kind in ("all-reduce", "broadcast", "permute")
        far = everybody or call.size_bytes >= group.ranks
        reasons.append(Bound("distance", _distance(call) if far else least))
        reasons.append(_injection(call, least))
        reasons += list(_cuts(call, least))
    if call.size_bytes > 0:
        reasons.append(_memory(call, communication_costs(group.cluster, ideal=ideal, sbuf=sbuf)))
    return reasons


def crossing_bytes(call: CollectiveCall, inside: int) -> Fraction:
    """Return the bytes that must leave a set of ``inside`` ranks, by any algorithm."""
    share = Fraction(call.size_bytes, call.ranks)
    outside = call.ranks - inside
    if call.kind == "all-reduce":
        return Fraction(call.size_bytes)
    # The set must send its shards, or its summed part of the others'; a broadcast need send none.
    return share * {
        "all-gather": inside,
        "reduce-scatter": outside,
        "all-to-all": inside * outside,
    }.get(call.kind, 0)


def _crossing_either_way(call: CollectiveCall, inside: int) -> Fraction:
    """Return the bytes that must cross adapters or uplinks, which are as fast in as out."""
    return max(crossing_bytes(call, inside), crossing_bytes(call, call.ranks - inside))


def _time(bytes_: Fraction, rate: int, least: int) -> int:
    """Return the time for bytes at a rate [B/s], and the least latency after it [ps]."""
    return int(bytes_ * PS_PER_S / rate) + least if rate > 0 else 0


def _injection(call: CollectiveCall, least: int) -> Bound:
    """Bound the time by injection: chips send what the operation needs through all their links."""
    group, size_bytes = call.group, call.size_bytes
    links = domain_links(group.cluster.shape)
    out = np.bincount(links.src, links.bandwidth_bytes_per_s, links.nodes).astype(np.int64)
    scale_out = group.cluster.scale_out
    nic = scale_out.bandwidth_bytes_per_s if scale_out and len(group.domains) > 1 else 0
    rates = out[group.chips % group.cluster.chips_per_domain] + nic
    chips, cores = len(group.chips), group.ranks_per_chip
    if call.kind in ("broadcast", "permute"):
        # Every chip, so also the one with the slowest links, receives or sends a whole buffer.
        return Bound("injection", _time(Fraction(size_bytes), int(rates.min()), least))
    if call.kind == "all-to-all":
        total = crossing_bytes(call, cores) * chips
    else:
        total = Fraction(size_bytes * (chips - 1) * call.ways)
    return Bound("injection", _time(total, int(rates.sum()), least))


def _memory(call: CollectiveCall, costs: CommunicationCosts) -> Bound:
    """Bound the time by memory: all memories serve the accesses of the most frugal algorithm."""
    need = call.size_bytes * fewest_accesses(call, costs)
    return Bound("hbm", _time(need, len(call.group.chips) * costs.hbm_peak_bytes_per_s, 0))


def _cuts(call: CollectiveCall, least: int) -> Iterator[Bound]:
    """Bound the time by cuts: of a domain from the rest, or across an axis or tier of a domain."""
    group = call.group
    scale_out = group.cluster.scale_out
    if len(group.domains) > 1 and scale_out is not None:
        least = _least_around(group)
        counts = np.bincount(group.domain - group.domain.min())
        for inside in distinct(counts[counts > 0]).tolist():
            need = _crossing_either_way(call, inside * group.ranks_per_chip)
            rate = group.cluster.chips_per_domain * scale_out.bandwidth_bytes_per_s
            yield Bound(AROUND, _time(need, rate, least))
        yield from _rack_cuts(call, least)
    else:
        yield from _axis_cuts(call, least)


def _axis_cuts(call: CollectiveCall, least: int) -> Iterator[Bound]:
    """Bound the time by cuts around layers, and halves, of a domain along each axis."""
    group, ranks = call.group, call.ranks
    chips = group.cluster.chips_per_domain
    local = group.chips % chips
    links = domain_links(group.cluster.shape)
    names = links.tiers if len(links.tiers) == len(group.cluster.shape.sizes) else None
    place, only_chips = coordinates(group.cluster.shape, np.arange(chips)), links.nodes == chips
    stacked = switches_are_stacked(links, chips)
    for axis, size in enumerate(group.cluster.shape.sizes):
        members = np.bincount(place[axis][local], minlength=size)
        for width in sorted({1, size // 2} - {0, size}):
            out = _outward_by_start(links, place[axis], size, width) if only_chips else None
            most = MOST_STACKED_CUTS if stacked else max(1, MOST_PLACES // chips)
            step = max(1, size // most)
            held = (_in_stretches(members, width) * group.ranks_per_chip).tolist()
            cuts = set()  # most of them are equal
            for start in range(0, size if width > 1 or size <= 64 else 1, step):
                if not 0 < held[start] < ranks:
                    continue
                if out is not None:
                    rate = int(out[start])
                else:
                    part = ((np.arange(size) - start) % size < width)[place[axis]]
                    rate = stacked_outward(links, part) if stacked else _outward(links, part)
                cuts.add((held[start], rate))
            name = f"cut across {names[axis] if names else axis}"
            for inside, rate in cuts:
                yield Bound(name, _time(crossing_bytes(call, inside), rate, least))


def _in_stretches(members: IntArray, width: int) -> IntArray:
    """Members of each stretch of ``width`` places around an axis, by its start.

    >>> _in_stretches(np.array([1, 2, 4, 8]), 2)
    array([ 3,  6, 12,  9])
    """
    sums = np.cumsum(np.concatenate([[0], members, members]))
    return np.asarray(sums[width : width + len(members)] - sums[: len(members)])


def _rack_cuts(call: CollectiveCall, least: int) -> Iterator[Bound]:
    """Bound the time by cuts around the chips below each group of switches."""
    group = call.group
    for layer in clos(group.cluster)[1][:-1]:
        if layer.chips % group.cluster.chips_per_domain:
            continue  # some domain lies below several switches, and its own links lead around them
        counts = np.bincount(group.chips // layer.chips)
        for inside in distinct(counts[(counts > 0) & (counts < len(group.chips))]).tolist():
            need = _crossing_either_way(call, inside * group.ranks_per_chip)
            yield Bound(f"cut around a {layer.name}", _time(need, layer.up_bytes_per_s, least))


def _outward_by_start(links: Links, place: IntArray, size: int, width: int) -> IntArray:
    """Sum the rates of links that leave each stretch of ``width`` coordinates of an axis [B/s]."""
    change = np.zeros(2 * size + 1, np.int64)

    # A link leaves the stretches that hold its source but not its target: ranges of starts, summed
    # by where they begin and end. At most half the axis wide, stretches share ends one way only.
    def add(first: IntArray, length: IntArray | int, rates: IntArray) -> None:
        np.add.at(change, first % size, rates)
        np.add.at(change, first % size + length, -rates)

    for begin in range(0, len(links.src), LINKS_AT_ONCE):
        some = slice(begin, begin + LINKS_AT_ONCE)
        src, dst = place[links.src[some]], place[links.dst[some]]
        rate = links.bandwidth_bytes_per_s[some]
        ahead = (dst - src) % size
        back = size - ahead
        on, off = ahead < width, (ahead > 0) & (back < width)
        add(src - width + 1, width, rate)
        add((dst - width + 1)[on], (width - ahead)[on], -rate[on])
        add((src - width + 1)[off], (width - back)[off], -rate[off])
    twice = np.cumsum(change[:-1])  # ranges that pass the end of the axis go on behind it
    leaves: IntArray = twice[:size] + twice[size:]
    return leaves


def _outward(links: Links, part: BoolArray) -> int:
    """Return the highest rate that can leave a set of chips [B/s]."""
    chips = len(part)
    from_chip, to_chip = links.src < chips, links.dst < chips
    rate = links.bandwidth_bytes_per_s
    inside = np.append(part, np.zeros(links.nodes - chips, np.bool_))
    both = from_chip & to_chip
    straight = int(rate[both & inside[links.src] & ~inside[links.dst]].sum())
    into = inside[links.src] & ~to_chip
    out_of = ~from_chip & to_chip & ~inside[links.dst]
    up = np.bincount(links.dst[into], rate[into], links.nodes)
    down = np.bincount(links.src[out_of], rate[out_of], links.nodes)
    # A switch with chips on both sides passes on what those inside send or those outside can take.
    return straight + int(np.minimum(up, down).sum())


def least_latency(group: Group) -> int:
    """Return the shortest latency of a step, after which the last byte arrives at best [ps]."""
    inner = domain_links(group.cluster.shape).latency_ps
    around = [_least_around(group)] if len(group.domains) > 1 else []
    return int(np.append(inner, around).min())


def _least_around(group: Group) -> int:
    """Return the shortest latency of a step between domains [ps]."""
    fabric = group.cluster.scale_out
    return fabric.latency_ps + min(fabric.climb_ps) if fabric is not None else 0


def _distance(call: CollectiveCall) -> int:
    """Return the latency between the farthest pair of ranks that must exchange data [ps]."""
    group = call.group
    chips, per_domain = group.chips, group.cluster.chips_per_domain
    if call.kind == "permute":
        src, dst = chips, np.roll(chips, -1)
    else:
        origins = chips if len(chips) ** 2 <= MAX_PAIRS and call.kind != "broadcast" else chips[:1]
        src, dst = (side.ravel() for side in np.meshgrid(origins, chips, indexing="ij"))
    inside = src // per_domain == dst // per_domain
    farthest = _farthest_inside(
        group.cluster.shape, src[inside] % per_domain, dst[inside] % per_domain
    )
    if not inside.all():
        between = scale_out_paths(group.cluster, src[~inside], dst[~inside])
        farthest = max(farthest, _most(between.latency_ps))
    return farthest


def _farthest_inside(shape: Shape, src: IntArray, dst: IntArray) -> int:
    """Return the largest latency between chips of one domain [ps]; on a torus in closed form."""
    if isinstance(shape, Torus):
        latency_ps = np.array([axis.latency_ps for axis in shape.axes])
        return _most(latency_ps @ hops_along(shape, src, dst))
    paths = routes(shape, src, dst)
    pair = np.repeat(np.arange(len(paths)), paths.hops)
    each_ps = domain_links(shape).latency_ps[paths.link]
    return _most(np.bincount(pair, each_ps, len(paths)))


def _most(values: IntArray | np.typing.NDArray[np.float64]) -> int:
    return int(values.max(initial=0))


LARGEST_CAPACITY = 2**31 - 1
"""Largest capacity in the flow problem, which takes integers of 32 bits."""


def switches_are_stacked(links: Links, chips: int) -> bool:
    """Return whether some link joins two switches, as the leaves and spines of a Clos."""
    return bool(((links.src >= chips) & (links.dst >= chips)).any())


def stacked_outward(links: Links, part: BoolArray) -> int:
    """Return the most that can leave a set of chips [B/s]: the maximum flow to others."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    # It equals the smallest cut, which puts each switch on a side (Ford and Fulkerson, 1956).
    rate = links.bandwidth_bytes_per_s
    unit = max(math.gcd(*rate.tolist()), -(-int(rate.sum()) // LARGEST_CAPACITY))
    source, target = links.nodes, links.nodes + 1
    inside = np.flatnonzero(part)
    outside = np.flatnonzero(~part)
    src = np.concatenate([links.src, np.full(len(inside), source), outside])
    dst = np.concatenate([links.dst, inside, np.full(len(outside), target)])
    capacity = np.append(-(-rate // unit), np.full(len(part), LARGEST_CAPACITY))
    graph = csr_array((capacity.astype(np.int32), (src, dst)), shape=(target + 1, target + 1))
    return int(maximum_flow(graph, source, target).flow_value) * unit
