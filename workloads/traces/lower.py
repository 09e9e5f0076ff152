"""Lowering of a recording to a schedule on a cluster, where collectives are simulated.

Nodes of a lane run one at a time as dependencies allow. Members of a collective meet in a join,
then hold their network lanes for its time; a message holds the sender's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

import networkx as nx
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_sim.collectives import CollectiveCall, duration_ps
from cluster_sim.collectives import Group as ChipGroup
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, JOIN, Codes, Edges, Resources, Schedule
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import BoolArray, IntArray
from topologies.support.errors import InputError
from workloads.confidence.answers import collective_interval
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    KINDS,
    MEMORY,
    NOTHING,
    OPERATIONS,
    RECEIVE,
    SEND,
    UNKNOWN,
    Recording,
)

# Kind of resource that nodes of each kind run on.
LANE_KINDS = {COMPUTE: "engine", MEMORY: "engine", HOST: "host", NOTHING: "engine",
              COLLECTIVE: "cc", SEND: "send", RECEIVE: "recv"}  # fmt: skip


def check_ranks(ranks: int, cluster: Cluster) -> None:
    """Check that a cluster has a chip for each rank."""
    if ranks > cluster.chips:
        raise InputError(
            f"the replay is of {ranks:,} ranks, but {cluster.name} has {cluster.chips:,} chips. "
            "Replay it on a larger cluster, such as NAME:COUNT, or with fewer --ranks."
        )


def lower(
    recording: Recording, cluster: Cluster, *, communication: str = "simulated", end: str = ""
) -> tuple[Schedule, dict[str, int]]:
    """Return the schedule of a recording on a cluster, and what keeps its recorded time."""
    # Ops are in the order of the nodes, then come the joins in which collectives meet. What is kept
    # are communications that state no size, by name with the number of each.
    # ``communication`` ("simulated", "recorded"): whether communication takes its simulated time on
    # the cluster, or the recorded one. ``end`` ("low", "high"): end of its 80 % interval, in place
    # of the prediction.
    check_ranks(recording.world, cluster)
    check_acyclic(recording, recording.src, recording.dst, ())
    members = _members(recording, cluster)
    duration, kept = _durations(recording, cluster, members, communication, end)
    meets = collective_calls(recording)
    src, dst, lag = _edges(recording, meets)
    ops = len(recording) + len(meets)
    kind = np.full(ops, JOIN, np.uint8)
    timed = duration > 0
    kind[: len(recording)][timed] = FIXED
    resource, resources = _resources(recording, timed)
    check_acyclic(recording, src, dst, meets)
    lowered = schedule(
        OpColumns(
            kind=kind,
            resource=np.concatenate([resource, np.full(len(meets), -1)]),
            duration_ps=np.concatenate([duration, np.zeros(len(meets), np.int64)]),
            size_bytes=np.concatenate([recording.size_bytes, np.zeros(len(meets), np.int64)]),
        ),
        edges=Edges.from_pairs(ops, src, dst, lag),
        resources=resources,
        labels=_labels(recording, meets),
        facts={"trace": str(recording.facts.get("format", "")), "cluster": cluster.name},
    )
    return lowered, kept


def _members(recording: Recording, cluster: Cluster) -> list[IntArray]:
    """Ranks of each group: those that it lists, else those that call it, else all ranks."""
    # In the trace of a single rank, a group without a list has all chips of the cluster.
    ranks = recording.ranks
    all_ranks = ranks if len(ranks) > 1 else np.arange(cluster.chips)
    members = []
    for number, group in enumerate(recording.groups):
        callers = np.unique(recording.rank[recording.group == number])
        named = group.name and len(ranks) > 1
        unlisted = callers if named else all_ranks
        members.append(np.array(group.ranks, np.int64) if group.ranks else unlisted)
    return members


def _durations(
    recording: Recording,
    cluster: Cluster,
    members: Sequence[IntArray],
    communication: str,
    end: str,
) -> tuple[IntArray, dict[str, int]]:
    """Time of every node [ps], and the names of communications that keep their recorded time."""
    # A receive whose sender has no trace keeps its recorded time, which includes the wait for the
    # sender. Without a recorded time it takes as long as its message.
    duration = recording.duration_ps.copy()
    kept: dict[str, int] = defaultdict(int)
    receives = recording.kind == RECEIVE
    arrives = receives & np.isin(recording.peer, recording.ranks)
    duration[arrives] = 0  # ends once the message of its sender has arrived
    if communication == "recorded":
        return duration, kept
    simulated = np.isin(recording.kind, (COLLECTIVE, SEND, RECEIVE)) & ~arrives
    times: dict[tuple[int, ...], int] = {}
    for node in np.flatnonzero(simulated).tolist():
        unsized = recording.kind[node] == COLLECTIVE and recording.operation[node] == UNKNOWN
        if unsized or (receives[node] and duration[node]):
            kept[recording.name.names[int(recording.name.code[node])]] += 1
            continue
        call = _call(recording, node)
        if call not in times:
            predicted = _communication_ps(recording, node, cluster, members)
            times[call] = _end_ps(predicted, recording, node, cluster, members, end)
        duration[node] = times[call]
    return duration, dict(kept)


def _call(recording: Recording, node: int) -> tuple[int, ...]:
    """Key that communications with equal simulated times share."""
    columns = (recording.kind, recording.operation, recording.group, recording.size_bytes)
    key = tuple(int(column[node]) for column in columns)
    if recording.kind[node] != COLLECTIVE:
        return (*key, int(recording.rank[node]), int(recording.peer[node]))
    return key


def _communication_ps(
    recording: Recording, node: int, cluster: Cluster, members: Sequence[IntArray]
) -> int:
    """Simulated time of a collective or message on the cluster [ps]."""
    size = int(recording.size_bytes[node])
    if recording.kind[node] != COLLECTIVE:
        ends = np.array([recording.rank[node], recording.peer[node]], np.int64)
        if not 0 <= ends[1] < cluster.chips or ends[0] == ends[1]:
            way = "is sent to" if recording.kind[node] == SEND else "comes from"
            raise InputError(
                f"{recording.place(node)} {way} rank {ends[1]}; give another than "
                f"its own of 0 to {cluster.chips - 1}."
            )
        return duration_ps(CollectiveCall("permute", ChipGroup(cluster, ends), size)) if size else 0
    ranks = members[int(recording.group[node])]
    if len(ranks) < 2 or size == 0:
        return 0
    operation = OPERATIONS[int(recording.operation[node])]
    if operation == "all-gather" and recording.facts.get("all_gather_size") == "of one rank":
        size *= len(ranks)
    return duration_ps(CollectiveCall(operation, ChipGroup(cluster, ranks), size))


def _end_ps(
    predicted: int,
    recording: Recording,
    node: int,
    cluster: Cluster,
    members: Sequence[IntArray],
    end: str,
) -> int:
    """End of the interval of a communication's time [ps]; the time itself for no end."""
    if not end:
        return predicted
    group = int(recording.group[node])
    ranks = max(2, len(members[group])) if group >= 0 else 2
    size = max(1, int(recording.size_bytes[node]))
    ends = collective_interval(cluster, ranks, size, predicted / 1e12)
    return round(1e12 * (ends.low if end == "low" else ends.high))


