"""Results as nccl-tests prints them: size, time, algbw, busbw, with the lower bound beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.collectives.algorithms.registry import chosen, fits_by, fitting
from cluster_sim.collectives.duration.duration import duration_ps, rounds
from cluster_sim.collectives.duration.nccl import judged
from cluster_sim.collectives.duration.nccl.times import covers, nccl_ps
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lowering.build import compose
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.lowering.timed import one_op_a_rank
from cluster_sim.collectives.verify.bounds import Bound, lower_bound
from cluster_sim.collectives.verify.proof import LARGEST_RANKS, NOT_CHECKED, prove
from cluster_sim.trace.trace import ENGINES, Trace, run
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    import pandas as pd

BEST = "best"
MOST_PER_CHIP = 256
"""More than any chip has cores."""


def rows(
    op: str,
    cluster: Cluster,
    sizes: Sequence[int],
    algorithm: str = "auto",
    *,
    ranks: int | None = None,
    ranks_per_chip: int = 1,
    ideal: bool = False,
    sbuf: bool = False,
    engine: str = "fast",
    proof: bool | None = None,
) -> pd.DataFrame:
    """Simulate a collective at several sizes.

    Parameters
    ----------
    op : str
        One of ``OPS``.
    cluster : Cluster
    sizes : sequence of int
        As in nccl-tests [B].
    algorithm : str
        A name, ``auto``, or ``best``: all that make sense, of which the fastest is kept.
    ranks : int, optional
        The first so many, on the first chips; by default all.
    ranks_per_chip : int
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
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    >>> table = rows("all-reduce", ring, [2**30], "ring")
    >>> float(table.time_s[0]), table.semantics[0]
    (0.01880448192, 'proven')
    """
    group = first_ranks(cluster, ranks, ranks_per_chip)
    found = [
        measure(op, group, size, algorithm, ideal=ideal, sbuf=sbuf, engine=engine, proof=proof)[0]
        for size in sizes
    ]
    import pandas as pd

    return pd.DataFrame(found)


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
        raise InputError(
            f"{wanted} ranks on {cluster.name}: its {cluster.chips:,} chips have {most:,} at "
            f"{ranks_per_chip} a chip; ask for 1 to {most:,}"
        )
    if wanted % ranks_per_chip:
        raise InputError(
            f"{wanted} ranks are not whole chips of {ranks_per_chip} ranks; "
            f"use {wanted - wanted % ranks_per_chip or ranks_per_chip}"
        )
    return Group(cluster, np.arange(wanted // ranks_per_chip), ranks_per_chip)


def measure(
    op: str,
    groups: Group | Sequence[Group],
    size_bytes: int,
    algorithm: str = "auto",
    *,
    ideal: bool = False,
    sbuf: bool = False,
    engine: str = "fast",
    proof: bool | None = None,
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove one collective; the row of :func:`rows`, and the trace.

    Of several groups at once, which are of one size, ``ranks`` and busbw are those of one group
    and the time is that of the last to end. ``auto`` on NVIDIA's machines is NCCL's measured
    behaviour, as in :func:`cluster_sim.collectives.duration_ps`; so is the time of a group whose
    ops this machine could not hold.
    """
    check_engine(engine)
    many = [groups] if isinstance(groups, Group) else list(groups)
    bounds = (lower_bound(op, one, size_bytes, ideal=ideal, sbuf=sbuf) for one in many)
    bound = max(bounds, key=lambda one: one.time_ps)
    factor = bus_factor(op, many[0].ranks)
    asked = _Judged(op, many, size_bytes, bound, factor, engine)
    if algorithm == "auto" and not (ideal or sbuf) and covers(many[0].cluster):
        return _measure_nccl(asked)

    def tried(name: str) -> tuple[dict[str, Any], Trace]:
        def make() -> Collective:
            return compose(op, many, size_bytes, name, ideal=ideal, sbuf=sbuf)

        resolved = chosen(op, many[0], size_bytes, name)
        if len(many) == 1 and not sbuf and not fits_by(op, many, size_bytes, resolved):
            return _measure_large(asked, resolved, ideal=ideal)
        return measure_made(
            make, many[0], size_bytes, bound, factor=factor, engine=engine, proof=proof
        )

    names = fitting(op, many, size_bytes) if algorithm == BEST else [algorithm]
    return min(map(tried, names), key=lambda one: int(one[1].total_ps))


