"""Measurements of simulated collectives as nccl-tests prints them, with the lower bound beside.

An all-to-all-v is an all-to-all whose parts differ in size, as the tokens of experts do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm, ops_foreseen
from cluster_sim.collectives.algorithms.direct import (
    DIMENSION_ORDERED,
    DIRECT,
    dimension_ordered,
    direct,
)
from cluster_sim.collectives.algorithms.hierarchical import radices, timed_radices
from cluster_sim.collectives.algorithms.registry import (
    AUTO,
    BEST,
    choose_algorithm,
    fits_by,
    fitting_algorithms,
)
from cluster_sim.collectives.builder import Collective, compose, lowered
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration import nccl
from cluster_sim.collectives.duration.duration import duration_ps, is_run_as_flows
from cluster_sim.collectives.few_ranks import spans_many_domains
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.group_parsing import file_text
from cluster_sim.collectives.lowering import Facts
from cluster_sim.collectives.messages import share
from cluster_sim.collectives.verify.bounds import Bound, least_latency, lower_bound
from cluster_sim.collectives.verify.proof import LARGEST_RANKS, NOT_CHECKED, prove
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.hardware.faults import Fault, fault_table, gone_around, spelled_out
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, JOIN, PS_PER_S, Codes, Edges, Resources, Schedule
from cluster_sim.trace.trace import ENGINES, Trace, run
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.shapes.links import domain_links
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError, check_choice, suggestion
from topologies.support.units import parse_bytes

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
BY_NCCL = (
    "The time of NCCL or RCCL is a closed form without links. Name an algorithm that is simulated "
    "here, such as --algorithm ring in one scale-up domain, or hierarchical among several."
)
MOST_PER_CHIP = 256  # most ranks of a chip that are accepted, more than any chip has cores


def rows(
    kind: str,
    group: Group,
    sizes: Sequence[int],
    algorithm: str = AUTO,
    *,
    ideal: bool = False,
    proof: bool | None = None,
) -> pd.DataFrame:
    """Simulate a collective at several sizes; see :func:`measure` for the options.

    Returns one row for each size with the columns ``collective, algorithm, cluster, ranks,
    size_bytes, time_s, algbw_bytes_per_s, busbw_bytes_per_s, lower_bound_s, bound, steps, ops,
    engine, build_s, simulate_s, semantics``.
    """
    calls = [CollectiveCall(kind, group, size) for size in sizes]
    import pandas as pd

    return pd.DataFrame(measure(call, algorithm, ideal=ideal, proof=proof)[0] for call in calls)


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
    ``auto`` is a model of NCCL's measured behaviour, which ``best`` tries too. The time of a group
    whose schedule does not fit in memory comes from a few ranks that stand for all. ``ideal``:
    count link rates and latencies only. ``sbuf``: keep the buffers in the scratchpads of the cores.
    ``proof``: by default up to ``LARGEST_RANKS`` ranks. ``faults``: the lower bound stays that of
    the healthy fabric. ``watched``: whether the caller looks at single messages; else a large
    collective may be run in parts whose messages are dropped.
    """
    check_choice("engine", engine, ENGINES)
    many = [calls] if isinstance(calls, CollectiveCall) else list(calls)
    first, frame = many[0], row_frame(many, engine, ideal=ideal, sbuf=sbuf)
    by_nccl = not (ideal or sbuf) and nccl.knows(first.group.cluster)
    if algorithm == AUTO and by_nccl:
        refuse_faults(faults, BY_NCCL)
        if len(many) == 1 or nccl.covers(first.group.cluster):
            return _measure_nccl(frame, many)

    def measured(picked: Algorithm) -> tuple[dict[str, Any], Trace]:
        """Row and trace of the call under one algorithm."""
        alone = len(many) == 1 and not sbuf
        unwatched = not (watched or proof or engine != "fast")
        streamed = _is_streamed(many, picked, unwatched=unwatched) and not faults
        folded = alone and unwatched and not faults and _is_folded(first, picked, ideal=ideal)
        if alone and (streamed or folded or not fits_by(many, picked)):
            few = f"{picked.name} is timed by a few ranks that stand for all"
            refuse_faults(faults, f"{few}. Take fewer ranks, or another algorithm.")
            costs = communication_costs(first.group.cluster, ideal=ideal)
            row, trace = measure_timed(
                frame,
                [first],
                picked.name,
                picked.rounds(first, costs),
                lambda smaller: duration_ps(smaller, picked, ideal=ideal),
            )
            row["ops"] = picked.streamed_ops(first, costs) or row["ops"]
            return row, trace
        down = gone_around(spelled_out(faults, first.group.cluster))[0]
        build = functools.partial(compose, many, picked, ideal=ideal, sbuf=sbuf, down=down)
        return measure_built(build, frame, proof=proof, faults=faults, down=down)

    is_best = algorithm == BEST
    candidates = fitting_algorithms(many) if is_best else [choose_algorithm(first, algorithm)]
    results = list(map(measured, candidates))
    if by_nccl and algorithm in (AUTO, BEST) and not faults:
        results.append(_measure_nccl(frame, many))
    pick = max if algorithm == AUTO else min  # groups that run at once share thin uplinks
    return pick(results, key=lambda result: int(result[1].total_ps))


