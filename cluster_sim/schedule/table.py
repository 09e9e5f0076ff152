"""The Schedule: a table of ops on resources, as arrays, which all parts of the simulator share.

What a schedule *means* are the eight rules of time in ``docs/design.md``, which tests cite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import BoolArray as BoolArray
from topologies.support.arrays import IntArray as IntArray
from topologies.support.arrays import pointers as pointers
from topologies.support.arrays import runs as runs
from topologies.support.units import PS_PER_S as PS_PER_S

FIXED, FLOW, JOIN = 0, 1, 2  # kinds of op (rule 1)
KINDS = ("fixed", "flow", "join")  # names of the kinds of op, in the order of their numbers

NO_RESOURCE = -1  # number that stands for no resource in a column of resources
HORIZON_PS = 2**62  # latest instant that a run may reach [ps] (rule 6)
LARGEST_FLOW_BYTES = (2**63 - 1) // 10**6
"""Most work of a flow [B]: the engines keep what is left of it in microbytes (rule 7)."""
LARGEST_CAPACITY = 2**53 - 1
"""Highest rate that a resource may divide among flows [B/s], so that times are exact in 64 bits."""

OP_COLUMNS: Mapping[str, type[np.integer[Any]]] = {
    "kind": np.uint8,
    "resource": np.int32,
    "duration_ps": np.int64,
    "size_bytes": np.int64,
    "priority": np.int32,
}
RESOURCE_COLUMNS: Mapping[str, type[np.integer[Any]]] = {
    "kind": np.uint8,
    "owner": np.int32,
    "peer": np.int32,
    "lane": np.int16,
    "slots": np.int32,
    "capacity": np.int64,
}


class ScheduleError(ValueError):
    """Error for a schedule that breaks the rules: a builder's fault, named with op and value."""


