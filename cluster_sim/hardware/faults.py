"""Faults as users write them, ``link:0-1@0s:slow=1/2`` or ``tx:5@1ms:dead``, and ways around them.

Messages go around cables that are down by the shortest way within their domain.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from cluster_sim.engine.faults import LARGEST_TERM, Faults
from cluster_sim.hardware.fabric import Fabric, Paths, fabric
from cluster_sim.schedule.table import Schedule
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import IntArray, pointers
from topologies.support.errors import InputError, suggestion
from topologies.support.units import parse_ps

if TYPE_CHECKING:
    import networkx as nx


FORM = re.compile(
    r"([A-Za-z][A-Za-z-]*:(s?)(\d+)(?:-s?\d+)?(?:\.\d+)?)(?:@([^:]+))?:(dead|slow=(\d+)/(\d+))",
    re.ASCII,
)
"""Fault as text. A node that begins with s is a switch, as in ``link:3-s0``; without a time it is
there from the start."""
EXAMPLE = "engine:5@1ms:slow=1/2, cable:0-1@0s:slow=1/2, or :dead"


@dataclass(frozen=True)
class Fault:
    """A fault: from an instant on, a resource runs at a part of its speed or not at all."""

    resource: str  # name as a trace prints it
    chip: int  # that owns the resource; -1 for a link that leaves a switch
    time_ps: int
    numerator: int  # speed as a fraction of the nominal speed; 0/1 is dead
    denominator: int


def parse_fault(text: str) -> Fault:
    """Parse ``RESOURCE@TIME:dead`` or ``RESOURCE@TIME:slow=P/Q``; the time is 0 if none is stated.

    >>> parse_fault("adapter:3:slow=1/2").time_ps
    0
    """
    parts = FORM.fullmatch(text.strip())
    if parts is None:
        raise InputError(
            f"fault {text[:60]!r} is not RESOURCE@TIME:dead|slow=P/Q. Write {EXAMPLE}."
        )
    resource, switch, node, instant, what, top, bottom = parts.groups()
    chip = -1 if switch else int(node)
    time_ps = parse_ps(instant or "0s", "fault time")
    if what == "dead":
        return Fault(resource, chip, time_ps, 0, 1)
    numerator, denominator = int(top), int(bottom)
    if not 1 <= numerator <= LARGEST_TERM or not 1 <= denominator <= LARGEST_TERM:
        raise InputError(
            f"fault {text[:60]!r}: P and Q of slow=P/Q must be from 1 to {LARGEST_TERM}. "
            "Use dead for a speed of 0."
        )
    if numerator > denominator:
        raise InputError(
            f"fault {text[:60]!r}: a speed of {top}/{bottom} is above nominal. Write at most 1/1."
        )
    return Fault(resource, chip, time_ps, numerator, denominator)


def spelled_out(
    faults: Sequence[Fault], cluster: Cluster, ranks_per_chip: int = 1
) -> tuple[Fault, ...]:
    """Replace faults of cables by those of a link each way, of adapters, chips, servers alike.

    >>> from topologies.clusters.names import cluster
    >>> slow = parse_fault("cable:0-1@0s:slow=1/2")
    >>> [fault.resource for fault in spelled_out([slow], cluster("trn2.48xlarge"))]
    ['link:0-1', 'link:1-0']
    """
    return tuple(
        replace(fault, resource=name, chip=chip)
        for fault in faults
        for name, chip in _resources_of(fault, cluster, ranks_per_chip)
    )


def _resources_of(fault: Fault, cluster: Cluster, ranks_per_chip: int) -> Sequence[tuple[str, int]]:
    """Names of the resources that a fault means, and the chip that each is on."""
    kind, _, place = fault.resource.partition(":")
    if kind == "cable":
        ends, dot, lane = place.partition(".")
        start, _, end = ends.partition("-")
        return [(f"link:{way}{dot}{lane}", fault.chip) for way in (ends, f"{end}-{start}")]
    if kind == "adapter":
        return [(f"{side}:{place}", fault.chip) for side in ("tx", "rx")]
    each = {"chip": 1, "server": cluster.chips_per_server}.get(kind, 0)
    if not each:
        return [(fault.resource, fault.chip)]
    count = cluster.chips // each
    if not 0 <= fault.chip < count:
        raise InputError(
            f"no {fault.resource} on {cluster.name}; {kind}s are numbered 0 to {count - 1:,}."
        )
    chips = range(fault.chip * each, (fault.chip + 1) * each)
    lanes = ["", *(f".{lane}" for lane in range(1, ranks_per_chip))]
    return [(f"engine:{chip}{lane}", chip) for chip in chips for lane in lanes]


def _remedy(kind: str, names: Sequence[str], kinds: Sequence[str]) -> str:
    """Say where resources of a kind that this run does not have are found."""
    if kind in OF_MESSAGES and not set(kinds) & set(OF_MESSAGES):
        return (
            "A collective is one op at this level; use --level chunk or flow, which have links "
            "and adapters, or cluster-sim collective --fault."
        )
    ends = next((name[4:] for name in names if name.startswith("link:")), ":0-1")
    return f"Take one from the trace, or write cable{ends}, adapter:0, chip:0 or server:0."


OF_MESSAGES = ("link", "tx", "rx", "uplink", "switch", "down", "up", "port", "nic")
"""Kinds of resources that messages cross; only schedules of single messages have them."""


def gone_around(faults: Sequence[Fault]) -> tuple[tuple[str, ...], tuple[Fault, ...]]:
    """Part links that are down for good, which messages go around, from all other faults."""
    often = [fault.resource for fault in faults]
    down = [
        fault
        for fault in faults
        if not (fault.numerator or fault.time_ps)
        and fault.resource.startswith("link:")
        and often.count(fault.resource) == 1
    ]
    return tuple(each.resource for each in down), tuple(f for f in faults if f not in down)


def fault_table(
    schedule: Schedule, faults: Sequence[Fault], cluster: Cluster | None = None
) -> Faults:
    """Return a table of faults of a schedule's resources; those elsewhere are warned of."""
    names = schedule.resources.names()
    number = {name: place for place, name in enumerate(names)}
    elsewhere = [
        fault
        for fault in faults
        if cluster and fault.resource not in number and stands_in(cluster, fault.resource)
    ]
    for fault in elsewhere:
        _tell_idle(fault.resource)
    faults = [fault for fault in faults if fault not in elsewhere]
    for fault in faults:
        if fault.resource not in number:
            kinds = sorted({name.split(":")[0] for name in names})
            kind = fault.resource.split(":")[0]
            raise InputError(
                f"no resource {fault.resource} in this run; kinds are {', '.join(kinds)}."
                f"{suggestion(fault.resource, names)} {_remedy(kind, names, kinds)}"
            )
    events = [(fault.resource, fault.time_ps) for fault in faults]
    for event in events:
        if events.count(event) > 1:
            raise InputError(f"{event[0]} has two faults at {event[1]:,} ps. State one of them.")
    return Faults.table(
        [fault.time_ps for fault in faults],
        [number[fault.resource] for fault in faults],
        [fault.numerator for fault in faults],
        [fault.denominator for fault in faults],
    )


