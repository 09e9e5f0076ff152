"""A training iteration: from model, plan and cluster to a trace and what it is made of."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy.typing as npt
import pandas as pd

from cluster_sim.trace.trace import Trace
from topologies.catalogue.catalogue import Catalogue, catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.flops import all_attention_flops, forward_flops, training_flops
from workloads.models.model import Model
from workloads.training.execution.faults import Fault, affected_ranks
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.levels import automatic, ready
from workloads.training.execution.rank_vector import Progress, RankVector
from workloads.training.layers.shapes import RankShapes
from workloads.training.memory.memory import Memory, check_memory, worst
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan, check_model, check_ranks
from workloads.training.program.breakdown import breakdown, hidden_and_exposed, mean_s, overlapped_s
from workloads.training.program.fold import fold
from workloads.training.program.program import Program, program
from workloads.training.program.provenance import provenance


@dataclass(frozen=True, eq=False)
class Iteration:
    """One simulated optimizer step.

    Attributes
    ----------
    model, plan, cluster
        What was asked for.
    program : Program
        As it was run, folded or not.
    trace : Trace or RankVector
        A trace at the collective level; at the rank-vector level the sums over all ranks.
    memory : Memory
        Of the rank that needs most.
    build_s, simulate_s : float
        Wall-clock time of building the schedule and of running it [s].
    peak_flops_per_s : float
        Headline of a chip in the plan's precision: what MFU divides by.
    iterations : int
        Optimizer steps that were run in a row; results are of one, in the mean.
    undisturbed : Trace or None
        The same run without its faults.
    level : {"chunk", "collective", "rank-vector"}
        Level of detail at which it was run.
    ops : int
        Of the run; a trace of chunks is told on fewer.
    """

    model: Model
    plan: ParallelPlan
    cluster: Cluster
    program: Program
    trace: Trace | RankVector
    memory: Memory
    build_s: float = field(compare=False)
    simulate_s: float = field(compare=False)
    peak_flops_per_s: float
    iterations: int = 1
    undisturbed: Trace | None = None
    level: str = "collective"
    ops: int = 0

    @property
    def iteration_s(self) -> float:
        """Length of the iteration [s]."""
        return self.trace.total_s / self.iterations

    @property
    def chips(self) -> int:
        """Chips that the plan uses."""
        return -(-self.plan.ranks // self.plan.ranks_per_chip)

    @property
    def folded(self) -> bool:
        """Whether equal ranks were run once and counted."""
        return len(self.program) < self.plan.ranks

    @property
    def shares_memory(self) -> bool:
        """Whether what overlapped was slowed where it asked too much of a memory."""
        return self.level == "collective" and self.program.memory_bytes_per_s > 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on a second, all chips together."""
        return self.plan.tokens / self.iteration_s

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model FLOPs, causal and without recomputation, a second and chip."""
        needed = training_flops(self.model, self.plan.seq, self.plan.tokens)
        return needed / self.iteration_s / self.chips

    @property
    def mfu(self) -> float:
        """Model FLOPs over the headline peak."""
        return self.model_flops_per_s_per_chip / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """The same with what is computed again."""
        again = recomputed_flops(self.model, self.plan)
        more = again * self.plan.tokens / self.iteration_s / self.chips
        return self.mfu + more / self.peak_flops_per_s

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """Time of each rank by category, as the module ``program.breakdown`` defines them."""
        if isinstance(self.trace, RankVector):
            return self.trace.ranks
        return breakdown(self.trace, self.undisturbed, self._parts)

    @cached_property
    def _parts(self) -> pd.DataFrame | None:
        """What both the breakdown and the overlap are made of, found once for a trace."""
        return hidden_and_exposed(self.trace) if isinstance(self.trace, Trace) else None

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Mean over all ranks by category [s]."""
        return {part: total / self.iterations for part, total in mean_s(self.ranks).items()}

    @property
    def overlapped_s(self) -> float:
        """Communication hidden behind compute, mean over all ranks [s]."""
        if isinstance(self.trace, RankVector):
            return self.trace.overlapped_s / self.iterations
        return overlapped_s(self.trace, self._parts) / self.iterations

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where each kind of input comes from, the worst of its parts."""
        return provenance(self.program, _numbers(self.cluster), self.cluster.chip)


def iteration(
    model: Model,
    cluster: Cluster,
    plan: ParallelPlan,
    *,
    chips: npt.ArrayLike | None = None,
    engine: str = "fast",
    folded: bool = True,
    allow_oversized: bool = False,
    partial: bool = False,
    iterations: int = 1,
    faults: Sequence[Fault] = (),
    disturbed: Disturbance | None = None,
    level: str = "auto",
    progress: Progress | None = None,
) -> Iteration:
    """Simulate one optimizer step.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    plan : ParallelPlan
    chips : int array, optional
        Rank order: the chip of rank 0, 1, …; ascending by default.
    engine : {"fast", "reference"}
    folded : bool
        Run equal ranks once. The times are the same either way.
    allow_oversized : bool
        Run a plan that does not fit in memory.
    partial : bool
        Allow a plan that leaves chips of the cluster idle.
    iterations : int
        Optimizer steps in a row, which overlap where the plan lets them.
    faults : sequence of Fault
        Resources that slow down or die; the ranks that they strike are not folded.
    disturbed : Disturbance, optional
        Jitter and stragglers; every rank is then run.
    level : {"auto", "chunk", "collective", "rank-vector"}
        ``auto`` takes the rank vector when more than 1,024 different ranks are run and no
        fault strikes, else whole collectives; ``chunk`` writes these out, for all ranks.
    progress : function of (str, int, int), optional
        Told how far a rank-vector run is.

    Raises
    ------
    InputError
        For a plan that does not divide the model, does not have the cluster's ranks, or does not
        fit in memory.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=4, pp=2, dp=2, global_batch=8, seq=2048)
    >>> step = iteration(named("llama-3.1-8b"), cluster("trn2.48xlarge"), plan)
    >>> abs(sum(step.breakdown_s.values()) - step.iteration_s) < 1e-9
    True
    """
    parts = _numbers(cluster)
    peak = _peak(parts, cluster.chip, plan.precision)
    needed = _checked(model, cluster, plan, partial=partial, oversized=allow_oversized)
    begun = time.perf_counter()
    shapes = RankShapes(model, plan, cluster.chip, parts)
    made = program(shapes, place(plan, cluster, chips), iterations)
    if folded and not disturbed and level != "chunk":
        made = fold(made, affected_ranks(made, faults))
    level = automatic(made, faults) if level == "auto" else level
    what = ready(made, cluster, level, faults, disturbed)
    built = time.perf_counter()
    trace, undisturbed = what.run(engine, progress)
    ran = time.perf_counter()
    return Iteration(
        model,
        plan,
        cluster,
        made,
        trace,
        needed,
        built - begun,
        ran - built,
        peak_flops_per_s=peak,
        iterations=iterations,
        undisturbed=undisturbed,
        level=level,
        ops=what.ops(trace),
    )


def _checked(
    model: Model, cluster: Cluster, plan: ParallelPlan, *, partial: bool, oversized: bool
) -> Memory:
    """Refuse a plan that does not suit model and cluster; the memory that it needs."""
    check_model(plan, model)
    if not partial or plan.ranks > cluster.chips * plan.ranks_per_chip:
        check_ranks(plan, cluster.chips)
    needed = worst(model, plan, _numbers(cluster), cluster.chip)
    if not oversized:
        check_memory(needed, plan)
    return needed


def _numbers(cluster: Cluster) -> Catalogue:
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    return cluster.catalogue or catalogue()


def _peak(parts: Catalogue, chip: str, precision: str) -> float:
    """Headline of a chip in a precision [FLOP/s]."""
    if not parts.has(chip, f"{precision}_peak"):
        raise InputError(f"{chip} has no matrix products in {precision}. Use --precision bf16.")
    return parts.value(chip, f"{precision}_peak")


def recomputed_flops(model: Model, plan: ParallelPlan) -> float:
    """What is computed again in the backward pass, one token.

    The fused kernel's own recomputation of scores is part of the kernel, not of the plan.
    """
    if plan.recompute == "full":
        layers = forward_flops(model, plan.seq) - 2 * model.vocab * model.hidden
        return layers * -(-model.layers // plan.recompute_every) / model.layers
    if plan.recompute == "selective" and plan.attention == "unfused":
        return all_attention_flops(model, plan.seq)
    return 0.0
