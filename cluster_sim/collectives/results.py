"""Results as nccl-tests prints them: size, time, algbw, busbw, with the lower bound beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.footprint import ops_foreseen
from cluster_sim.collectives.algorithms.registry import AUTO, BEST, chosen, fits_by, fitting
from cluster_sim.collectives.builder import compose
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration import nccl
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.lowering.timed import one_op_a_rank
from cluster_sim.collectives.verify.bounds import Bound, lower_bound
from cluster_sim.collectives.verify.proof import LARGEST_RANKS, NOT_CHECKED, prove
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.hardware.fault_text import Fault, fault_table
from cluster_sim.trace.trace import ENGINES, Trace, run
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    import pandas as pd

STREAMED_FROM = 1_000_000
"""Ops from which a collective whose parts share nothing is run part by part."""
STREAMED_UNWATCHED_FROM = 100_000
"""The same where nobody wants to see every message, and where the time is the same to the last
picosecond: below, there is nothing to gain."""
MOST_PER_CHIP = 256
"""More than any chip has cores."""


class _Options(TypedDict):
    ideal: bool
    sbuf: bool
    engine: str
    proof: bool | None


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
    """Simulate a collective at several sizes.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    group : Group
    sizes : sequence of int
        As in nccl-tests [B].
    algorithm : str
        A name, ``auto``, or ``best``: all that make sense, of which the fastest is kept.
    ideal, sbuf : bool
        Link rates and latencies only; buffers in the scratchpads of the cores.
    engine : str
    proof : bool, optional
        Whether to prove each schedule; by default up to ``LARGEST_RANKS`` ranks.

    Returns
    -------
    DataFrame
        ``collective, algorithm, cluster, ranks, size_bytes, time_s, algbw_bytes_per_s,
        busbw_bytes_per_s, lower_bound_s, bound, steps, ops, engine, build_s, simulate_s,
        semantics``.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> ring = whole(cluster("ring:8", bandwidth="100GB/s", latency="1us"))
    >>> table = rows("all-reduce", ring, [2**30], "ring")
    >>> float(table.time_s[0]), table.semantics[0]
    (0.01880448192, 'proven')
    """
    calls = [CollectiveCall(kind, group, size) for size in sizes]
    options: _Options = {"ideal": ideal, "sbuf": sbuf, "engine": engine, "proof": proof}
    import pandas as pd

    return pd.DataFrame([measure(call, algorithm, **options)[0] for call in calls])


def first_ranks(cluster: Cluster, ranks: int | None, ranks_per_chip: int = 1) -> Group:
    """Group of the first ranks of a cluster.

    Raises
    ------
    InputError
        When the cluster has fewer, or a chip would be cut in two.
    """
    if not 1 <= ranks_per_chip <= MOST_PER_CHIP:
        raise InputError(f"{ranks_per_chip} ranks per chip; use 1 to {MOST_PER_CHIP}")
    most = cluster.chips * ranks_per_chip
    wanted = most if ranks is None else ranks
    if not 1 <= wanted <= most:
        room = f"1 to {most:,}" if most > 1 else "1"
        raise InputError(
            f"{wanted} ranks on {cluster.name}: {ranks_per_chip} a chip on {cluster.chips:,} "
            f"{'chip' if cluster.chips == 1 else 'chips'}; ask for {room}"
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
    """Build, run and prove a call; the row of :func:`rows`, and the trace.

    Where several calls of one size run at once, ``ranks`` and busbw are those of one group
    and the time is that of the last to end. ``auto`` on NVIDIA's machines is NCCL's measured
    behaviour, as in :func:`cluster_sim.collectives.duration_ps`; so is the time of a group whose
    ops this machine could not hold. ``faults`` slow or stop links, adapters, CC-Cores and memories
    in flight; the lower bound stays that of the healthy fabric. Where nobody wants to see the
    messages, ``watched`` is false, and a large collective is run in parts that are dropped.

    Raises
    ------
    InputError
        For an unknown resource, and for faults of a time that is not simulated op by op.
    """
    check_engine(engine)
    many = [calls] if isinstance(calls, CollectiveCall) else list(calls)
    first = many[0]
    bounds = (lower_bound(call, ideal=ideal, sbuf=sbuf) for call in many)
    bound = max(bounds, key=lambda lower: lower.time_ps)
    frame = Frame(first.group, first.size_bytes, bound, bus_factor(first.kind, first.ranks), engine)
    if algorithm == AUTO and not (ideal or sbuf) and nccl.covers(first.group.cluster):
        _refuse_faults(faults, "NCCL's time is a closed form without links")
        return _measure_nccl(frame, many)

    def tried(picked: Algorithm) -> tuple[dict[str, Any], Trace]:
        alone = len(many) == 1 and not sbuf
        unseen = not (watched or proof or engine != "fast")
        streamed = _is_streamed(many, picked, unseen=unseen) and not faults
        if alone and (streamed or not fits_by(many, picked)):
            _refuse_faults(faults, f"{picked.name} is timed by a few ranks that stand for all")
            return _measure_large(frame, first, picked, ideal=ideal)
        return measure_built(
            lambda: compose(many, picked, ideal=ideal, sbuf=sbuf),
            frame,
            proof=proof,
            faults=faults,
        )

    candidates = fitting(many) if algorithm == BEST else [chosen(first, algorithm)]
    return min(map(tried, candidates), key=lambda result: int(result[1].total_ps))


@dataclass(frozen=True, eq=False)
class Frame:
    """The part of a row that does not come from its schedule.

    Attributes
    ----------
    group : Group
        The one whose ranks the row counts.
    size_bytes : int
        Over time, algbw [B].
    bound : Bound
    factor : float
        busbw over algbw.
    engine : str
    """

    group: Group
    size_bytes: int
    bound: Bound
    factor: float
    engine: str = "fast"


def measure_built(
    build: Callable[[], Collective],
    frame: Frame,
    *,
    proof: bool | None = None,
    faults: Sequence[Fault] = (),
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove; the row and the trace.

    Parameters
    ----------
    build : function that returns a Collective
        Its time is the row's ``build_s``.
    frame : Frame
    proof : bool, optional
        As in :func:`rows`.
    faults : sequence of Fault
    """
    check_engine(frame.engine)
    begun = time.perf_counter()
    built = build()
    ready = time.perf_counter()
    struck = fault_table(built.schedule, faults) if faults else None
    trace = run(built.schedule, engine=frame.engine, faults=struck)
    row = _row(frame, trace, (begun, ready, time.perf_counter()))
    wanted = built.chunks.is_tracked and len(built.chip_of_rank) <= LARGEST_RANKS
    semantics = prove(built) if (wanted if proof is None else proof) else NOT_CHECKED
    named = {"collective": built.kind, "algorithm": built.algorithm}
    return {**named, **row, "steps": built.steps, "semantics": semantics}, trace


