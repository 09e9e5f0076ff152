"""Counters of a trace over time: busy links, the rate that they carry, and the rate of memories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cluster_sim.trace.trace import Trace
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.units import PS_PER_S

MOST_POINTS = 2_000
"""Most values of a counter; of more, means over this many equal stretches of time are written."""
MOST_CHIPS = 64
"""Most chips whose memories are counted, those with the lowest numbers."""
LINKS = ("link", "port", "uplink", "downlink", "send", "receive")


@dataclass(frozen=True, eq=False)
class Counter:
    """A value that changes over time."""

    name: str
    unit: str
    at_ps: IntArray  # ascending instants from each of which a value holds until the next
    value: FloatArray
    chip: int = -1  # below whose track it is drawn; -1 for the whole machine


def counters(trace: Trace, rows: IntArray) -> list[Counter]:
    """Return the counters of these ops, each op at its mean rate from its start to its end."""
    ran = (trace.times.start_ps[rows] >= 0) & (
        trace.times.end_ps[rows] > trace.times.start_ps[rows]
    )
    rows = rows[ran]
    return [*_link_counters(trace, rows), *_memory_counters(trace, rows)]


def _link_counters(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Count the links that are held, and the bytes a second on all of them."""
    is_link = np.concatenate([_is_one_of(trace, LINKS), [False]])
    carries = rows[is_link[trace.schedule.resource[rows]]]
    if len(carries):
        spans = trace.times.start_ps[carries], trace.times.end_ps[carries]
        yield counter("links busy", "links", *spans, np.ones(len(carries)))
        yield counter("links, load", "B/s", *spans, _rate(trace, carries))


def _memory_counters(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Count the bytes a second in the memory of each chip, those of flows and of kernels."""
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
    """Return the resource that each op is drawn on: its slot, else its first share, else -1."""
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
    """Return the mean rate of each op [B/s]."""
    lasts = trace.times.end_ps[op] - trace.times.start_ps[op]
    return np.asarray(trace.schedule.size_bytes[op] * (PS_PER_S / lasts))


def counter(
    name: str, unit: str, start_ps: IntArray, end_ps: IntArray, by: FloatArray, *, chip: int = -1
) -> Counter:
    """Return a counter of the sum over all spans that have begun and not ended.

    Means over stretches of time, which stand for too many values, have the same integral over time.
    """
    at, where = np.unique(np.concatenate([start_ps, end_ps]), return_inverse=True)
    change = np.bincount(where, np.concatenate([by, -by]), minlength=len(at))
    value = np.maximum(0.0, np.cumsum(change))
    value[-1:] = 0.0  # all spans are over, but for rounding
    if len(at) > MOST_POINTS:
        at, value = _thinned(at, value)
    return Counter(name, unit, at, value, chip)


def _thinned(at_ps: IntArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return means over equal stretches of time, and a last value of 0 at the end."""
    total = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(at_ps))])
    edges = np.linspace(at_ps[0], at_ps[-1], MOST_POINTS).astype(np.int64)
    between = np.diff(np.interp(edges, at_ps, total)) / np.diff(edges)
    return edges, np.append(between, 0.0)
