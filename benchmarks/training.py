"""A training iteration: folded, all ranks by the engine, all as a vector, and half a million."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.training_report import peak_rss_bytes

if TYPE_CHECKING:
    from workloads.training.program import Program

JITTER = 0.01


def main() -> None:
    """Print seconds, ops a second and the most memory held so far of each way to evaluate."""
    from workloads.training.fold import fold
    from workloads.training.jitter import Disturbance
    from workloads.training.rank_vector import evaluate

    noisy = Disturbance(JITTER, seed=1)
    evaluate(made("trn2-ultraserver:16", pp=2, global_batch=16, overlap="all"), noisy)
    demo = made("trn2-ultraserver:16", pp=2, global_batch=256, overlap="all")
    folded = measured("1,024 chips, folded, engine", lambda: by_engine(fold(demo)))
    calm = measured("1,024 chips, rank vector", lambda: evaluate(demo))
    measured(f"1,024 chips, rank vector, jitter {JITTER}", lambda: evaluate(demo, noisy))
    whole = measured("1,024 chips, all ranks, engine", lambda: by_engine(demo))
    print(f"equal times: {folded.total_ps == calm.total_ps == whole.total_ps}")
    for pp in (9, 14):
        rainier = made("rainier", pp=pp, overlap="dp")
        name = f"{len(rainier):,} chips, pp {pp}"
        measured(f"{name}, folded", partial(lambda p: by_engine(fold(p)), rainier))
        measured(f"{name}, jitter {JITTER}", partial(evaluate, rainier, noisy))


def made(cluster: str, **asked: Any) -> Program:
    """Program of a step of Llama 3.1 405B with 32 ranks of tensor parallelism."""
    from topologies.catalogue import catalogue
    from topologies.machines import cluster as machine
    from workloads.huggingface import named
    from workloads.training.placement import place
    from workloads.training.plan_options import complete
    from workloads.training.program import program
    from workloads.training.shapes import Shapes

    model, fabric = named("llama-3.1-405b"), machine(cluster)
    plan = complete({"tp": 32, "seq": 8192, **asked}, model, fabric)
    shapes = Shapes(model, plan, fabric.chip, fabric.catalogue or catalogue())
    return program(shapes, place(plan, fabric))


def by_engine(program: Program) -> Any:
    """Run a program by the compiled engine."""
    from cluster_sim.trace import run
    from workloads.training.lower import lower

    return run(lower(program))


def measured(name: str, work: Callable[[], Any]) -> Any:
    """Print how long some work takes, and return its result."""
    begun = time.perf_counter()
    found = work()
    took = time.perf_counter() - begun
    print(
        f"{name:>44}: {took:6.2f} s, {len(found) / 1e6:8.1f} M ops, "
        f"{len(found) / took / 1e6:6.1f} M ops/s, {peak_rss_bytes() / 1e9:.2f} GB so far",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