def _refuse_faults(faults: Sequence[Fault], why: str) -> None:
    if faults:
        raise InputError(
            f"fault on {faults[0].resource}: {why}. Name an algorithm that is simulated here, such "
            "as --algorithm ring, or take fewer ranks"
        )


def _measure_nccl(frame: Frame, calls: Sequence[CollectiveCall]) -> tuple[dict[str, Any], Trace]:
    """Measure NCCL's time; groups at once share no port, so each takes as long as alone."""
    from cluster_sim.collectives.duration.nccl import judged
    from cluster_sim.collectives.duration.nccl.times import nccl_ps

    bound = judged.bound_with_switch(calls[0], frame.bound)
    frame = replace(frame, bound=bound)
    return _measure_timed(frame, calls, nccl.NAME, judged.steps(calls[0]), nccl_ps)


def _is_streamed(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, *, unseen: bool = False
) -> bool:
    """Return whether a call is run part by part: it is large and its parts share nothing."""
    first = calls[0]
    if not algorithm.streams or not first.group.cluster.plain:
        return False
    ops = ops_foreseen(calls, algorithm, wire(first.group.cluster))
    exact = first.size_bytes % first.ranks == 0 and first.ranks > LARGEST_RANKS
    return ops >= (STREAMED_UNWATCHED_FROM if unseen and exact else STREAMED_FROM)


def _measure_large(
    frame: Frame, call: CollectiveCall, algorithm: Algorithm, *, ideal: bool
) -> tuple[dict[str, Any], Trace]:
    """Measure a collective too large for this machine, by a few ranks that stand for all."""
    costs = wire(call.group.cluster, ideal=ideal)
    row, trace = _measure_timed(
        frame,
        [call],
        algorithm.name,
        algorithm.rounds(call, costs),
        lambda smaller: duration_ps(smaller, algorithm, ideal=ideal),
    )
    if algorithm.streams:
        row["ops"] = algorithm.message_count(call, costs) + call.ranks
    return row, trace


def _measure_timed(
    frame: Frame,
    calls: Sequence[CollectiveCall],
    name: str,
    steps: int,
    time_ps: Callable[[CollectiveCall], int],
) -> tuple[dict[str, Any], Trace]:
    """The row and the trace of calls of which only the time is known."""
    begun = time.perf_counter()
    times = [time_ps(call) for call in calls]
    timed = time.perf_counter()
    trace = run(one_op_a_rank(calls, times, name), engine=frame.engine)
    row = _row(frame, trace, (begun, begun, timed))
    named = {"collective": calls[0].kind, "algorithm": name}
    return {**named, **row, "steps": steps, "semantics": NOT_CHECKED}, trace


def _row(frame: Frame, trace: Trace, clock: tuple[float, float, float]) -> dict[str, Any]:
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
    """busbw over algbw, as nccl-tests defines it (doc/PERFORMANCE.md of nccl-tests).

    Examples
    --------
    >>> bus_factor("all-reduce", 8), bus_factor("all-gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "permute") else (ranks - 1) / ranks
