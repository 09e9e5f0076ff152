"""A training iteration: folded, every rank by the engine and as a vector, and half a million ranks.

Seconds and ratios of one run: how much faster the rank vector is than the engine on all ranks, what
jitter adds, what folding saves. Times are compared, so that nothing fast is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.reports.training import peak_rss_bytes

if TYPE_CHECKING:
    from workloads.training.execution.rank_vector import RankVector
    from workloads.training.program.program import Program

JITTER = 0.01
SEED = 1


def main() -> None:
    """Print the demo's plan on 1,024 chips, then plans for all of Rainier."""
    first_use()
    demo()
    for pp in (9, 14):
        rainier(pp)


def first_use() -> None:
    """Compile, or load what is kept on disk."""
    begun = time.perf_counter()
    small = training_program("trn2-ultraserver:16", pp=2, global_batch=16, overlap="all")
    noisy(small)
    by_engine(small)
    print(f"{'first use, compiled or loaded':>42}: {time.perf_counter() - begun:6.2f} s")


def demo() -> None:
    """All ways to run the demo's plan, which have to agree."""
    asked = {"pp": 2, "global_batch": 256, "overlap": "all"}
    name = "1,024 chips"
    step = training_program("trn2-ultraserver:16", **asked)
    folded, folded_s = measured(
        f"{name}, built, folded, engine",
        lambda: by_folding(training_program("trn2-ultraserver:16", **asked)),
    )
    calm, calm_s = measured(f"{name}, rank vector", lambda: vector(step))
    _, noisy_s = measured(f"{name}, rank vector, jitter {JITTER}", lambda: noisy(step))
    whole, whole_s = measured(f"{name}, all ranks, engine", lambda: by_engine(step))
    _, told_s = measured(f"{name}, where their time goes", lambda: told(whole))
    print(f"{'same time each way':>42}: {folded.total_ps == calm.total_ps == whole.total_ps}")
    ratio("the rank vector is faster than the engine by", whole_s, calm_s)
    ratio("to tell where time goes is faster by", whole_s, told_s)
    ratio("jitter takes longer by", noisy_s, calm_s)
    ratio("folding is faster than the engine on all by", whole_s, folded_s)


def rainier(pp: int) -> None:
    """Rainier folded, building included, and every rank with jitter."""
    begun = time.perf_counter()
    step = training_program("rainier", pp=pp, overlap="dp")
    built_s = time.perf_counter() - begun
    name = f"{len(step):,} chips, pp {pp}"
    folded, run_s = measured(f"{name}, folded, engine", partial(by_folding, step))
    print(f"{'with building':>42}: {built_s + run_s:6.2f} s")
    disturbed, noisy_s = measured(f"{name}, jitter {JITTER}", partial(noisy, step))
    longer = disturbed.total_ps / folded.total_ps
    print(f"{'jitter makes the iteration longer by':>42}: {longer:.4f} x")
    ratio("all ranks with jitter take longer by", noisy_s, built_s + run_s)


def training_program(cluster: str, **asked: Any) -> Program:
    """Program of a step of Llama 3.1 405B with 32 ranks of tensor parallelism."""
    from topologies.catalogue.catalogue import shipped_catalogue
    from topologies.clusters.names import cluster as machine
    from workloads.models.huggingface import named
    from workloads.training.layers.shapes import RankShapes
    from workloads.training.plan.placement import place
    from workloads.training.plan.plan_file import complete
    from workloads.training.program.program import program

    model, fabric = named("llama-3.1-405b"), machine(cluster)
    plan = complete({"tp": 32, "seq": 8192, **asked}, model, fabric)
    shapes = RankShapes(model, plan, fabric.chip, fabric.catalogue or shipped_catalogue())
    return program(shapes, place(plan, fabric))


def by_engine(program: Program) -> Any:
    """Run all rows of a program by the compiled engine."""
    from cluster_sim.trace.trace import run
    from workloads.training.execution.lower import lower

    return run(lower(program))


def by_folding(program: Program) -> Any:
    """Run one of each kind of equal ranks by the compiled engine."""
    from workloads.training.program.fold import fold

    return by_engine(fold(program))


def told(trace: Any) -> Any:
    """Give every picosecond of every rank to a category, and return the trace."""
    from workloads.training.program.breakdown import hidden_and_exposed

    hidden_and_exposed(trace)
    return trace


def vector(program: Program) -> RankVector:
    """Evaluate all ranks, undisturbed."""
    from workloads.training.execution.rank_vector import evaluate

    return evaluate(program)


def noisy(program: Program) -> RankVector:
    """Evaluate all ranks with jitter."""
    from workloads.training.execution.jitter import Disturbance
    from workloads.training.execution.rank_vector import evaluate

    return evaluate(program, Disturbance(JITTER, SEED))


def measured(name: str, work: Callable[[], Any]) -> tuple[Any, float]:
    """Print how long some work takes; return its result and that time [s].

    The time of all cores together tells how much of it was waiting, as on a busy machine.
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
    return result, took


def ratio(name: str, longer_s: float, shorter_s: float) -> None:
    """Print one time over another."""
    print(f"{name:>42}: {longer_s / shorter_s:6.2f} x", flush=True)


if __name__ == "__main__":
    main()
