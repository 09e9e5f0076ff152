"""Measurements of simulated collectives as nccl-tests prints them, with the lower bound beside."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.footprint import ops_foreseen
from cluster_sim.collectives.algorithms.registry import (
    AUTO,
    BEST,
    choose_algorithm,
    fits_by,
    fitting_algorithms,
)
from cluster_sim.collectives.builder import Collective, compose
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration import nccl
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.few_ranks import spans_many_domains
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.verify.bounds import Bound, lower_bound
from cluster_sim.collectives.verify.proof import LARGEST_RANKS, NOT_CHECKED, prove
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fault_text import Fault, fault_table, gone_around, spelled_out
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, JOIN, Codes, Edges, Resources, Schedule
from cluster_sim.trace.trace import ENGINES, Trace, run
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    import pandas as pd


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


STREAMED_FROM = 1_000_000
"""Ops from which a collective whose parts share nothing is run part by part."""
STREAMED_UNWATCHED_FROM = 100_000
"""The same limit where the caller does not look at single messages; with fewer ops there is nothing
to gain."""
FOLDED_FROM = 11_000_000
"""Ops from which a collective over many domains is timed by a few ranks that stand for all, where
the caller does not look at single messages: building and running as many takes 1.6 GB."""
MOST_PER_CHIP = 256  # most ranks of a chip that are accepted, more than any chip has cores


def rows(
    kind: str,
    group: Group,
    sizes: Sequence[int],
    algorithm: str = AUTO,
    *,
    ideal: bool = False,
    sbuf: bool = False,
    engine: str = "fast",
    proof: bool | None = None,
) -> pd.DataFrame:
    """Simulate a collective at several sizes; see :func:`measure` for the options.

    Returns one row for each size with the columns ``collective, algorithm, cluster, ranks,
    size_bytes, time_s, algbw_bytes_per_s, busbw_bytes_per_s, lower_bound_s, bound, steps, ops,
    engine, build_s, simulate_s, semantics``.
    """
    calls = [CollectiveCall(kind, group, size) for size in sizes]
    import pandas as pd

    return pd.DataFrame(
        measure(call, algorithm, ideal=ideal, sbuf=sbuf, engine=engine, proof=proof)[0]
        for call in calls
    )


def first_ranks(cluster: Cluster, ranks: int | None, ranks_per_chip: int = 1) -> Group:
    """Return the group of the first ranks of a cluster, by default of all; only of whole chips."""
    if not 1 <= ranks_per_chip <= MOST_PER_CHIP:
        raise InputError(f"{ranks_per_chip} ranks per chip; use 1 to {MOST_PER_CHIP}")
    most = cluster.chips * ranks_per_chip
    wanted = most if ranks is None else ranks
    if not 1 <= wanted <= most:
        room = f"1 to {most:,}" if most > 1 else "1"
        each, uneven = divmod(wanted, cluster.chips)
        more = f", or for {each} on each chip (--ranks-per-chip {each})"
        shared = "" if uneven or not 1 < each <= MOST_PER_CHIP else more
        raise InputError(
            f"{wanted} ranks on {cluster.name}: {ranks_per_chip} a chip on {cluster.chips:,} "
            f"{'chip' if cluster.chips == 1 else 'chips'}; ask for {room}{shared}"
        )
    if wanted % ranks_per_chip:
        raise InputError(
            f"{wanted} ranks are not whole chips of {ranks_per_chip} ranks; "
            f"use {wanted - wanted % ranks_per_chip or ranks_per_chip}"
        )
    return Group(cluster, np.arange(wanted // ranks_per_chip), ranks_per_chip)


def measure(
    calls: CollectiveCall | Sequence[CollectiveCall],
    algorithm: str = AUTO,
    *,
    ideal: bool = False,
    sbuf: bool = False,
    engine: str = "fast",
    proof: bool | None = None,
    faults: Sequence[Fault] = (),
    watched: bool = True,
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove a call, or several calls of one size at once; returns row and trace.

    ``best`` as the algorithm tries all that suit and keeps the fastest. On NVIDIA's machines
    ``auto`` is a model of NCCL's measured behaviour. The time of a group whose schedule does not
    fit in memory comes from a few ranks that stand for all. ``ideal``: count link rates and
    latencies only. ``sbuf``: keep the buffers in the scratchpads of the cores. ``proof``: by
    default up to ``LARGEST_RANKS`` ranks. ``faults``: the lower bound stays that of the healthy
    fabric. ``watched``: whether the caller looks at single messages; else a large collective may be
    run in parts whose messages are dropped.
    """
    check_engine(engine)
    many = [calls] if isinstance(calls, CollectiveCall) else list(calls)
    first, frame = many[0], row_frame(many, engine, ideal=ideal, sbuf=sbuf)
    if algorithm == AUTO and not (ideal or sbuf) and nccl.covers(first.group.cluster):
        refuse_faults(faults, "NCCL's time is a closed form without links")
        return _measure_nccl(frame, many)

    def measured(picked: Algorithm) -> tuple[dict[str, Any], Trace]:
        """Row and trace of the call under one algorithm."""
        alone = len(many) == 1 and not sbuf
        unwatched = not (watched or proof or engine != "fast")
        streamed = _is_streamed(many, picked, unwatched=unwatched) and not faults
        folded = alone and unwatched and not faults and _is_folded(first, picked, ideal=ideal)
        if alone and (streamed or folded or not fits_by(many, picked)):
            refuse_faults(faults, f"{picked.name} is timed by a few ranks that stand for all")
            return _measure_large(frame, first, picked, ideal=ideal)
        down = gone_around(spelled_out(faults, first.group.cluster))[0]
        build = functools.partial(compose, many, picked, ideal=ideal, sbuf=sbuf, down=down)
        return measure_built(build, frame, proof=proof, faults=faults, down=down)

    is_best = algorithm == BEST
    candidates = fitting_algorithms(many) if is_best else [choose_algorithm(first, algorithm)]
    return min(map(measured, candidates), key=lambda result: int(result[1].total_ps))


