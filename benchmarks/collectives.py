"""Speed of building and running collectives.

The first table has the ops built and run per second, and the memory of an op, for each algorithm at
64, 512 and 4,096 ranks, on plain tori and on Trn2, whose messages also use memory bandwidth. The
second has rings of which some rounds are held at a time. The third has per-axis ring all-reduces,
the work on which other simulators are measured, on 16, 32 and 64 cubed chips, where the clocks of
links stand for all messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks._measure import clocks
from cluster_sim.collectives import CollectiveCall, Group, compose, suitable, whole
from cluster_sim.collectives.algorithms import ring
from cluster_sim.collectives.algorithms.cycles import all_rings, one_ring
from cluster_sim.collectives.algorithms.torus import (
    PER_AXIS,
    TORUS,
    line_by_line_ps,
    ring_by_ring_ps,
)
from cluster_sim.engine.repeats import simulate_rounds
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster
from topologies.shapes.basic import Tier, Tiered
from topologies.support.arrays import IntArray
from topologies.support.memory_limit import peak_rss_bytes

RANKS = {64: "torus:4x4x4", 512: "torus:8x8x8", 4096: "torus:16x16x16"}
MOST_OPS = 20_000_000
"""Most ops of a schedule that is built here; ``engine`` has the ring of 4,096 ranks, 34 M ops."""
GIB = 2**30


def torus(text: str) -> Group:
    """All chips of a plain torus of 100 GB/s and 1 µs links."""
    return whole(cluster(text, bandwidth="100GB/s", latency="1us"))


def main() -> None:
    """Print all tables."""
    ring_of_1024()
    every_algorithm()
    on_trainium()
    round_by_round()
    per_axis_all_reduce()
    per_axis_all_to_all()
    direct_all_to_all()
    lines_of_an_all_to_all()


def ring_of_1024() -> None:
    """Print the speed of the ring all-reduce of 1,024 ranks, three times."""
    for _ in range(3):
        row("all-reduce", "ring", whole(cluster("ring:1024", bandwidth="100GB/s", latency="1us")))


def every_algorithm() -> None:
    """Print the ops that each algorithm builds and runs per second, for each number of ranks."""
    for ranks, text in RANKS.items():
        group = torus(text)
        for op in ("all-reduce", "all-to-all"):
            for algorithm in suitable(CollectiveCall(op, group, GIB)):
                if _ops(algorithm.name, ranks) <= MOST_OPS:
                    row(op, algorithm.name, group)


def on_trainium() -> None:
    """Print the same on 64 chips of Trn2 with one rank on each chip, and with four.

    Four ranks share the memory bandwidth of their chip, which then limits the collective.
    """
    for cores in (1, 4):
        group = whole(cluster("trn2-ultraserver"), cores)
        for name in ("multi-ring", "rdh", *(("kangaring",) if cores > 1 else ("torus", "mesh"))):
            row("all-reduce", name, group)


def round_by_round() -> None:
    """Print the speed of rings of which some rounds are held at a time, building included."""
    for text in ("ring:512", "ring:1024", "ring:4096"):
        in_rounds("ring", one_ring, whole(cluster(text, bandwidth="100GB/s", latency="1us")))
    in_rounds("multi-ring", all_rings, whole(cluster("trn2-ultraserver"), 4))


def in_rounds(name: str, rings_of: Callable[[Group], IntArray], group: Group) -> None:
    """Build and run an all-reduce of 1 GiB in rounds; print the ops per second."""
    rings = rings_of(group)
    begun = clocks()
    rounds = ring.in_rounds(
        CollectiveCall("all-reduce", group, GIB), communication_costs(group.cluster), rings
    )
    if rounds is None:
        raise ValueError(f"the rounds of {name} over {group.ranks:,} ranks differ")
    total_ps = simulate_rounds(rounds)
    _, cpu_s = clocks() - begun
    peak = peak_rss_bytes() / 1e9
    print(
        f"{name} round by round, {group.ranks:,} ranks: {rounds.all_ops:,} ops in {cpu_s:.2f} s, "
        f"{rounds.all_ops / cpu_s / 1e6:.2f} M ops/s, peak {peak:.2f} GB so far, simulated "
        f"{total_ps / 1e9:.3f} ms",
        flush=True,
    )


def _ops(name: str, ranks: int) -> int:
    """Approximate number of ops of an algorithm, to leave out runs that do not fit in memory."""
    square = {"ring": 2, "bidirectional-ring": 4, "multi-ring": 12, "mesh": 24, "direct": 12}
    square |= {"single-step-mesh": 12, "dimension-ordered": 80}
    return square.get(name, 0) * ranks**2


def row(op: str, name: str, group: Group) -> None:
    """Build and run a collective once; print the ops per second of processor time."""
    begun = clocks()
    schedule = compose(CollectiveCall(op, group, GIB), name).schedule
    built = clocks()
    run(schedule)
    (_, build_s), (_, run_s) = built - begun, clocks() - built
    ops = len(schedule)
    print(
        f"{op:>14} {name:<18} {group.ranks:5,} ranks {ops:12,} ops  built "
        f"{ops / max(build_s, 1e-3) / 1e6:6.2f} M ops/s  run {ops / max(run_s, 1e-3) / 1e6:6.2f} "
        f"M ops/s  {schedule.nbytes / ops:5.1f} B/op",
        flush=True,
    )


def per_axis_all_reduce() -> None:
    """Print the speed of per-axis ring all-reduces, by the clocks of the links of every ring."""
    for side in (16, 32, 64):
        call = CollectiveCall("all-reduce", torus(f"torus:{side}x{side}x{side}"), GIB)
        costs = communication_costs(call.group.cluster)
        begun = clocks()
        total_ps = ring_by_ring_ps(call, costs)
        wall_s, cpu_s = clocks() - begun
        ops = PER_AXIS.message_count(call, costs) + call.ranks
        peak = peak_rss_bytes() / 1e9
        print(
            f"{side}x{side}x{side} per-axis all-reduce: {ops:,} ops in {wall_s:.2f} s "
            f"({cpu_s:.2f} s of cores), peak {peak:.1f} GB so far, "
            f"simulated {(total_ps or 0) / 1e9:.3f} ms",
            flush=True,
        )


def per_axis_all_to_all() -> None:
    """Print the speed of an all-to-all of 4,096 chips along one axis after the other."""
    all_to_all("16x16x16 per-axis", CollectiveCall("all-to-all", torus("torus:16x16x16"), GIB))


def direct_all_to_all() -> None:
    """Print the speed of an all-to-all of 64 x 128 chips, each linked to all others of an axis."""
    plain = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    axes = (Tier("column", 128, 100 * 10**9, 10**6), Tier("row", 64, 100 * 10**9, 10**6))
    chips = whole(replace(plain, name="64x128", shape=Tiered(axes), chips_per_server=8192))
    all_to_all("64x128 direct", CollectiveCall("all-to-all", chips, GIB // 16))


def lines_of_an_all_to_all() -> None:
    """Print the speed of an all-to-all in all orders by lines, beside all messages in one run."""
    for text in ("torus:32x64", "torus:64x128"):
        call = CollectiveCall("all-to-all", torus(text), GIB)
        costs, begun = communication_costs(call.group.cluster), clocks()
        total_ps, ended = line_by_line_ps(call, costs), clocks()
        lines_s, ops = (ended - begun)[1], TORUS.streamed_ops(call, costs)
        beside = ""
        if ops <= MOST_OPS:
            all_ps = run(compose(call, TORUS).schedule).total_ps
            beside = f", all at once {(clocks() - ended)[1]:.2f} s, equal: {all_ps == total_ps}"
        print(f"{text} all-to-all, {ops:,} ops: by lines {lines_s:.2f} s{beside}", flush=True)


def all_to_all(what: str, call: CollectiveCall) -> None:
    """Build and run an all-to-all along one axis after the other; print both processor times."""
    begun = clocks()
    schedule = compose(call, "torus").schedule
    built = clocks()
    total = run(schedule).total_s
    (_, build_s), (_, run_s) = built - begun, clocks() - built
    print(
        f"{what} all-to-all: {len(schedule):,} ops built in {build_s:.2f} s of a core, run in "
        f"{run_s:.2f} s, simulated {total * 1e3:.3f} ms",
        flush=True,
    )
