"""All-to-all-v: an all-to-all whose parts differ in size, as the tokens of experts do."""

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
from cluster_sim.collectives.builder import Collective
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.chunks import share
from cluster_sim.collectives.duration import nccl
from cluster_sim.collectives.duration.nccl import times
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.group_parsing import file_text
from cluster_sim.collectives.lowering.lower import Facts, lower
from cluster_sim.collectives.results import RowFrame, measure_built, measure_timed, refuse_faults
from cluster_sim.collectives.verify.bounds import Bound
from cluster_sim.hardware.communication_costs import communication_costs
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
"""Largest entry of a byte matrix; times the ranks, a matrix may hold no more for a pair [B]."""
WEIGHTS = 10**9
"""Integer weight of the largest share of a skewed matrix, to which the others are rounded."""


def compose_v(
    group: Group, sent_bytes: IntArray, algorithm: str = AUTO, *, ideal: bool = False
) -> Collective:
    """Build an all-to-all-v: a message for every pair of ranks with something to send.

    ``sent_bytes`` (ranks, ranks): bytes that rank i has for rank j; those of the diagonal are not
    sent [B]. ``algorithm``: ``direct``, ``dimension-ordered`` on a box of a torus, or ``auto``.
    """
    check_matrix(sent_bytes, group.ranks)
    name = _choose_algorithm(group, algorithm)
    filled = group.filled_box if name == DIMENSION_ORDERED.name else None
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
    """Build, run and prove an all-to-all-v; returns its row, as for every collective, and trace.

    ``size_bytes`` is the mean buffer of a rank and busbw counts the bytes that leave the ranks, so
    that an even matrix gives the row of the all-to-all. ``best`` keeps the fastest of all
    algorithms. On NVIDIA's machines ``auto`` is NCCL's exchange, timed for the busiest port.
    """
    check_matrix(sent_bytes, group.ranks)
    frame = RowFrame(
        group,
        buffer_bytes(sent_bytes),
        lower_bound_v(group, sent_bytes, ideal=ideal),
        bus_factor_v(sent_bytes),
        engine,
    )

    if algorithm == AUTO and not ideal and nccl.covers(group.cluster):
        refuse_faults(faults, "NCCL's time is a closed form without links")
        even = CollectiveCall("all-to-all", group, buffer_bytes(sent_bytes))
        row, trace = measure_timed(
            frame,
            [even],
            nccl.NAME,
            times.steps(even),
            lambda _: times.uneven_ps(group, sent_bytes),
        )
        return {**row, "collective": KIND}, trace

    def measured(name: str) -> tuple[dict[str, Any], Trace]:
        """Row and trace of one algorithm."""
        build = functools.partial(compose_v, group, sent_bytes, name, ideal=ideal)
        return measure_built(build, frame, faults=faults)

    names = algorithms_v(group) if algorithm == BEST else [algorithm]
    return min(map(measured, names), key=lambda run: int(run[1].total_ps))


def algorithms_v(group: Group) -> list[str]:
    """Name the algorithms that make sense for a group, that of ``auto`` first."""
    on_torus = isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == 1
    ordered = on_torus and group.filled_box is not None
    return [DIMENSION_ORDERED.name, DIRECT.name] if ordered else [DIRECT.name]


def _choose_algorithm(group: Group, algorithm: str) -> str:
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
    size = int(text) if text.isdecimal() and len(text) < 20 else _size_with_unit(text, path)
    if size > MOST_BYTES:
        raise InputError(f"--bytes {path}: {text[:40]} is over {MOST_BYTES} B (1 PiB). Correct it.")
    return size


def _size_with_unit(text: str, path: Path) -> int:
    try:
        return parse_bytes(text)
    except InputError as mistake:
        raise InputError(f"--bytes {path}: {mistake}") from None


def skewed(ranks: int, size_bytes: int, skew: float) -> IntArray:
    """Return the byte matrix of ranks that send to rank j in proportion to (j + 1)^-skew.

    Skew 0 is the even all-to-all; skew 1 is Zipf's law, which the popularity of experts follows
    roughly. ``size_bytes``: whole buffer of each rank, its own part included [B].
    """
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
    """Return the time in which the busiest chip can send, or receive, through all its links.

    Unless ``ideal``, its memory also has to store all that its ranks receive.
    """
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
        bounds.append(Bound(what, int(need * PS_PER_S)))
    costs = communication_costs(group.cluster, ideal=ideal)
    if costs.hbm_peak_bytes_per_s:
        arrives = sent_bytes.sum(axis=0) - np.diag(sent_bytes)
        most = int(arrives.reshape(chips, cores).sum(axis=1).max(initial=0))
        stored = most * costs.copy_accesses * PS_PER_S // costs.hbm_peak_bytes_per_s
        bounds.append(Bound("hbm", stored))
    return max(bounds, key=lambda bound: bound.time_ps)