def measure_built(
    build: Callable[[], Collective],
    frame: RowFrame,
    *,
    proof: bool | None = None,
    faults: Sequence[Fault] = (),
    down: Sequence[str] = (),
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove a collective; returns its row and its trace.

    ``down``: links among the faults that the built schedule goes around.
    """
    check_engine(frame.engine)
    begun = time.perf_counter()
    built = build()
    ready = time.perf_counter()
    cluster = frame.group.cluster
    stated = spelled_out(faults, cluster)
    if stated:
        fault_table(built.schedule, stated, cluster)  # refuses unknown ones, names idle ones
    slow = [fault for fault in stated if fault.resource not in down]
    changes = fault_table(built.schedule, slow, cluster) if slow else None
    trace = run(built.schedule, engine=frame.engine, faults=changes)
    row = result_row(frame, trace, (begun, ready, time.perf_counter()))
    by_default = built.chunks.is_tracked and len(built.chip_of_rank) <= LARGEST_RANKS
    semantics = prove(built) if (by_default if proof is None else proof) else NOT_CHECKED
    named = {"collective": built.kind, "algorithm": built.algorithm}
    return {**named, **row, "steps": built.steps, "semantics": semantics}, trace


def refuse_faults(faults: Sequence[Fault], why: str) -> None:
    """Refuse faults where a time has no resources that they could slow."""
    if faults:
        raise InputError(
            f"fault on {faults[0].resource}: {why}. Name an algorithm that is simulated here, such "
            "as --algorithm ring, or take fewer ranks"
        )


def _measure_nccl(frame: RowFrame, calls: Sequence[CollectiveCall]) -> tuple[dict[str, Any], Trace]:
    """Return row and trace of NCCL's time; groups that run at once share no port, so each takes
    as long as alone."""
    from cluster_sim.collectives.duration.nccl.times import bound_with_switch, nccl_ps, steps

    frame = replace(frame, bound=bound_with_switch(calls[0], frame.bound))
    return measure_timed(frame, calls, nccl.NAME, steps(calls[0]), nccl_ps)


def _is_streamed(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, *, unwatched: bool = False
) -> bool:
    """Return whether a call is run part by part, as it is large and its parts share nothing."""
    first = calls[0]
    unproven = unwatched and first.ranks > LARGEST_RANKS
    if len(first.group.chips) == 1 or not (unproven or algorithm.streams_watched):
        return False
    costs = communication_costs(first.group.cluster)
    least = STREAMED_UNWATCHED_FROM if unproven else STREAMED_FROM
    large = ops_foreseen(calls, algorithm, costs) >= least
    return large and algorithm.streamed_ops(first, costs) > 0


def _is_folded(call: CollectiveCall, algorithm: Algorithm, *, ideal: bool) -> bool:
    """Return whether a few ranks are run in place of a schedule that takes much memory."""
    costs = communication_costs(call.group.cluster, ideal=ideal)
    if ops_foreseen([call], algorithm, costs) < FOLDED_FROM or not spans_many_domains(call):
        return False
    return algorithm.stands_for(call, costs) is not None


def _measure_large(
    frame: RowFrame, call: CollectiveCall, algorithm: Algorithm, *, ideal: bool
) -> tuple[dict[str, Any], Trace]:
    """Return row and trace of a collective whose schedule is too large to build or to keep."""
    costs = communication_costs(call.group.cluster, ideal=ideal)
    row, trace = measure_timed(
        frame,
        [call],
        algorithm.name,
        algorithm.rounds(call, costs),
        lambda smaller: duration_ps(smaller, algorithm, ideal=ideal),
    )
    row["ops"] = algorithm.streamed_ops(call, costs) or row["ops"]
    return row, trace


def measure_timed(
    frame: RowFrame,
    calls: Sequence[CollectiveCall],
    name: str,
    steps: int,
    time_ps: Callable[[CollectiveCall], int],
) -> tuple[dict[str, Any], Trace]:
    """Return row and trace of calls of which ``time_ps`` gives only the time [ps]."""
    begun = time.perf_counter()
    times = [time_ps(call) for call in calls]
    timed = time.perf_counter()
    trace = run(one_op_a_rank(calls, times, name), engine=frame.engine)
    row = result_row(frame, trace, (begun, begun, timed))
    named = {"collective": calls[0].kind, "algorithm": name}
    return {**named, **row, "steps": steps, "semantics": NOT_CHECKED}, trace


def one_op_a_rank(
    calls: Sequence[CollectiveCall], times_ps: Sequence[int], algorithm: str
) -> Schedule:
    """Build a schedule of calls at once: a join, one op on each rank of each, and a join."""
    lasts = np.repeat(np.array(times_ps, np.int64), [call.ranks for call in calls])
    ranks, kind_of_all, size_bytes = len(lasts), calls[0].kind, calls[0].size_bytes
    duration = np.concatenate([[0], lasts, [0]])
    kind = np.where(duration > 0, FIXED, JOIN).astype(np.uint8)
    op = np.arange(1, ranks + 1)
    what = np.concatenate([[0], np.full(ranks, 1), [0]]).astype(np.uint8)
    return schedule(
        OpColumns(
            kind=kind, duration_ps=duration, size_bytes=np.where(kind == FIXED, size_bytes, 0)
        ),
        edges=Edges.from_pairs(
            ranks + 2,
            np.concatenate([np.zeros(ranks, np.int64), op]),
            np.concatenate([op, np.full(ranks, ranks + 1)]),
        ),
        resources=Resources.none(),
        labels={
            "rank": np.concatenate([[0], op - 1, [0]]),
            "what": Codes(what, ("join", kind_of_all)),
        },
        facts={"collective": kind_of_all, "algorithm": algorithm, "size_bytes": size_bytes},
    )
