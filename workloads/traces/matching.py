"""Partners of communication in a recording: calls of one collective, sends and their receives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError
from workloads.traces.recording import COLLECTIVE, OPERATIONS, RECEIVE, SEND, Recording


def collective_calls(recording: Recording) -> list[tuple[int, ...]]:
    """Return the nodes of each call of a collective: the k-th of a group on each of its ranks.

    A collective without a group is left to its rank alone, as its other members are unknown. Raises
    InputError for members that call different collectives, or not equally often.
    """
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
    """Refuse a call by a rank that is not a member of the group."""
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
    """Refuse members of a group that do not call equally many collectives."""
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
    """Refuse members that call different collectives at once."""
    first = nodes[0]
    for node in nodes[1:]:
        if recording.operation[node] != recording.operation[first]:
            names = [OPERATIONS[int(recording.operation[call])] for call in (first, node)]
            raise InputError(
                f"{recording.place(node)} is {names[1]} where rank {recording.rank[first]} calls "
                f"{names[0]} ({recording.place(first)}). Collectives of a group must match."
            )


def matched_messages(recording: Recording) -> tuple[IntArray, IntArray]:
    """Return each send with its receive, int64 (messages,) both.

    Messages between two ranks with the same tag are matched in order. Raises InputError for a send
    or receive without a partner.
    """
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
    """Refuse a message that is longer than its receive, if the receive states a size."""
    sent, room = int(recording.size_bytes[send]), int(recording.size_bytes[receive])
    if 0 < room < sent:
        raise InputError(
            f"{recording.place(receive)} has room for {room:,} bytes of a message of {sent:,} "
            f"({recording.place(send)}). Give matching traces."
        )