def _edges(
    recording: Recording, meets: Sequence[Sequence[int]]
) -> tuple[IntArray, IntArray, IntArray]:
    """Dependencies of the schedule: members wait in joins, and receives for their sends."""
    meet = np.full(len(recording), -1, np.int64)
    for number, nodes in enumerate(meets):
        meet[list(nodes)] = len(recording) + number
    joined = meet[recording.dst] >= 0
    dst = np.where(joined, meet[recording.dst], recording.dst)
    members = np.flatnonzero(meet >= 0)
    sends, receives = matched_messages(recording)
    none = np.zeros(len(members) + len(sends), np.int64)
    return (
        np.concatenate([recording.src, meet[members], sends]),
        np.concatenate([dst, members, receives]),
        np.concatenate([recording.lag_ps, none]),
    )


def _resources(recording: Recording, timed: BoolArray) -> tuple[IntArray, Resources]:
    """Resource of every timed node: one for each kind of work on each lane of each rank."""
    kinds = tuple(dict.fromkeys(LANE_KINDS.values()))
    number = np.array([kinds.index(LANE_KINDS[kind]) for kind in range(len(KINDS))])[recording.kind]
    triples = np.stack([number, recording.rank, recording.lane])
    distinct, where = np.unique(triples[:, timed], axis=1, return_inverse=True)
    resource = np.full(len(recording), -1, np.int64)
    resource[timed] = where.reshape(-1)
    table = Resources.table("engine", distinct[1], lane=distinct[2])
    return resource, replace(table, kinds=kinds, kind=distinct[0].astype(np.uint8))


