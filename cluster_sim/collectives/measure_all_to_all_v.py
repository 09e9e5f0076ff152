"""All-to-all-v: every rank has a part of its own size for every other, as experts' tokens are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.collectives.algorithms.all_to_all import (
    DIMENSION_ORDERED,
    DIRECT,
    dimension_ordered,
    direct,
)
from cluster_sim.collectives.algorithms.registry import AUTO, BEST
from cluster_sim.collectives.chunks import share
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.group_parsing import file_text
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.lowering.lower import Facts, lower
from cluster_sim.collectives.results import Frame, measure_built
from cluster_sim.collectives.verify.bounds import Bound
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.hardware.fabric import fabric
from cluster_sim.hardware.fault_text import Fault
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.arrays import IntArray
from topologies.errors import InputError, suggestion
from topologies.shapes.basic import Torus
from topologies.shapes.links import domain_links
from topologies.units import parse_bytes

KIND = "all-to-all-v"
MOST_BYTES = 2**50
WEIGHTS = 10**9
"""Steps into which a skewed share is rounded; sizes still sum to the buffer to the byte."""


def compose_v(
    group: Group, sent_bytes: IntArray, algorithm: str = AUTO, *, ideal: bool = False
) -> Collective:
    """Build an all-to-all-v: one message for every pair of ranks with something to send.

    Parameters
    ----------
    group : Group
    sent_bytes : int64 array (ranks, ranks)
        Bytes that rank i has for rank j; the diagonal stays where it is [B].
    algorithm : str
        ``direct``, ``dimension-ordered`` on a box of a torus, or ``auto``.
    ideal : bool
        Link rates and latencies only.

    Raises
    ------
    InputError
        For a matrix of another shape, sizes out of range, and an algorithm that makes no sense.

    Examples
    --------
    >>> from cluster_sim.collectives import prove, whole
    >>> from topologies.clusters.names import cluster
    >>> three = whole(cluster("ring:3", bandwidth="100GB/s", latency="1us"))
    >>> built = compose_v(three, np.array([[0, 100, 0], [0, 0, 0], [7, 0, 9]]))
    >>> prove(built), built.schedule.size_bytes.sum().item()
    ('proven', 107)
    """
    check_matrix(sent_bytes, group.ranks)
    name = chosen_v(group, algorithm)
    filled = box(group) if name == DIMENSION_ORDERED.name else None
    messages = (
        direct(group, sent_bytes)
        if filled is None
        else dimension_ordered(group, filled, sent_bytes)
    )
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
    return Collective(
        kind=KIND,
        algorithm=name,
        schedule=lower(messages, group.chip_of_rank, covered, facts),
        chunks=messages.chunks,
        chip_of_rank=group.chip_of_rank,
        group_of_rank=np.zeros(group.ranks, np.int32),
        steps=int(messages.step.max(initial=-1)) + 1,
    )


def measure_v(
    group: Group,
    sent_bytes: IntArray,
    algorithm: str = AUTO,
    *,
    ideal: bool = False,
    engine: str = "fast",
    faults: Sequence[Fault] = (),
) -> tuple[dict[str, Any], Trace]:
    """Build, run and prove an all-to-all-v; the row as for every collective, and the trace.

    ``size_bytes`` is the mean buffer of a rank and busbw counts what leaves the ranks, so that an
    even matrix gives the row of the all-to-all.
    """
    check_matrix(sent_bytes, group.ranks)
    frame = Frame(
        group,
        buffer_bytes(sent_bytes),
        lower_bound_v(group, sent_bytes, ideal=ideal),
        bus_factor_v(sent_bytes),
        engine,
    )

    def tried(name: str) -> tuple[dict[str, Any], Trace]:
        built = functools.partial(compose_v, group, sent_bytes, name, ideal=ideal)
        return measure_built(built, frame, faults=faults)

    names = algorithms_v(group) if algorithm == BEST else [algorithm]
    return min(map(tried, names), key=lambda run: int(run[1].total_ps))


def algorithms_v(group: Group) -> list[str]:
    """Algorithms that make sense for a group, the usual one first."""
    on_torus = isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == 1
    ordered = on_torus and box(group) is not None
    return [DIMENSION_ORDERED.name, DIRECT.name] if ordered else [DIRECT.name]


def chosen_v(group: Group, algorithm: str) -> str:
    """Name of the algorithm that runs."""
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
    """Refuse a matrix that is not square, not of the group, or out of range."""
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
    """Read a byte matrix: a line for each rank, sizes parted by commas, as ``0,1MiB,300``.

    Raises
    ------
    InputError
        When the file cannot be read, a line is shorter than the first, or a cell is no size.
    """
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
    return np.array([[_cell(text.strip(), path) for text in row] for row in rows], np.int64)


def _cell(text: str, path: Path) -> int:
    size = int(text) if text.isdecimal() and len(text) < 20 else _size(text, path)
    if size > MOST_BYTES:
        raise InputError(f"--bytes {path}: {text[:40]} is over {MOST_BYTES} B (1 PiB). Correct it.")
    return size


def _size(text: str, path: Path) -> int:
    try:
        return parse_bytes(text)
    except InputError as mistake:
        raise InputError(f"--bytes {path}: {mistake}") from None


def skewed(ranks: int, size_bytes: int, skew: float) -> IntArray:
    """Byte matrix of ranks whose buffers go to rank j in proportion to (j + 1)^-skew.

    Skew 0 is the even all-to-all; 1 is Zipf's law, as popular experts follow roughly.

    Parameters
    ----------
    ranks : int
    size_bytes : int
        Whole buffer of each rank, its own part included [B].
    skew : float
        From 0 on.

    Examples
    --------
    >>> skewed(3, 1100, 1.0)[0].tolist()
    [600, 300, 200]
    """
    if not 0 <= skew <= 20:
        raise InputError(f"--skew {skew} is not between 0 (even) and 20")
    weights = np.maximum(1, np.rint(WEIGHTS * np.arange(1, ranks + 1) ** -float(skew)))
    return np.tile(share(size_bytes, weights.astype(np.int64)), (ranks, 1))


def buffer_bytes(sent_bytes: IntArray) -> int:
    """Mean buffer of a rank, its own part included; what algbw divides by the time [B]."""
    return int(sent_bytes.sum()) // max(1, len(sent_bytes))


def bus_factor_v(sent_bytes: IntArray) -> float:
    """busbw over algbw: the share of all bytes that goes to another rank, (n - 1) / n if even."""
    whole = int(sent_bytes.sum())
    return (whole - int(np.trace(sent_bytes))) / whole if whole else 0.0


def lower_bound_v(group: Group, sent_bytes: IntArray, *, ideal: bool = False) -> Bound:
    """Time in which the fullest chip can send, or receive, through all its links.

    And, unless on ideal wire, in which its memory can store what its ranks receive.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> four = whole(cluster("ring:4", bandwidth="100GB/s", latency="1us"))
    >>> lower_bound_v(four, skewed(4, 2**20, 1.0)).what
    'into the fullest chip'
    """
    chips, cores = len(group.chips), group.ranks_per_chip
    between = sent_bytes.reshape(chips, cores, chips, cores).sum(axis=(1, 3))
    np.fill_diagonal(between, 0)
    links = domain_links(group.cluster.shape)
    local = group.chips % group.cluster.chips_per_domain
    outside = group.cluster.scale_out if len(group.domains) > 1 else None
    fabric_rate = outside.bandwidth_bytes_per_s if outside else 0
    bounds = [Bound("nothing to move", 0)]
    for what, ends, moved in (
        ("out of the fullest chip", links.src, between.sum(axis=1)),
        ("into the fullest chip", links.dst, between.sum(axis=0)),
    ):
        rate = np.bincount(ends, links.bandwidth_bytes_per_s, links.nodes)[local] + fabric_rate
        need = np.divide(moved, rate, out=np.zeros(chips), where=rate > 0).max(initial=0.0)
        bounds.append(Bound(what, int(need * PS_PER_S)))
    costs = wire(group.cluster, ideal=ideal)
    if costs.hbm_peak_bytes_per_s:
        arrives = sent_bytes.sum(axis=0) - np.diag(sent_bytes)
        most = int(arrives.reshape(chips, cores).sum(axis=1).max(initial=0))
        stored = most * costs.copy_accesses * PS_PER_S // costs.hbm_peak_bytes_per_s
        bounds.append(Bound("hbm", stored))
    return max(bounds, key=lambda bound: bound.time_ps)
