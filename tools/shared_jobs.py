"""Cost of sharing links that ``share`` finds, beside runs in which all messages are written out.

``python -m tools.shared_jobs`` draws pairs of jobs at random places of three machines and prints,
for the pairs that cost each other more than half a percent, the share of the cost that is found and
how far single jobs are off. These are the figures of docs/how-to/share-a-cluster.md, and of the
sentences in ``experiments/cli/commands/share.py``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.engine.repeats import simulate_calls
from cluster_sim.progress import progress
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.support.arrays import IntArray
from workloads.models.model import Model
from workloads.sharing.jobs import jobs_from
from workloads.sharing.sharing import Meeting, Ready, ready_jobs, together
from workloads.training.execution.chunk_level import expand, project
from workloads.training.execution.links import Patterns
from workloads.training.execution.lower import lower
from workloads.training.program.groups import SharedParts
from workloads.training.program.program import OWN

TOY = Model("toy", 8, 1024, 16, 4, 64, 4096, 32_000)
THIN = """\
name: thin
chip: {like: trn2}
chips_per_server: 4
scale_up:
  shape: torus
  axes: [{name: X, size: 4, bandwidth: 128GB/s, latency: 0.3us}]
domains: 8
scale_out: {bandwidth_per_chip: 200Gbit/s, latency: 15us, radix: 24, oversubscription: 4}
"""
"""Servers of four chips under switches that carry a quarter of what their adapters send."""
USUAL = {"model": TOY, "seq": 1024, "overlap": "dp"}
LEAST_COST = 0.005  # part of the steps that a pair has to cost itself to count
PAIRS = 60  # pairs that are drawn on each machine


def thin_cluster() -> Cluster:
    """Return the machine with an oversubscribed fabric."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "thin.yaml"
        path.write_text(THIN)
        return cluster(str(path))


def ready(
    machine: Cluster, jobs: Sequence[dict[str, Any]], places: Sequence[IntArray], steps: int = 2
) -> list[Ready]:
    """Return toy jobs on stated chips."""
    entries = [{**USUAL, "name": f"job{number}", **job} for number, job in enumerate(jobs)]
    several = jobs_from(entries, machine)
    return ready_jobs(machine, several, places, steps, SharedParts())


def whole_ends(jobs: Sequence[Ready], *, as_flows: bool) -> list[int]:
    """Return the end of each job in one schedule of all ranks [ps].

    ``as_flows``: whether a call is a flow, instead of all its messages.
    """
    both = together([each.program for each in jobs])
    written = expand(both, lower(both), jobs[0].cluster, as_flows=as_flows)
    trace = project(simulate_calls(written.schedule, written.routines), written)
    ends, first = [], 0
    for each in jobs:
        stages = range(first, first + len(each.program.streams))
        rows = np.flatnonzero(np.isin(both.stage, stages))
        spans = zip(both.offset[rows, OWN].tolist(), both.length[rows].tolist(), strict=True)
        ends.append(max(int(trace.times.end_ps[at : at + ops].max()) for at, ops in spans))
        first = stages.stop
    return ends


def shared_ends(jobs: Sequence[Ready], engine: str = "fast") -> list[int]:
    """Return the end of each job as ``share`` simulates them [ps]."""
    ran = Meeting(jobs, Patterns()).run(range(len(jobs)), engine)
    return [int(ends[-1]) for ends in ran.ends_ps]


def drawn_pairs(machine: Cluster, count: int, seed: int = 0) -> Iterator[list[Ready]]:
    """Yield pairs of jobs that fill a machine, on chips in a row or, every other pair, on any."""
    rng = np.random.default_rng(seed)
    every = np.arange(machine.chips)
    for number in range(count):
        chips = int(rng.integers(machine.chips // 4, machine.chips // 2 + 1))
        row = np.roll(every, int(rng.integers(machine.chips)))
        places = [np.sort((rng.permutation(every) if number % 2 else row)[:chips])]
        if machine.domains > 1:  # half of each server, so that both use all switches
            half = rng.permuted(every.reshape(-1, machine.chips_per_server), axis=1)
            places = [np.sort(half[:, : machine.chips_per_server // 2].ravel())]
        places.append(np.setdiff1d(every, places[0]))
        jobs = []
        for place in places:
            degrees = [tp for tp in (1, 2, 4) if len(place) % tp == 0]
            tp = int(rng.choice(degrees))
            dp = len(place) // tp
            jobs.append({"tp": tp, "dp": dp, "global_batch": dp * int(rng.choice([1, 2, 4]))})
        yield ready(machine, jobs, places, steps=1)


def errors(machine: Cluster, count: int) -> tuple[list[float], float, list[float]]:
    """Return the share of the cost that is found, pair by pair and in all, and errors of steps."""
    shares, errors_of_steps, simulated_ps, true_ps = [], list[float](), 0, 0
    for jobs in progress(list(drawn_pairs(machine, count)), machine.name, quiet=False):
        beside, messages = shared_ends(jobs), whole_ends(jobs, as_flows=False)
        alone = [shared_ends([each])[0] for each in jobs]
        messages_alone = [whole_ends([each], as_flows=False)[0] for each in jobs]
        cost = sum(messages) - sum(messages_alone)
        if cost < LEAST_COST * sum(messages_alone):
            continue
        shares.append((sum(beside) - sum(alone)) / cost)
        simulated_ps, true_ps = simulated_ps + sum(beside) - sum(alone), true_ps + cost
        # Each step relative to alone: what the levels say of a job alone is not sharing's error.
        slower = np.array(beside) / alone
        errors_of_steps += (slower / (np.array(messages) / messages_alone) - 1).tolist()
    return shares, simulated_ps / max(true_ps, 1), errors_of_steps


def main() -> None:
    """Print the errors on each machine."""
    machines = [thin_cluster(), cluster("trn2.48xlarge"), cluster("trn2-ultraserver")]
    for machine in machines:
        shares, in_all, of_steps = errors(machine, PAIRS)
        low, middle, high = np.percentile(shares, (10, 50, 90))
        least, most = np.percentile(of_steps, (5, 95))
        sys.stdout.write(
            f"{machine.name}: {len(shares)} of {PAIRS} pairs; {in_all:.0%} of the cost in all, "
            f"pairs 10/50/90 %: {low:.0%} {middle:.0%} {high:.0%}; nine in ten steps "
            f"{least:+.1%} to {most:+.1%}\n"
        )


if __name__ == "__main__":
    main()