def _labels(recording: Recording, meets: Sequence[Sequence[int]]) -> dict[str, IntArray | Codes]:
    first = np.array([nodes[0] for nodes in meets], np.int64)
    what = np.concatenate([recording.kind, np.full(len(meets), len(KINDS))])
    names = recording.name
    code = np.concatenate([names.code, np.full(len(meets), len(names.names))])
    return {
        "rank": np.concatenate([recording.rank, recording.rank[first]]).astype(np.int32),
        "what": Codes(what.astype(np.int8), (*KINDS, "join")),
        "name": Codes(code.astype(np.int32), (*names.names, "meet")),
    }


def collective_calls(recording: Recording) -> list[tuple[int, ...]]:
    """Return the nodes of each call of a collective: the k-th of a group on each of its ranks."""
    # A collective without a group is left to its rank alone, as its other members are unknown.
    # Raises InputError for members that call different collectives, or not equally often.
    ranks = recording.ranks
    calls: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    grouped = (recording.kind == COLLECTIVE) & (recording.group >= 0)
    for node in np.flatnonzero(grouped).tolist():
        calls[int(recording.group[node])][int(recording.rank[node])].append(node)
    meets: list[tuple[int, ...]] = []
    traced = ranks.tolist()
    present = set(traced)
    for group, by_rank in calls.items():
        stated = recording.groups[group].ranks
        _check_members(recording, group, by_rank)
        members = [rank for rank in (stated or traced) if rank in present]
        if not stated and recording.groups[group].name:
            members = sorted(by_rank)  # a named group without members: those that call it
        _check_calls(recording, group, by_rank, members)
        meets += zip(*(by_rank[rank] for rank in members), strict=True)
    for nodes in meets:
        _check_alike(recording, nodes)
    return [nodes for nodes in meets if len(nodes) > 1]


def _check_members(recording: Recording, group: int, by_rank: dict[int, list[int]]) -> None:
    members = set(recording.groups[group].ranks)
    stranger = next((rank for rank in by_rank if members and rank not in members), None)
    if stranger is not None:
        raise InputError(
            f"{recording.place(by_rank[stranger][0])} is of group {recording.groups[group].name}, "
            f"in which rank {stranger} is not. Name the file after its rank, as rank3.json, or "
            "correct the group."
        )


def _check_calls(
    recording: Recording, group: int, by_rank: dict[int, list[int]], members: list[int]
) -> None:
    counts = {rank: len(by_rank.get(rank, ())) for rank in members}
    fewest, most = min(counts, key=lambda r: counts[r]), max(counts, key=lambda r: counts[r])
    if counts[fewest] < counts[most]:
        node = by_rank[most][counts[fewest]]
        name = recording.groups[group].name or "of all ranks"
        raise InputError(
            f"{recording.place(node)} waits for rank {fewest}, which calls {counts[fewest]} "
            f"collectives of group {name} where rank {most} calls {counts[most]} "
            f"({recording.files.get(fewest, '')}). Give traces of the same iterations."
        )


def _check_alike(recording: Recording, nodes: Sequence[int]) -> None:
    first = nodes[0]
    for node in nodes[1:]:
        if recording.operation[node] != recording.operation[first]:
            names = [OPERATIONS[int(recording.operation[call])] for call in (first, node)]
            raise InputError(
                f"{recording.place(node)} is {names[1]} where rank {recording.rank[first]} calls "
                f"{names[0]} ({recording.place(first)}). Collectives of a group must match."
            )