def with_standing(whole: Schedule, faults: Faults) -> Schedule:
    """Return a schedule that takes as long as with faults that slow it from start to end."""
    top, bottom = np.ones((2, len(whole.resources) + 1), np.int64)  # the last is for no resource
    top[faults.resource], bottom[faults.resource] = faults.numerator, faults.denominator

    def slowed(rate: IntArray, at: IntArray) -> IntArray:
        wholes, rest = np.divmod(rate, bottom[at])
        return np.asarray(wholes * top[at] + rest * top[at] // bottom[at])

    # As rule 8 says of ops that start on a slow resource, and of edges from their starts.
    lasts = -(-whole.duration_ps * bottom[whole.resource] // top[whole.resource])
    later = np.where(
        whole.edges.start_mask(), (lasts - whole.duration_ps)[whole.edges.sources()], 0
    )
    capacity = slowed(whole.resources.capacity, np.arange(len(whole.resources)))
    caps = slowed(whole.flows.cap_bytes_per_s, whole.resource[whole.flows.op])
    return replace(
        whole,
        duration_ps=lasts,
        edges=replace(whole.edges, lag_ps=whole.edges.lag_ps + later),
        resources=replace(whole.resources, capacity=capacity),
        flows=replace(whole.flows, cap_bytes_per_s=caps),
    )


def stands_in(cluster: Cluster, resource: str) -> bool:
    """Return whether a cluster has a resource that messages cross, near its first chip."""
    chip = re.search(r"[:-]([0-9]{1,12})", resource)
    if chip is None or int(chip[1]) >= cluster.chips:
        return False
    domain = int(chip[1]) // cluster.chips_per_domain
    return resource in fabric(cluster, [domain]).resources.names()


@cache
def _tell_idle(resource: str) -> None:
    """Say once that a fault changes nothing; several runs of one command may meet it."""
    logging.getLogger("cluster_sim").warning(
        "cluster-sim: the fault of %s has no effect: nothing in this run uses it", resource
    )


def with_detours(fabric: Fabric, down: Sequence[str]) -> Fabric:
    """Return a fabric whose messages go around links between chips that are down."""
    if not down:
        return fabric
    import networkx as nx

    table = fabric.resources
    links = len(fabric.domains) * len(fabric.links)
    names = table.names(np.arange(links))
    dead = [number for number, name in enumerate(names) if name in set(down)]
    if not dead:
        return fabric
    ends = list(zip(table.owner[:links].tolist(), table.peer[:links].tolist(), strict=True))
    working: nx.DiGraph[int] = nx.DiGraph()
    for link in sorted(set(range(links)) - set(dead), reverse=True):  # of equals the first remains
        working.add_edge(*ends[link], link=link)
    ways = {link: _way(fabric, working, names[link], *ends[link]) for link in dead}
    return replace(fabric, ways=ways)


def _way(fabric: Fabric, working: nx.DiGraph[int], name: str, start: int, end: int) -> IntArray:
    """Resources of the shortest way from one chip to another over links that work."""
    import networkx as nx

    if max(start, end) >= fabric.cluster.chips:
        raise InputError(
            f"{name} is down, and a chip has no other way to its switch. Write slow=P/Q for a "
            "port of which some lanes are down."
        )
    try:
        nodes = nx.shortest_path(working, start, end)
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        raise InputError(
            f"{name} is down, and no other links lead from chip {start} to {end}. Leave one of "
            "them up, or write slow=P/Q."
        ) from None
    return np.array([working.edges[hop]["link"] for hop in nx.utils.pairwise(nodes)], np.int64)


def around(paths: Paths, fabric: Fabric) -> Paths:
    """Return paths that take the detours of a fabric in place of its dead links."""
    ptr, resource, latency = paths.ptr, paths.resource, paths.latency_ps
    for link, way in fabric.ways.items():
        at = np.flatnonzero(resource == link)
        pair = np.searchsorted(ptr, at, side="right") - 1
        more = (len(way) - 1) * np.bincount(pair, minlength=len(ptr) - 1)
        ptr = ptr + pointers(more)
        place = np.repeat(at - np.arange(len(at)), len(way))  # among the hops that remain
        over = np.tile(way, len(at))
        resource = np.insert(np.delete(resource, at), place, over)
        latency = np.insert(np.delete(latency, at), place, fabric.latency_ps[over])
    return replace(paths, ptr=ptr, resource=resource, latency_ps=latency)
