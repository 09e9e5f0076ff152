"""Speed of a training iteration in each way that it can be simulated, up to half a million ranks.

All in one run, a folded program is compared with the engine on every rank, with the rank vector,
and with the rank vector under jitter. The simulated times of all ways must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from topologies.support.memory_limit import peak_rss_bytes

if TYPE_CHECKING:
    from workloads.training.execution.rank_vector import RankVector
    from workloads.training.program.program import Program

JITTER = 0.01
SEED = 1


def main() -> None:
    """Print the speed of the demo's plan on 1,024 chips, then of plans for all of Rainier."""
    first_use()
    demo()
    for pp in (9, 14):
        rainier(pp)


def first_use() -> None:
    """Print the time of compiling the engines, or of loading their kept machine code."""
    begun = time.process_time()
    small = training_program("trn2-ultraserver:16", pp=2, global_batch=16, overlap="all")
    noisy(small)
    by_engine(small)
    print(f"{'first use, compiled or loaded':>42}: {time.process_time() - begun:6.2f} s of cores")


def demo() -> None:
    """Print the speed of each way to run the demo's plan, all of which must agree."""
    fields = {"pp": 2, "global_batch": 256, "overlap": "all"}
    name = "1,024 chips"
    step = training_program("trn2-ultraserver:16", **fields)
    folded, folded_s = measured(
        f"{name}, built, folded, engine",
        lambda: by_folding(training_program("trn2-ultraserver:16", **fields)),
    )
    quick, vector_s = measured(f"{name}, rank vector", lambda: vector(step))
    _, noisy_s = measured(f"{name}, rank vector, jitter {JITTER}", lambda: noisy(step))
    whole, whole_s = measured(f"{name}, all ranks, engine", lambda: by_engine(step))
    _, breakdown_s = measured(f"{name}, where their time goes", lambda: broken_down(whole))
    print(f"{'same time each way':>42}: {folded.total_ps == quick.total_ps == whole.total_ps}")
    ratio("the rank vector is faster than the engine by", whole_s, vector_s)
    ratio("to tell where time goes is faster by", whole_s, breakdown_s)
    ratio("jitter takes longer by", noisy_s, vector_s)
    ratio("folding is faster than the engine on all by", whole_s, folded_s)


def rainier(pp: int) -> None:
    """Print the speed of a folded plan on Rainier with its building, and of every rank jittered."""
    begun = time.process_time()
    step = training_program("rainier", pp=pp, overlap="dp")
    built_s = time.process_time() - begun
    name = f"{len(step):,} chips, pp {pp}"
    folded, run_s = measured(f"{name}, folded, engine", partial(by_folding, step))
    print(f"{'with building':>42}: {built_s + run_s:6.2f} s of cores")
    disturbed, noisy_s = measured(f"{name}, jitter {JITTER}", partial(noisy, step))
    longer = disturbed.total_ps / folded.total_ps
    print(f"{'jitter makes the iteration longer by':>42}: {longer:.4f} x")
    ratio("all ranks with jitter take longer by", noisy_s, built_s + run_s)


def training_program(cluster: str, **fields: Any) -> Program:
    """Program of a step of Llama 3.1 405B with 32 ranks of tensor parallelism.

    ``fields`` are the other fields of the plan.
    """
    from topologies.clusters.names import cluster as machine
    from workloads.models.huggingface import named
    from workloads.training.layers.steps import RankShapes
    from workloads.training.plan.placement import place
    from workloads.training.program.program import program
    from workloads.training.usual_plan import complete

    model, fabric = named("llama-3.1-405b"), machine(cluster)
    plan = complete({"tp": 32, "seq": 8192, **fields}, model, fabric)
    shapes = RankShapes(model, plan, fabric.chip, fabric.numbers)
    return program(shapes, place(plan, fabric))


def by_engine(program: Program) -> Any:
    """Run every rank of a program by the compiled engine."""
    from cluster_sim.trace.trace import run
    from workloads.training.execution.lower import lower

    return run(lower(program))


def by_folding(program: Program) -> Any:
    """Run one rank of each set of equal ranks by the compiled engine."""
    from workloads.training.program.fold import fold

    return by_engine(fold(program))


def broken_down(trace: Any) -> Any:
    """Attribute every picosecond of every rank to a category, and return the trace."""
    from workloads.training.program.breakdown import hidden_and_exposed

    hidden_and_exposed(trace)
    return trace


def vector(program: Program) -> RankVector:
    """Evaluate all ranks as a vector, undisturbed."""
    from workloads.training.execution.rank_vector import evaluate

    return evaluate(program)


def noisy(program: Program) -> RankVector:
    """Evaluate all ranks as a vector, with jitter."""
    from workloads.training.execution.jitter import Disturbance
    from workloads.training.execution.rank_vector import evaluate

    return evaluate(program, Disturbance(JITTER, SEED))


def measured(name: str, work: Callable[[], Any]) -> tuple[Any, float]:
    """Print the time of some work, and return its result and processor time of all cores [s].

    On a busy machine wall time, which is printed too, includes waiting.
    """
    begun, before = time.perf_counter(), time.process_time()
    result = work()
    took, worked = time.perf_counter() - begun, time.process_time() - before
    print(
        f"{name:>42}: {took:6.2f} s ({worked:6.2f} s of cores), {len(result) / 1e6:8.1f} M ops, "
        f"{len(result) / worked / 1e6:6.1f} M ops/s of a core, {peak_rss_bytes() / 1e9:.2f} GB "
        "so far",
        flush=True,
    )
    return result, worked


def ratio(name: str, longer_s: float, shorter_s: float) -> None:
    """Print the ratio of two times."""
    print(f"{name:>42}: {longer_s / shorter_s:6.2f} x", flush=True)


if __name__ == "__main__":
    main()