def measure_made(
    make: Callable[[], Collective],
    group: Group,
    size_bytes: int,
    bound: Bound,
    *,
    factor: float,
    engine: str = "fast",
    proof: bool | None = None,
) -> tuple[dict[str, Any], Trace]:
    """Build with ``make``, run and prove; the row and the trace.

    Parameters
    ----------
    make : function that returns a Collective
        Its time is the row's ``build_s``.
    group : Group
        Whose ranks the row counts.
    size_bytes : int
        Over time, algbw [B].
    bound : Bound
    factor : float
        busbw over algbw.
    engine, proof
        As in :func:`rows`.
    """
    check_engine(engine)
    begun = time.perf_counter()
    made = make()
    built = time.perf_counter()
    trace = run(made.schedule, engine=engine)
    done = time.perf_counter()
    row = _row(group, size_bytes, bound, factor, trace, engine, (begun, built, done))
    proven = _semantics(made, len(made.chip_of_rank), proof)
    named = {"collective": made.op, "algorithm": made.algorithm}
    return {**named, **row, "steps": made.steps, "semantics": proven}, trace


@dataclass(frozen=True, eq=False)
class _Judged:
    """What a row says besides the time: the collective, and what it is held against."""

    op: str
    groups: Sequence[Group]
    size_bytes: int
    bound: Bound
    factor: float
    engine: str


def _measure_nccl(asked: _Judged) -> tuple[dict[str, Any], Trace]:
    """NCCL's time; groups at once share no port, so that each takes as long as by itself."""
    op, size, first = asked.op, asked.size_bytes, asked.groups[0]
    bound = judged.bound_with_switch(op, first, size, asked.bound)
    return _measure_timed(
        replace(asked, bound=bound),
        judged.NAME,
        judged.steps(op, first, size),
        lambda group: nccl_ps(op, group, size),
    )


def _measure_large(asked: _Judged, name: str, *, ideal: bool) -> tuple[dict[str, Any], Trace]:
    """A collective whose ops this machine cannot hold, by a few ranks that stand for all."""
    op, size = asked.op, asked.size_bytes
    return _measure_timed(
        asked,
        name,
        rounds(op, asked.groups[0], size, name),
        lambda group: duration_ps(op, group, size, name, ideal=ideal),
    )


def _measure_timed(
    asked: _Judged, name: str, steps: int, time_ps: Callable[[Group], int]
) -> tuple[dict[str, Any], Trace]:
    """The row and the trace of a collective of which only the time is known."""
    begun = time.perf_counter()
    times = [time_ps(group) for group in asked.groups]
    timed = time.perf_counter()
    trace = run(
        one_op_a_rank(asked.op, asked.groups, times, asked.size_bytes, name), engine=asked.engine
    )
    clock = (begun, begun, timed)
    row = _row(
        asked.groups[0], asked.size_bytes, asked.bound, asked.factor, trace, asked.engine, clock
    )
    named = {"collective": asked.op, "algorithm": name}
    return {**named, **row, "steps": steps, "semantics": NOT_CHECKED}, trace


def _row(
    group: Group,
    size_bytes: int,
    bound: Bound,
    factor: float,
    trace: Trace,
    engine: str,
    clock: tuple[float, float, float],
) -> dict[str, Any]:
    seconds = trace.total_s
    begun, built, done = clock
    return {
        "cluster": group.cluster.name,
        "ranks": group.ranks,
        "size_bytes": int(size_bytes),
        "time_s": seconds,
        "algbw_bytes_per_s": size_bytes / seconds if seconds else 0.0,
        "busbw_bytes_per_s": factor * size_bytes / seconds if seconds else 0.0,
        "lower_bound_s": bound.time_ps / 1e12,
        "bound": bound.what,
        "steps": 0,
        "ops": len(trace),
        "engine": engine,
        "build_s": built - begun,
        "simulate_s": done - built,
    }


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist."""
    if engine not in ENGINES:
        raise InputError(
            f"unknown engine {engine!r}.{suggestion(engine, ENGINES)} Use {' or '.join(ENGINES)}."
        )


def _semantics(made: Collective, ranks: int, proof: bool | None) -> str:
    wanted = made.chunks.known and ranks <= LARGEST_RANKS if proof is None else proof
    return prove(made) if wanted else NOT_CHECKED


def bus_factor(op: str, ranks: int) -> float:
    """busbw over algbw, as nccl-tests defines it (doc/PERFORMANCE.md of nccl-tests).

    Examples
    --------
    >>> bus_factor("all-reduce", 8), bus_factor("all-gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if op == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in ("broadcast", "permute") else (ranks - 1) / ranks
