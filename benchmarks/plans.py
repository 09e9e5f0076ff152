"""Speed of estimating plans: many plans together, some of them alone, and some simulated in full.

Plans that are estimated together share their parts. The process keeps the times of collectives, so
all collectives run once before anything is timed. Estimates together and alone must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.search.candidates import candidates
from workloads.search.estimate import estimate
from workloads.search.fit import fit
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import SharedParts

Answer = TypeVar("Answer")

ALONE, SIMULATED = 40, 4
"""Numbers of plans that are estimated alone and that are simulated, spread evenly over all."""


def main() -> None:
    """Print the rates and ratios of two searches, and of repeated steps."""
    searched("llama-3.1-8b", "trn2.48xlarge", 64)
    searched("llama-3.1-405b", "trn2-ultraserver:16", 256)
    stepped("llama-3.1-405b", "rainier")


def searched(model: str, machines: str, batch: int) -> None:
    """List, estimate and simulate plans of one model, and print the processor time of each."""
    shape, where = named(model), cluster(machines)
    print(f"{model} on {machines}, global batch {batch}")
    listed, listed_s = measured(lambda: candidates(shape, where, batch))
    fits, weighed_s = measured(lambda: fit(listed).fits)
    plans = [listed.plans[row] for row in np.flatnonzero(fits).tolist()]
    show_rate(len(listed), "listed and weighed", listed_s + weighed_s)
    first, first_s = measured(lambda: estimate(shape, where, plans))
    show_rate(len(plans), "estimated, with runs of collectives", first_s)
    together, together_s = measured(lambda: estimate(shape, where, plans))
    each_s = show_rate(len(plans), "estimated together", together_s)
    rows = np.linspace(0, len(plans) - 1, min(ALONE, len(plans))).astype(int).tolist()
    alone, alone_s = measured(lambda: [estimate(shape, where, [plans[row]])[0] for row in rows])
    alone_each_s = show_rate(len(rows), "estimated alone", alone_s)
    few = rows[:: max(1, len(rows) // SIMULATED)]
    _, ran_s = measured(lambda: [iteration(shape, where, plans[row]) for row in few])
    ran_each_s = show_rate(len(few), "simulated", ran_s)
    same = together[rows].tolist() == alone and first.tolist() == together.tolist()
    print(f"{'same estimates each way':>42}: {same}")
    print(f"{'together is faster than alone by':>42}: {alone_each_s / each_s:.1f} x")
    print(f"{'an estimate is faster than a run by':>42}: {ran_each_s / each_s:.1f} x", flush=True)


def stepped(model: str, machines: str) -> None:
    """Simulate steps of half a million ranks with parts kept from an earlier step, and without."""
    shape, where = named(model), cluster(machines)
    plan = ParallelPlan(
        tp=64, cp=2, dp=126, pp=31, vpp=3, schedule="interleaved", global_batch=2016, seq=8192
    )
    shared = SharedParts()
    first = iteration(shape, where, plan, shared=shared)
    again, again_s = measured(lambda: iteration(shape, where, plan, shared=shared))
    alone, alone_s = measured(lambda: iteration(shape, where, plan))
    same = again.iteration_s == alone.iteration_s == first.iteration_s
    print(f"{model} on {machines}, {plan.ranks:,} ranks, same times: {same}")
    print(f"{'known costs make a step faster by':>42}: {alone_s / again_s:.1f} x", flush=True)


def measured(work: Callable[[], Answer]) -> tuple[Answer, float]:
    """Do some work, and return its answer and its processor time [s]."""
    begun = time.process_time()
    answer = work()
    return answer, time.process_time() - begun


def show_rate(plans: int, what: str, seconds: float) -> float:
    """Print the processor time of some plans, and return the time of each [s]."""
    print(f"{what:>42}: {plans:,} plans in {seconds:.2f} s, {plans / seconds:,.0f} a second")
    return seconds / plans


if __name__ == "__main__":
    main()
