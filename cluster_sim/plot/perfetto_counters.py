"""Counters over a trace: links at work and what they carry, and how fast each memory is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster_sim.trace.trace import Trace
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.units import PS_PER_S

MOST_POINTS = 2_000
"""Values of a counter; of more each of so many equal stretches of time has its mean."""
MOST_CHIPS = 64
"""Chips whose memories are counted, those of the lowest numbers."""
LINKS = ("link", "port", "uplink", "downlink", "send", "receive")


@dataclass(frozen=True, eq=False)
class Counter:
    """Values that hold from one time to the next.

    Attributes
    ----------
    name, unit : str
    at_ps : int array (points,)
        Ascending times from which the values hold [ps].
    value : float array (points,)
    chip : int
        Chip below whose track it is drawn; -1 for a counter of the whole machine.
    """

    name: str
    unit: str
    at_ps: IntArray
    value: FloatArray
    chip: int = -1


def counters(trace: Trace, rows: IntArray) -> list[Counter]:
    """Return the counters of these ops, each op at its mean rate from its start to its end."""
    ran = (trace.times.start_ps[rows] >= 0) & (
        trace.times.end_ps[rows] > trace.times.start_ps[rows]
    )
    rows = rows[ran]
    return [*_of_links(trace, rows), *_of_memories(trace, rows)]


def _of_links(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Links that are held, and the bytes a second on all of them."""
    is_link = np.concatenate([_is_one_of(trace, LINKS), [False]])
    carries = rows[is_link[trace.schedule.resource[rows]]]
    if len(carries):
        spans = trace.times.start_ps[carries], trace.times.end_ps[carries]
        yield counter("links busy", "links", *spans, np.ones(len(carries)))
        yield counter("links, load", "B/s", *spans, _rate(trace, carries))


def _of_memories(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Bytes a second of the memory of each chip: of what draws on it, and of kernels."""
    owner, flows = trace.schedule.resources.owner, trace.schedule.flows
    resource = trace.schedule.resource
    reads = np.concatenate([_is_one_of(trace, ("engine",)), [False]])[resource]
    chip = np.concatenate([owner, [-1]])[resource]
    if len(flows):
        share = np.flatnonzero(_is_one_of(trace, ("hbm",))[flows.resource])
        op = flows.op[np.searchsorted(flows.ptr, share, side="right") - 1]
        reads[op], chip[op] = True, owner[flows.resource[share]]
    reads &= trace.schedule.size_bytes > 0
    shown = rows[reads[rows]]
    for number in np.unique(chip[shown])[:MOST_CHIPS].tolist():
        of_chip = shown[chip[shown] == number]
        spans = trace.times.start_ps[of_chip], trace.times.end_ps[of_chip]
        yield counter("memory rate", "B/s", *spans, _rate(trace, of_chip), chip=number)


def drawn_on(trace: Trace) -> IntArray:
    """Resource that each op is drawn on: its slot, else its first share, else -1."""
    resource, flows = trace.schedule.resource.astype(np.int64), trace.schedule.flows
    if len(flows):
        bare = resource[flows.op] < 0
        resource[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]]
    return resource


def _is_one_of(trace: Trace, kinds: tuple[str, ...]) -> BoolArray:
    resources = trace.schedule.resources
    named = np.array([kind in kinds for kind in resources.kinds], np.bool_)
    return np.asarray(named[resources.kind])


def _rate(trace: Trace, op: IntArray) -> FloatArray:
    """Mean rate of each op [B/s]."""
    lasts = trace.times.end_ps[op] - trace.times.start_ps[op]
    return np.asarray(trace.schedule.size_bytes[op] * (PS_PER_S / lasts))


def counter(
    name: str, unit: str, start_ps: IntArray, end_ps: IntArray, by: FloatArray, *, chip: int = -1
) -> Counter:
    """Return the sum of what is on, which keeps its integral over time however it is thinned.

    Parameters
    ----------
    name, unit : str
    start_ps, end_ps : int array (spans,)
        Times from which and up to which each span counts [ps].
    by : float array (spans,)
        Amount that each adds.
    chip : int
        See :class:`Counter`.
    """
    at, where = np.unique(np.concatenate([start_ps, end_ps]), return_inverse=True)
    change = np.bincount(where, np.concatenate([by, -by]), minlength=len(at))
    value = np.maximum(0.0, np.cumsum(change))
    value[-1:] = 0.0  # all spans are over, but for rounding
    if len(at) > MOST_POINTS:
        at, value = _thinned(at, value)
    return Counter(name, unit, at, value, chip)


def _thinned(at_ps: IntArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Means over equal stretches of time, and the end."""
    total = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(at_ps))])
    edges = np.linspace(at_ps[0], at_ps[-1], MOST_POINTS).astype(np.int64)
    between = np.diff(np.interp(edges, at_ps, total)) / np.diff(edges)
    return edges, np.append(between, 0.0)
