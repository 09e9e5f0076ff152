"""Rows of a table of collectives, with the columns of nccl-tests and the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.verify.bounds import Bound, lower_bound
from cluster_sim.trace.trace import ENGINES, Trace
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, eq=False)
class RowFrame:
    """The part of a row that does not depend on the schedule."""

    group: Group
    size_bytes: int  # that is divided by the time to give algbw
    bound: Bound
    factor: float  # ratio of busbw to algbw
    engine: str = "fast"


def row_frame(calls: Sequence[CollectiveCall], engine: str, *, ideal: bool, sbuf: bool) -> RowFrame:
    """Return the frame of the row of calls that run at once, with the largest of their bounds."""
    first = calls[0]
    bounds = (lower_bound(call, ideal=ideal, sbuf=sbuf) for call in calls)
    bound = max(bounds, key=lambda lower: lower.time_ps)
    factor = bus_factor(first.kind, first.ranks)
    return RowFrame(first.group, first.size_bytes, bound, factor, engine)


def result_row(frame: RowFrame, trace: Trace, clock: tuple[float, float, float]) -> dict[str, Any]:
    """Return a trace's columns; ``clock`` is before building, after it, and after the run [s]."""
    seconds = trace.total_s
    rate = frame.size_bytes / seconds if seconds else 0.0
    begun, built, done = clock
    return {
        "cluster": frame.group.cluster.name,
        "ranks": frame.group.ranks,
        "size_bytes": int(frame.size_bytes),
        "time_s": seconds,
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": frame.factor * frame.size_bytes / seconds if seconds else 0.0,
        "lower_bound_s": frame.bound.time_ps / 1e12,
        "bound": frame.bound.what,
        "steps": 0,
        "ops": len(trace),
        "engine": frame.engine,
        "build_s": built - begun,
        "simulate_s": done - built,
    }


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist."""
    if engine not in ENGINES:
        raise InputError(
            f"unknown engine {engine!r}.{suggestion(engine, ENGINES)} Use {' or '.join(ENGINES)}."
        )


def bus_factor(kind: str, ranks: int) -> float:
    """Return the ratio of busbw to algbw (doc/PERFORMANCE.md of nccl-tests).

    >>> bus_factor("all-reduce", 8), bus_factor("all-gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "permute") else (ranks - 1) / ranks