@dataclass(frozen=True, eq=False)
class Resources:
    """Resources that ops hold: chip engines, CC-Cores, links, NICs, HBM. One row a resource."""

    kinds: tuple[str, ...]  # names of the kinds that occur, such as ("engine", "cc", "link")
    kind: IntArray  # index into kinds
    owner: IntArray  # chip or switch that has the resource
    peer: IntArray  # far end of a link, -1 for other resources
    lane: IntArray  # number among equal resources of the same owner and peer, from 0
    slots: IntArray  # ops that may hold it at once (rule 3); 0 if it is only shared
    capacity: IntArray  # rate divided among its flows [B/s] (rule 7); 0 if it is not shared
    switches_from: int = np.iinfo(np.int32).max  # nodes from here on are switches: s0, s1, …

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def table(
        cls,
        kind: str,
        owner: npt.ArrayLike,
        peer: npt.ArrayLike = -1,
        lane: npt.ArrayLike = 0,
        *,
        slots: npt.ArrayLike = 1,
        capacity: npt.ArrayLike = 0,
        switches_from: int = np.iinfo(np.int32).max,
    ) -> Resources:
        """Make resources of one kind; one value in place of a column holds for all of them.

        >>> Resources.table("link", [0, 1], [1, 0]).names()
        ['link:0-1', 'link:1-0']
        """
        owners = np.atleast_1d(np.asarray(owner, np.int32))

        def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> IntArray:
            return np.broadcast_to(np.asarray(values, dtype), owners.shape).copy()

        return cls(
            kinds=(kind,),
            kind=np.zeros(len(owners), np.uint8),
            owner=owners,
            peer=column(peer, np.int32),
            lane=column(lane, np.int16),
            slots=column(slots, np.int32),
            capacity=column(capacity, np.int64),
            switches_from=switches_from,
        )

    @classmethod
    def concat(cls, tables: Sequence[Resources]) -> Resources:
        """Concatenate tables; a resource's number grows by the lengths of the tables before."""
        kinds = tuple(dict.fromkeys(name for table in tables for name in table.kinds))
        code = [
            np.array([kinds.index(name) for name in table.kinds], np.uint8)[table.kind]
            for table in tables
        ]
        joined = {
            name: np.concatenate([getattr(table, name) for table in tables])
            for name in ("owner", "peer", "lane", "slots", "capacity")
        }
        return cls(
            kinds=kinds,
            kind=np.concatenate(code),
            switches_from=min(table.switches_from for table in tables),
            **joined,
        )

    def picked(self, rows: IntArray) -> Resources:
        """Return a table of these resources alone, in this order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in RESOURCE_COLUMNS})

    @classmethod
    def none(cls) -> Resources:
        """Return an empty table."""
        return cls.table("none", np.empty(0, np.int32))

    def names(self, index: IntArray | None = None) -> list[str]:
        """Return printed names, all or those chosen: ``engine:5``, ``link:0-1``, ``link:0-1.1``."""
        rows = np.arange(len(self)) if index is None else np.asarray(index)
        columns = (self.kind, self.owner, self.peer, self.lane)
        picked = zip(*(column[rows].tolist() for column in columns), strict=True)
        return [self._name(*row) for row in picked]

    def coded(self, resource: IntArray) -> tuple[IntArray, list[str]]:
        """Return the code of each of these numbers, and the names of codes, ``-`` for none."""
        # Formatting a name is slow, so only those that occur are made, each once.
        numbers, code = np.unique(resource, return_inverse=True)
        held = numbers[numbers >= 0]
        return code, ["-"] * (len(numbers) - len(held)) + self.names(held)

    def _name(self, kind: int, owner: int, peer: int, lane: int) -> str:
        text = f"{self.kinds[kind]}:{self.node_name(owner)}"
        if peer >= 0:
            text += f"-{self.node_name(peer)}"
        return f"{text}.{lane}" if lane else text

    def node_name(self, node: int) -> str:
        """Return the printed name of a node, such as ``5`` for a chip and ``s0`` for a switch."""
        return f"s{node - self.switches_from}" if node >= self.switches_from else str(node)


@dataclass(frozen=True, eq=False)
class Edges:
    """Dependencies, grouped by the op they leave from (rule 2)."""

    ptr: IntArray  # (ops + 1,): edges of op i are ptr[i]:ptr[i + 1]
    dst: IntArray  # op that waits
    lag_ps: IntArray  # between the end (or start) of the first op and readiness of the second
    from_start: BoolArray | None = None  # the lag counts from the first op's start; None for none

    def __len__(self) -> int:
        return len(self.dst)

    @classmethod
    def from_pairs(
        cls,
        ops: int,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        lag_ps: npt.ArrayLike = 0,
        from_start: npt.ArrayLike | None = None,
    ) -> Edges:
        """Group the edges ``src[k] → dst[k]`` by source, in their order for equal sources.

        >>> Edges.from_pairs(3, [1, 0], [2, 2]).ptr.tolist()
        [0, 1, 2, 2]
        """
        sources = np.atleast_1d(np.asarray(src))
        if not len(sources):
            sources = sources.astype(np.int64)  # an empty list gives floats, which bincount refuses
        targets = np.atleast_1d(np.asarray(dst, np.int32))
        lags = np.asarray(np.broadcast_to(np.asarray(lag_ps, np.int64), targets.shape))
        starts = None
        if from_start is not None:
            starts = np.asarray(np.broadcast_to(np.asarray(from_start, bool), targets.shape))
        # Most builders write edges in order, and a comparison takes far less time than a sort.
        if len(sources) and not np.all(sources[1:] >= sources[:-1]):
            order = np.argsort(sources, kind="stable")
            sources, targets, lags = sources[order], targets[order], lags[order]
            starts = None if starts is None else starts[order]
        if starts is not None and not starts.any():
            starts = None
        ptr = pointers(np.bincount(sources, minlength=ops))
        return cls(ptr, targets, np.ascontiguousarray(lags), starts)

    @classmethod
    def concat(cls, tables: Sequence[Edges]) -> Edges:
        """Concatenate the edges of several tables of ops, which follow one another."""
        first_op = np.cumsum([0, *(len(table.ptr) - 1 for table in tables)]).tolist()
        first_edge = np.cumsum([0, *(len(table) for table in tables)]).tolist()
        ptr = [table.ptr[:-1] + by for table, by in zip(tables, first_edge, strict=False)]
        dst = [table.dst + by for table, by in zip(tables, first_op, strict=False)]
        starts = None
        if any(table.from_start is not None for table in tables):
            starts = np.concatenate([table.start_mask() for table in tables])
        return cls(
            np.concatenate([*ptr, first_edge[-1:]]).astype(np.int64),
            np.concatenate(dst, dtype=np.int32),
            np.concatenate([table.lag_ps for table in tables]),
            starts,
        )

    def sources(self) -> IntArray:
        """Return the op that each edge leaves from, int32 (edges,)."""
        ops = len(self.ptr) - 1
        return np.repeat(np.arange(ops, dtype=np.int32), np.diff(self.ptr))

    def start_mask(self) -> BoolArray:
        """Return ``from_start`` as a mask (edges,), also where no edge counts from a start."""
        return np.zeros(len(self), np.bool_) if self.from_start is None else self.from_start


@dataclass(frozen=True, eq=False)
class Flows:
    """The ops that are flows: rate caps, and the shared resources they cross (rules 1 and 7)."""

    op: IntArray  # number, ascending; the work of a flow is its op's size_bytes
    cap_bytes_per_s: IntArray  # that it never exceeds, whatever the resources have to give
    ptr: IntArray  # (flows + 1,): shares of flow f are ptr[f]:ptr[f + 1]
    resource: IntArray  # (shares,)
    weight: IntArray  # (shares,): B/s of the resource that 1 B/s of the flow takes

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def none(cls) -> Flows:
        """Return an empty table."""
        empty = np.empty(0, np.int32)
        return cls(empty, np.empty(0, np.int64), np.zeros(1, np.int64), empty, empty)


@dataclass(frozen=True, eq=False)
class Codes:
    """A column of few distinct names: ``names[code[i]]``."""

    code: IntArray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, rows: Any) -> Codes:
        return Codes(self.code[rows], self.names)

    def __iter__(self) -> Iterator[str]:
        return (self.names[code] for code in self.code.tolist())


Label = IntArray | Codes


@dataclass(frozen=True, eq=False)
class Schedule:
    """Ops on resources with dependencies; columns are arrays, one element an op.

    Attributes
    ----------
    kind : uint8 array (ops,)
        ``FIXED``, ``FLOW`` or ``JOIN``.
    resource : int32 array (ops,)
        Resource of which one slot is held; ``NO_RESOURCE`` for none.
    duration_ps : int64 array (ops,)
        Time of fixed ops, at least 1 [ps]; 0 for flows and joins.
    size_bytes : int64 array (ops,)
        Bytes moved or reduced, 0 for an op that does neither; the work of a flow [B].
    priority : int32 array (ops,)
        Smallest first among ready ops (rule 4).
    edges : Edges
    resources : Resources
    flows : Flows
    labels : mapping of str to int array or Codes, each (ops,)
        Columns that a reader groups by, such as ``rank``, ``step``, ``what``, ``count``.
    facts : mapping of str to plain values
        Description of the schedule: collective, algorithm, size; it ends up in ``run.json``.

    Examples
    --------
    >>> link = Resources.table("link", [0], [1])
    >>> edges = Edges.from_pairs(2, [0], [1])
    >>> columns = (np.array(values) for values in ([0, 0], [0, 0], [5, 5], [8, 8], [0, 0]))
    >>> Schedule(*columns, edges, link)
    Schedule(2 ops, 1 edges, 1 resources)
    """

    kind: IntArray
    resource: IntArray
    duration_ps: IntArray
    size_bytes: IntArray
    priority: IntArray
    edges: Edges
    resources: Resources
    flows: Flows = field(default_factory=Flows.none)
    labels: Mapping[str, Label] = field(default_factory=dict)
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        title = " ".join(f"{key}={value}" for key, value in self.facts.items())
        return (
            f"Schedule({len(self):,} ops, {len(self.edges):,} edges, "
            f"{len(self.resources):,} resources{', ' + title if title else ''})"
        )

    def _repr_html_(self) -> str:
        from html import escape

        sizes = {"ops": len(self), "edges": len(self.edges), "resources": len(self.resources)}
        counted = {name: f"{number:,}" for name, number in sizes.items()}
        # The engine sees nothing of topologies, so this table is written without its display.
        rows = (
            f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
            for name, value in {**counted, **self.facts}.items()
        )
        return f"<table><caption>Schedule</caption>{''.join(rows)}</table>"

    @property
    def crossed(self) -> IntArray:
        """Resource that each op crosses first: its slot, else its first share, else -1, (ops,)."""
        resource, flows = self.resource.astype(np.int64), self.flows
        bare = resource[flows.op] < 0
        resource[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]]
        return resource

    @property
    def nbytes(self) -> int:
        """Memory of all columns of ops, edges, flows and labels, without those of resources [B]."""
        labels = sum(
            int((label.code if isinstance(label, Codes) else label).nbytes)
            for label in self.labels.values()
        )
        columns = [getattr(self, name) for name in OP_COLUMNS]
        for table in (self.edges, self.flows):
            columns += [column for column in vars(table).values() if column is not None]
        return labels + sum(int(column.nbytes) for column in columns)


_MILLION = 10**6
_WIDEST_RATE = 2**63 // _MILLION
"""Rate from which a remainder times a million may not fit in 64 bits [B/s]."""
_LONGEST_S = HORIZON_PS // PS_PER_S - 1
"""Longest transfer whose picoseconds stay within the horizon [s]."""


def transfer_ps(size_bytes: npt.ArrayLike, rate_bytes_per_s: npt.ArrayLike) -> IntArray:
    """Time on the wire [ps], ``max(1, ceil(bytes · 10¹² / rate))`` in exact integers (rule 6)."""
    size, rate = np.asarray(size_bytes, np.int64), np.asarray(rate_bytes_per_s, np.int64)
    seconds, rest = np.divmod(size, rate)
    if seconds.max(initial=0) > _LONGEST_S:
        raise ScheduleError(f"a transfer of {size.max()} B takes {seconds.max()} s, beyond 2⁶² ps")
    if rate.max(initial=1) >= _WIDEST_RATE:
        # bytes · 10¹² passes 64 bits however it is divided, so Python's own integers are taken.
        sizes, rates = np.broadcast_arrays(size, rate)
        pairs = zip(sizes.ravel().tolist(), rates.ravel().tolist(), strict=True)
        exact = [max(1, -(-amount * PS_PER_S // per_s)) for amount, per_s in pairs]
        return np.array(exact, np.int64).reshape(sizes.shape)
    # bytes · 10¹² does not fit in 64 bits, so a second is divided twice, by 10⁶ each time.
    micros, rest = np.divmod(rest * _MILLION, rate)
    picos = -(-rest * _MILLION // rate)
    return np.asarray(np.maximum(1, seconds * PS_PER_S + micros * _MILLION + picos))
