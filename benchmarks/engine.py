"""Speed of both engines, compared in one run with rings written by hand in SimPy.

The hand-written rings do the work of a ring all-reduce with the same wire time and latency, but
without queues, which a ring does not need; the three ways are in `benchmarks/_by_hand.py`.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks._by_hand import BY_HAND, CHUNK_BYTES
from benchmarks._measure import clocks
from cluster_sim.collectives import CollectiveCall, compose, whole
from cluster_sim.engine import simulate
from cluster_sim.schedule.table import Schedule
from topologies.clusters.names import cluster
from topologies.support.memory_limit import peak_rss_bytes

REPEATS = 2


def main() -> None:
    """Print the three tables."""
    assert_same_time()
    print("SimPy engine [us of processor time an op], beside rings by hand; how many times as fast")
    for ranks in (64, 128):
        beside_hand_written(ranks, "reference")
    print("Compiled engine, building included, beside the same rings")
    for ranks in (64, 128, 512):
        beside_hand_written(ranks, "fast")
    print("Compiled engine: ring all-reduce, each in a fresh process with the code on disk")
    for ranks in (1024, 4096):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            print(fresh.submit(build_and_run, ranks).result(), flush=True)


def ring(ranks: int) -> Schedule:
    """Schedule of a ring all-reduce in which each rank sends one chunk in each step."""
    group = whole(cluster(f"ring:{ranks}", bandwidth="100GB/s", latency="1us"))
    return compose(CollectiveCall("all-reduce", group, ranks * CHUNK_BYTES), "ring").schedule


def assert_same_time() -> None:
    """Check that the rings by hand take the same simulated time as the engine."""
    expected = simulate(ring(16)).total_ps
    for name, by_hand in BY_HAND.items():
        if by_hand(16) != expected:
            raise ValueError(f"{name}: {by_hand(16)} ps, the engine {expected} ps")


def beside_hand_written(ranks: int, engine: str) -> None:
    """Print one line: the time of an op on an engine and by hand, best of a few runs."""
    ops = len(ring(ranks))
    if engine == "fast":
        ours = best(lambda: simulate(ring(ranks), engine=engine))
    else:
        schedule = ring(ranks)
        ours = best(lambda: simulate(schedule, engine=engine))
    line = f"{ranks:6,} ranks, {ops:9,} ops: {ours / ops * 1e6:6.3f} us/op"
    for name, by_hand in BY_HAND.items():
        other = best(partial(by_hand, ranks))
        line += f"; {name} {other / ops * 1e6:.2f}, {other / ours:.2f} x"
    print(line, flush=True)


def best(run: Callable[[], object]) -> float:
    """Least processor time of a few runs [s]."""
    times = []
    for _ in range(REPEATS):
        gc.collect()
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times)


def build_and_run(ranks: int) -> str:
    """Build and run a ring once, and return a line with the time and memory of both."""
    simulate(ring(4))  # loads the machine code
    begun = clocks()
    schedule = ring(ranks)
    built = clocks()
    times = simulate(schedule)
    done = clocks()
    ops = len(schedule)
    (build_s, build_cpu_s), (run_s, run_cpu_s) = built - begun, done - built
    columns = (times.ready_ps, times.start_ps, times.end_ps, times.status)
    peak = peak_rss_bytes()
    return (
        f"{ranks:6,} ranks, {ops:10,} ops: built in {build_s:.2f} s ({build_cpu_s:.2f} s of cores, "
        f"{ops / build_cpu_s / 1e6:.1f} M ops/s), run in {run_s:.2f} s ({run_cpu_s:.2f} s, "
        f"{ops / run_cpu_s / 1e6:.1f} M ops/s); {schedule.nbytes / ops:.0f} B an op, "
        f"{sum(column.nbytes for column in columns) / ops:.0f} B more for its times, "
        f"peak {peak / 1e9:.2f} GB"
    )