def matched_messages(recording: Recording) -> tuple[IntArray, IntArray]:
    """Return each send with its receive, int64 (messages,) both."""
    # Messages between two ranks with the same tag are matched in order. Raises InputError for a
    # send or receive without a partner.
    waiting: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    present = set(recording.ranks.tolist())
    world = max(int(recording.facts.get("world", 0)), len(present))
    for node in np.flatnonzero(recording.kind == SEND).tolist():
        rank, peer = int(recording.rank[node]), int(recording.peer[node])
        if peer in present:
            waiting[rank, peer, int(recording.tag[node])].append(node)
    pairs: list[tuple[int, int]] = []
    for node in np.flatnonzero(recording.kind == RECEIVE).tolist():
        rank, peer = int(recording.rank[node]), int(recording.peer[node])
        sent = waiting.get((peer, rank, int(recording.tag[node])))
        if sent:
            pairs.append((sent.pop(0), node))
            _check_fits(recording, *pairs[-1])
        elif peer in present or (len(present) > 1 and not 0 <= peer < world):
            raise InputError(
                f"{recording.place(node)} receives from rank {peer} with tag "
                f"{recording.tag[node]}, but nothing of that is sent. Give matching traces."
            )
    unread = next((nodes[0] for nodes in waiting.values() if nodes), None)
    if unread is not None:
        raise InputError(
            f"{recording.place(unread)} sends to rank {recording.peer[unread]} with tag "
            f"{recording.tag[unread]}, but nothing of that is received. Give matching traces."
        )
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _check_fits(recording: Recording, send: int, receive: int) -> None:
    sent, room = int(recording.size_bytes[send]), int(recording.size_bytes[receive])
    if 0 < room < sent:
        raise InputError(
            f"{recording.place(receive)} has room for {room:,} bytes of a message of {sent:,} "
            f"({recording.place(send)}). Give matching traces."
        )


SHOWN = 6


def in_order(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Return numbers of nodes such that each node follows those that it waits for."""
    # If several nodes may come next, the one with the smallest number does. Nodes of a cycle, and
    # nodes that wait for them, are left out. ``waits``: numbers of the nodes that each node waits
    # for, all of which are keys as well.
    sorter = TopologicalSorter(waits)
    with suppress(CycleError):  # all others are still given out
        sorter.prepare()
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, number)
        if not ready:
            break
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order


def check_acyclic(
    recording: Recording, src: IntArray, dst: IntArray, meets: Sequence[Sequence[int]]
) -> None:
    """Refuse nodes that wait for each other, within a rank or across collectives."""
    # ``src, dst`` (edges,): node ``dst`` waits for node ``src``. Numbers beyond the nodes are those
    # of joins.
    size = len(recording) + len(meets)
    graph = coo_array((np.ones(len(src), np.int8), (src, dst)), shape=(size, size))
    part = connected_components(graph, connection="strong")[1]
    within = part[src] == part[dst]
    if not within.any():
        return
    circles = nx.DiGraph(list(zip(src[within].tolist(), dst[within].tolist(), strict=True)))
    nodes = [node for node, _ in nx.find_cycle(circles) if node < len(recording)]
    shown = " → ".join(str(recording.number[node]) for node in nodes[:SHOWN])
    more = " → …" if len(nodes) > SHOWN else ""
    ranks = sorted({*recording.rank[nodes].tolist()})
    across, remedy = "", "Correct the dependencies."
    if len(ranks) > 1:
        across = f" of ranks {', '.join(map(str, ranks[:4]))}"
        remedy = (
            "The ranks call their collectives in orders that contradict each other: give whole "
            "traces of the same iterations, or one rank alone."
        )
    raise InputError(
        f"{recording.place(nodes[0])} waits for itself: a cycle of nodes{across} {shown}{more} → "
        f"{recording.number[nodes[0]]}. {remedy}"
    )
