"""Speed of solving max-min rates, for many flows at once and for flows that come and go.

Many flows at once are a random permutation on a torus, and an all-to-all over a Clos. Flows that
come and go are random flows over a Clos, where each start and end changes some rates.
"""

from __future__ import annotations

import time

import numpy as np

from cluster_sim.engine import Faults, max_min_rates
from cluster_sim.engine.fast import new_run
from cluster_sim.engine.fast.loop import play
from cluster_sim.schedule.build import OpColumns
from cluster_sim.schedule.build import schedule as build_schedule
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, Edges, Flows, Resources, Schedule
from topologies.clusters.names import cluster
from topologies.routing import routes
from topologies.support.arrays import IntArray
from topologies.support.memory_limit import peak_rss_bytes

GB = 10**9


def main() -> None:
    """Print one line for each case."""
    max_min_rates([1], [0, 1], [0])  # compiles the solver, or loads it from disk
    for side in (16, 32):
        report(f"random permutation on a {side}x{side}x{side} torus", *permutation(side))
    report("all-to-all of 4,096 chips, 32 a leaf, 4:1", *all_to_all(4096, 32, 4))
    come_and_go("64 chips, 16 a leaf, 4:1", flows_over_clos(20_000, 64, 16, 4))
    come_and_go(
        "1,024 chips, 32 a leaf, 8 spines, 2:1", flows_over_clos(20_000, 1024, 32, 2, 8, 0.02)
    )


def come_and_go(what: str, schedule: Schedule) -> None:
    """Run flows that start and end at different instants, and print the processor time."""
    run = new_run(schedule, Faults.none(), ())
    begun = time.process_time()
    play(run, HORIZON_PS)
    took = time.process_time() - begun
    print(
        f"random flows over a Clos, {what}: {len(schedule.flows):,} flows in {took:.2f} s of "
        f"processor time",
        flush=True,
    )


def flows_over_clos(
    flows: int, chips: int, leaf: int, oversubscription: int, spines: int = 1, within_s: float = 0
) -> Schedule:
    """Schedule flows of 1 MB to 1 GB between random chips, each over one spine.

    Each flow starts at a random instant within ``within_s`` seconds. Ports have 100 GB/s, and the
    seed is always the same.
    """
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, chips, flows), rng.integers(0, chips, flows)
    src, dst = src[src != dst], dst[src != dst]
    flows, far, up = len(src), src // leaf != dst // leaf, chips // leaf * spines
    spine = rng.integers(0, spines, flows)
    ptr = np.concatenate([[0], np.cumsum(np.where(far, 4, 2))])
    crossed = np.empty(ptr[-1], np.int32)
    crossed[ptr[:-1]], crossed[ptr[1:] - 1] = src, chips + dst
    crossed[ptr[:-1][far] + 1] = (2 * chips + src // leaf * spines + spine)[far]
    crossed[ptr[:-1][far] + 2] = (2 * chips + up + dst // leaf * spines + spine)[far]
    size = np.exp(rng.uniform(np.log(10**6), np.log(10**9), flows)).astype(np.int64)
    start = (rng.random(flows) * within_s * 10**12).astype(np.int64)
    tier = leaf * 100 * GB // oversubscription // spines
    capacity = np.repeat([100 * GB, tier], [2 * chips, 2 * up])
    return build_schedule(
        OpColumns(kind=[JOIN] + [FLOW] * flows, size_bytes=np.r_[0, size]),
        edges=Edges.from_pairs(flows + 1, np.zeros(flows, np.int64), np.arange(flows) + 1, start),
        resources=Resources.table("link", np.arange(len(capacity)), slots=0, capacity=capacity),
        flows=Flows(
            op=np.arange(1, flows + 1, dtype=np.int32),
            cap_bytes_per_s=np.full(flows, 100 * GB),
            ptr=ptr,
            resource=crossed,
            weight=np.ones(len(crossed), np.int32),
        ),
    )


def report(what: str, capacity: IntArray, ptr: IntArray, crossed: IntArray) -> None:
    """Solve the rates of all flows exactly, and print the time."""
    begun, worked = time.perf_counter(), time.process_time()
    rate = max_min_rates(capacity, ptr, crossed)
    took, cpu = time.perf_counter() - begun, time.process_time() - worked
    peak = peak_rss_bytes()
    print(
        f"{what}: {len(rate):,} flows, {len(crossed):,} hops, exact in {cpu:.2f} s "
        f"of processor time, wall {took:.2f} s, "
        f"{len(np.unique(rate)):,} rates, slowest {rate.min() / GB:.3f} GB/s, "
        f"peak {peak / 1e9:.1f} GB",
        flush=True,
    )


def permutation(side: int) -> tuple[IntArray, IntArray, IntArray]:
    """Flows of a random permutation, in which every chip sends to another by the shortest way.

    Returns the capacity of each link [B/s], and pointers and links that each flow crosses.
    """
    shape = cluster(f"torus:{side}x{side}x{side}", bandwidth="64GB/s", latency="1us").shape
    chips = side**3
    paths = routes(shape, np.arange(chips), np.random.default_rng(0).permutation(chips))
    sending = np.diff(paths.ptr) > 0
    ptr = np.concatenate([[0], np.cumsum(np.diff(paths.ptr)[sending])])
    return np.full(int(paths.link.max()) + 1, 64 * GB), ptr, paths.link


def all_to_all(chips: int, leaf: int, oversubscription: int) -> tuple[IntArray, IntArray, IntArray]:
    """Flows from every chip to every other over a Clos; see :func:`permutation` for the result.

    A flow crosses the sender's port, the receiver's port, and between different leaves an up-link
    and a down-link. The up-links of a leaf are one resource, as flows spread evenly over them.
    """
    leaves = chips // leaf
    src, dst = np.divmod(np.arange(chips * chips, dtype=np.int64), chips)
    src, dst = (column[src != dst].astype(np.int32) for column in (src, dst))
    far = src // leaf != dst // leaf
    ptr = np.zeros(len(src) + 1, np.int64)
    np.cumsum(np.where(far, 4, 2), out=ptr[1:])
    crossed = np.empty(ptr[-1], np.int32)
    crossed[ptr[:-1]] = src
    crossed[ptr[1:] - 1] = chips + dst
    crossed[ptr[:-1][far] + 1] = 2 * chips + src[far] // leaf
    crossed[ptr[:-1][far] + 2] = 2 * chips + leaves + dst[far] // leaf
    tier = leaf * 100 * GB // oversubscription
    return np.repeat([100 * GB, tier], [2 * chips, 2 * leaves]), ptr, crossed