def measure_built(
    build: Callable[[], Collective],
    frame: RowFrame,
    *,
    proof: bool | None = None,
    faults: Sequence[Fault] = (),
    down: Sequence[str] = (),
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove a collective around links ``down``; returns row and trace."""
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
        raise InputError(f"fault on {faults[0].resource}: {why}")


def _measure_nccl(frame: RowFrame, calls: Sequence[CollectiveCall]) -> tuple[dict[str, Any], Trace]:
    """Return row and trace of NCCL's time: groups that run at once share no port."""
    frame = replace(frame, bound=nccl.bound_with_switch(calls[0]))
    return measure_timed(frame, calls, nccl.NAME, nccl.steps(calls[0]), duration_ps)


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
    if is_run_as_flows(call):
        return ops_foreseen([call], algorithm, costs) >= FOLDED_FROM
    if not spans_many_domains(call):
        return False
    # A stage that is a long ring is timed by shorter ones, whatever the number of its messages.
    is_shortened = timed_radices(call) != radices(call)
    if not is_shortened and ops_foreseen([call], algorithm, costs) < FOLDED_FROM:
        return False
    return algorithm.stands_for(call, costs) is not None


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


KIND = "all-to-all-v"
MOST_BYTES = 2**50
"""Largest entry of a byte matrix; times the ranks, a matrix may hold no more for a pair [B]."""
WEIGHTS = 10**9
"""Integer weight of the largest share of a skewed matrix, to which the others are rounded."""


def compose_v(
    group: Group, sent_bytes: IntArray, algorithm: str = AUTO, *, ideal: bool = False
) -> Collective:
    """Build an all-to-all-v from the bytes (ranks, ranks) of rank i for rank j [B]."""
    check_matrix(sent_bytes, group.ranks)
    name = _choose_algorithm_v(group, algorithm)
    write = dimension_ordered if name == DIMENSION_ORDERED.name else direct
    facts: Facts = {
        "collective": KIND,
        "algorithm": name,
        "cluster": group.cluster.name,
        "ranks": group.ranks,
        "groups": 1,
        "size_bytes": buffer_bytes(sent_bytes),
        "ideal": ideal or group.cluster.plain,
    }
    covered = fabric(group.cluster, group.domains, ideal=ideal)
    return lowered(write(group, sent_bytes), [group], covered, facts)


def measure_v(
    group: Group,
    sent_bytes: IntArray,
    algorithm: str = AUTO,
    *,
    ideal: bool = False,
    engine: str = "fast",
    faults: Sequence[Fault] = (),
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove an all-to-all-v; returns its row, and trace."""
    check_matrix(sent_bytes, group.ranks)
    # By the mean buffer, and the bytes that leave the ranks: an even matrix has the all-to-all's
    # row.
    frame = RowFrame(
        group,
        buffer_bytes(sent_bytes),
        lower_bound_v(group, sent_bytes, ideal=ideal),
        bus_factor_v(sent_bytes),
        engine,
    )

    def timed_by_nccl() -> tuple[dict[str, Any], Trace]:
        """Row and trace of NCCL's exchange."""
        even = CollectiveCall("all-to-all", group, buffer_bytes(sent_bytes))
        row, trace = measure_timed(
            frame, [even], nccl.NAME, nccl.steps(even), lambda _: nccl.uneven_ps(group, sent_bytes)
        )
        return {**row, "collective": KIND}, trace

    by_nccl = not ideal and nccl.knows(group.cluster)
    if algorithm == AUTO and by_nccl:
        refuse_faults(faults, BY_NCCL)
        if nccl.covers(group.cluster):
            return timed_by_nccl()

    def measured(name: str) -> tuple[dict[str, Any], Trace]:
        """Row and trace of one algorithm."""
        build = functools.partial(compose_v, group, sent_bytes, name, ideal=ideal)
        return measure_built(build, frame, faults=faults)

    is_best = algorithm == BEST
    results = [measured(name) for name in (algorithms_v(group) if is_best else [algorithm])]
    if by_nccl and algorithm in (AUTO, BEST) and not faults:
        results.append(timed_by_nccl())
    pick = max if algorithm == AUTO else min  # uneven parts share thin uplinks
    return pick(results, key=lambda run: int(run[1].total_ps))


def algorithms_v(group: Group) -> list[str]:
    """Name the algorithms that make sense for a group, that of ``auto`` first."""
    on_torus = isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == 1
    ordered = on_torus and group.filled_box is not None
    return [DIMENSION_ORDERED.name, DIRECT.name] if ordered else [DIRECT.name]


def _choose_algorithm_v(group: Group, algorithm: str) -> str:
    """Resolve ``auto``, and refuse an algorithm that makes no sense for a group."""
    sensible = algorithms_v(group)
    if algorithm == AUTO:
        return sensible[0]
    if algorithm not in sensible:
        raise InputError(
            f"{algorithm} does not make sense for {KIND} on {len(group.chips)} chips of "
            f"{group.cluster.name}.{suggestion(algorithm, sensible)} "
            f"These do: {AUTO}, {BEST}, {', '.join(sensible)}"
        )
    return algorithm


def check_matrix(sent_bytes: IntArray, ranks: int) -> None:
    """Refuse a matrix that does not have a row and a column for each rank, or is out of range."""
    if sent_bytes.shape != (ranks, ranks):
        shown = " x ".join(map(str, sent_bytes.shape))
        raise InputError(
            f"the byte matrix is {shown}, the group has {ranks} ranks; give a row for each rank "
            "with a number for each rank"
        )
    if sent_bytes.min(initial=0) < 0 or sent_bytes.max(initial=0) > MOST_BYTES // ranks:
        worst = int(sent_bytes.min() if sent_bytes.min() < 0 else sent_bytes.max())
        raise InputError(
            f"the byte matrix holds {worst} B for a pair; from 0 to {MOST_BYTES // ranks} B"
        )


def read_matrix(path: Path) -> IntArray:
    """Read a byte matrix: a line for each rank, sizes separated by commas, as ``0,1MiB,300``."""
    lines = [line.partition("#")[0].strip() for line in file_text(path, "--bytes").splitlines()]
    rows = [line.split(",") for line in lines if line]
    if not rows:
        raise InputError(f"--bytes {path} is empty; give a line of sizes for each rank")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"--bytes {path}: row {number} has {len(row)} sizes, row 1 has {len(rows[0])}; "
                "give as many in each"
            )
    return np.array([[_size(text.strip(), path) for text in row] for row in rows], np.int64)


def _size(text: str, path: Path) -> int:
    """Parse a cell, which is mostly a plain number of bytes."""
    try:
        size = int(text) if text.isdecimal() and len(text) < 20 else parse_bytes(text)
    except InputError as mistake:
        raise InputError(f"--bytes {path}: {mistake}") from None
    if size > MOST_BYTES:
        raise InputError(f"--bytes {path}: {text[:40]} is over {MOST_BYTES} B (1 PiB). Correct it.")
    return size


def skewed(ranks: int, size_bytes: int, skew: float) -> IntArray:
    """Return the byte matrix of ranks that send to rank j in proportion to (j + 1)^-skew."""
    # Skew 0 is the even all-to-all; 1 is Zipf's law, which the popularity of experts roughly
    # follows.
    if not 0 <= skew <= 20:
        raise InputError(f"--skew {skew} is not between 0 (even) and 20")
    weights = np.maximum(1, np.rint(WEIGHTS * np.arange(1, ranks + 1) ** -float(skew)))
    return np.tile(share(size_bytes, weights.astype(np.int64)), (ranks, 1))


def buffer_bytes(sent_bytes: IntArray) -> int:
    """Return the mean buffer of a rank, its own part included, which algbw is counted for [B]."""
    return int(sent_bytes.sum()) // max(1, len(sent_bytes))


def bus_factor_v(sent_bytes: IntArray) -> float:
    """Return the ratio of busbw to algbw: the share of all bytes that goes to another rank."""
    total = int(sent_bytes.sum())
    return (total - int(np.trace(sent_bytes))) / total if total else 0.0


def lower_bound_v(group: Group, sent_bytes: IntArray, *, ideal: bool = False) -> Bound:
    """Return the time in which the busiest chip can send, or receive, through all its links."""
    chips, cores = len(group.chips), group.ranks_per_chip
    between = sent_bytes.reshape(chips, cores, chips, cores).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    links = domain_links(group.cluster.shape)
    local = group.chips % group.cluster.chips_per_domain
    outside = group.cluster.scale_out if len(group.domains) > 1 else None
    fabric_rate = outside.bandwidth_bytes_per_s if outside else 0
    bounds = [Bound("nothing to move", 0)]
    for what, node, moved in (
        ("out of the fullest chip", links.src, between.sum(axis=1)),
        ("into the fullest chip", links.dst, between.sum(axis=0)),
    ):
        rate = np.bincount(node, links.bandwidth_bytes_per_s, links.nodes)[local] + fabric_rate
        need = np.divide(moved, rate, out=np.zeros(chips), where=rate > 0).max(initial=0.0)
        bounds.append(Bound(what, int(need * PS_PER_S) + least_latency(group) if need else 0))
    # Unless ideal, its memory also has to store all that its ranks receive.
    costs = communication_costs(group.cluster, ideal=ideal)
    if costs.hbm_peak_bytes_per_s:
        arrives = sent_bytes.sum(axis=0) - np.diag(sent_bytes)
        most = int(arrives.reshape(chips, cores).sum(axis=1).max(initial=0))
        stored = most * costs.copy_accesses * PS_PER_S // costs.hbm_peak_bytes_per_s
        bounds.append(Bound("hbm", stored))
    return max(bounds, key=lambda bound: bound.time_ps)
