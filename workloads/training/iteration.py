"""A training iteration: from model, plan and cluster to a trace and its breakdown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies import display
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.economics import StepCost, step_cost
from workloads.kernels.precision import TRAINING, check_precision
from workloads.models.flops import all_attention_flops, forward_flops
from workloads.models.model import Model
from workloads.training.detail import Detail, DetailFields
from workloads.training.execution.levels import (
    LARGEST_ENGINE_RANKS,
    WRITTEN_OUT,
    Ready,
    automatic,
    ready,
)
from workloads.training.execution.rank_vector import Progress, RankVector
from workloads.training.execution.size import check_size, estimated_size
from workloads.training.layers.adapters import trained_flops
from workloads.training.layers.shapes import RankShapes
from workloads.training.memory.memory import Memory, check_memory, worst
from workloads.training.plan.checks import check_model, check_ranks, check_runtime
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.breakdown import (
    RankTimes,
    breakdown,
    hidden_and_exposed,
    overlapped_s,
)
from workloads.training.program.expert_exchange import routing_mistake
from workloads.training.program.fold import affected_ranks, fold
from workloads.training.program.program import Program, program
from workloads.training.program.provenance import provenance
from workloads.training.program.shared_parts import SharedParts

if TYPE_CHECKING:
    import pandas as pd

    from cluster_sim.analysis.category_times import CategoryTimes
    from workloads.confidence import Interval


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
        Memory of the rank that needs most.
    build_s, simulate_s : float
        Wall-clock time of building the schedule and of running it [s].
    peak_flops_per_s : float
        Headline of a chip in the plan's precision: what MFU divides by.
    iterations : int
        Optimizer steps that were run in a row; results are of one, in the mean.
    undisturbed : Trace or None
        The same run without its faults.
    level : {"chunk", "flow", "collective", "rank-vector"}
        Level of detail at which it was run.
    ops : int
        Ops of the run; a trace of chunks has fewer.
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
    def time_s(self) -> float:
        """Length of the iteration [s]."""
        return self.iteration_s

    @property
    def _facts(self) -> dict[str, object]:
        parts = {name: f"{seconds:.4g} s" for name, seconds in self.breakdown_s.items() if seconds}
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "time": f"{self.iteration_s:.4g} s",
            "MFU": f"{self.mfu:.1%}",
            "tokens/s": f"{self.tokens_per_s:,.0f}",
            **parts,
        }

    def __repr__(self) -> str:
        return display.line("Iteration", self._facts)

    def _repr_html_(self) -> str:
        return display.table("Training step", self._facts)

    @property
    def interval(self) -> Interval:
        """Interval that should hold 80 % of measured times of such a step [s]."""
        from workloads.confidence.answers import training_interval

        return training_interval(self.model, self.plan, self.cluster.chip, self.iteration_s)

    @property
    def chips(self) -> int:
        """Chips that the plan uses."""
        return -(-self.plan.ranks // self.plan.ranks_per_chip)

    @property
    def folded(self) -> bool:
        """Return whether equal ranks were run once and counted."""
        return len(self.program) < self.plan.ranks

    @property
    def shares_memory(self) -> bool:
        """Return whether ops that overlapped were slowed where they asked too much of a memory."""
        return self.level == "collective" and self.program.memory_bytes_per_s > 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on a second, all chips together."""
        return self.plan.tokens / self.iteration_s

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model FLOPs, causal and without recomputation, a second and chip."""
        needed = trained_flops(self.model, self.plan)
        return needed / self.iteration_s / self.chips

    @property
    def mfu(self) -> float:
        """Model FLOPs over the headline peak."""
        return self.model_flops_per_s_per_chip / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Model FLOPs and recomputed FLOPs over the headline peak."""
        again = recomputed_flops(self.model, self.plan)
        more = again * self.plan.tokens / self.iteration_s / self.chips
        return self.mfu + more / self.peak_flops_per_s

    @property
    def ranks(self) -> pd.DataFrame:
        """Time of each rank by category, as the module ``program.breakdown`` defines them."""
        return self._rank_times.frame()

    @cached_property
    def _rank_times(self) -> RankTimes:
        if isinstance(self.trace, RankVector):
            return self.trace.ranks
        return breakdown(self.trace, self.undisturbed, self._times)

    @cached_property
    def _times(self) -> CategoryTimes | None:
        """Times that breakdown and overlap are made of, computed once for a trace."""
        return hidden_and_exposed(self.trace) if isinstance(self.trace, Trace) else None

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Mean over all ranks by category [s]."""
        return {part: total / self.iterations for part, total in self._rank_times.mean_s().items()}

    @property
    def undisturbed_s(self) -> float | None:
        """Length of the iteration without its jitter, stragglers and faults [s]; None if none."""
        if isinstance(self.trace, RankVector):
            usual_ps = self.trace.undisturbed_ps
            return None if usual_ps is None else usual_ps / PS_PER_S / self.iterations
        return None if self.undisturbed is None else self.undisturbed.total_s / self.iterations

    @property
    def cost(self) -> StepCost:
        """Price and energy of the step, from the catalogue's rows of the machine."""
        return step_cost(self.cluster, self.chips, self.plan.tokens, self.breakdown_s)

    @property
    def overlapped_s(self) -> float:
        """Communication hidden behind compute, mean over all ranks [s]."""
        if isinstance(self.trace, RankVector):
            return self.trace.overlapped_s / self.iterations
        return overlapped_s(self.trace, self._times) / self.iterations

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """Provenance of each kind of input, the worst of its parts."""
        return provenance(self.program, _numbers(self.cluster), self.cluster.chip)


def iteration(
    model: Model,
    cluster: Cluster,
    plan: ParallelPlan,
    detail: Detail | None = None,
    *,
    progress: Progress | None = None,
    shared: SharedParts | None = None,
    **changes: Unpack[DetailFields],
) -> Iteration:
    """Simulate one optimizer step.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    plan : ParallelPlan
    detail : Detail, optional
        Level of detail of the step, and what disturbs it.
    progress : function of (str, int, int), optional
        Told how far a rank-vector run is.
    shared : SharedParts, optional
        Parts of programs that several steps on this cluster have in common.
    **changes
        Fields of the detail, such as ``level="chunk"`` or ``folded=False``.

    Raises
    ------
    InputError
        For a plan that does not suit model, cluster or memory, a run that this process has no room
        for, and faults at a level that has no such resource.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=4, pp=2, dp=2, global_batch=8, seq=2048)
    >>> step = iteration(named("llama-3.1-8b"), cluster("trn2.48xlarge"), plan)
    >>> abs(sum(step.breakdown_s.values()) - step.iteration_s) < 1e-9
    True
    """
    how = replace(detail or Detail(), **changes)
    shapes = RankShapes(model, plan, cluster.chip, _numbers(cluster))
    needed = _checked(shapes, cluster, how)
    begun = time.perf_counter()
    level, built_program, run = _built(shapes, cluster, how, shared)
    built = time.perf_counter()
    trace, undisturbed = run.run(how.engine, progress)
    step = Iteration(
        *(model, plan, cluster, built_program, trace, needed),
        built - begun,
        time.perf_counter() - built,
        peak_flops_per_s=_peak(shapes.catalogue, cluster.chip, plan.precision),
        iterations=how.iterations,
        undisturbed=undisturbed,
        level=level,
        ops=run.ops(trace),
    )
    _check_plausible(step)
    return step


def _built(
    shapes: RankShapes, cluster: Cluster, how: Detail, shared: SharedParts | None
) -> tuple[str, Program, Ready]:
    """Return the chosen level, the program (folded where possible), and its part that is run."""
    whole = program(shapes, place(shapes.plan, cluster, how.chips), how.iterations, shared)
    if how.folded and not how.disturbed and how.level not in WRITTEN_OUT:
        whole = fold(whole, affected_ranks(whole, how.faults))
    level = automatic(whole, how.faults) if how.level == "auto" else how.level
    run = ready(whole, cluster, level, how.faults, how.disturbed, engine=how.engine)
    return level, whole, run


def _check_plausible(step: Iteration) -> None:
    """Refuse a result that no chip can reach, as wrong values of a chip give.

    A share of the peak above 1 is the same as a step shorter than its arithmetic at the peak.
    """
    for name, share in (("MFU", step.mfu), ("HFU", step.hfu)):
        if not 0 < share <= 1:
            raise InputError(
                f"{name} is {share:.3g}, but no step is shorter than its arithmetic at the peak of "
                f"{step.cluster.chip}, {step.peak_flops_per_s:.3g} FLOP/s. Correct that chip's "
                f"{step.plan.precision}_peak and {step.plan.precision}_matmul."
            )


def _checked(shapes: RankShapes, cluster: Cluster, how: Detail) -> Memory:
    """Refuse a plan that does not suit model, cluster or process; returns a rank's memory."""
    model, plan = shapes.model, shapes.plan
    _peak(shapes.catalogue, shapes.chip, plan.precision)
    check_model(plan, model)
    check_runtime(plan, cluster)
    if not how.partial or plan.ranks > cluster.chips * plan.ranks_per_chip:
        check_ranks(plan, cluster.chips)
    if plan.routed_nodes:
        _check_routed(plan, cluster, how)
    _check_room(shapes, how)
    needed = worst(model, plan, shapes.catalogue, cluster.chip)
    if not how.allow_oversized:
        check_memory(needed, plan)
    return needed


def _check_routed(plan: ParallelPlan, cluster: Cluster, how: Detail) -> None:
    """Refuse tokens that are sent once to each server where no exchange works that way."""
    if how.level in WRITTEN_OUT:
        raise InputError(
            f"--level {how.level} writes out a copy for each expert of a token, not routed nodes "
            f"{plan.routed_nodes}. Use --level collective."
        )
    chips = None if how.chips is None else np.asarray(how.chips, np.int64)
    mistake = routing_mistake(plan, cluster, chips)
    if mistake:
        raise InputError(mistake)


def _check_room(shapes: RankShapes, how: Detail) -> None:
    """Refuse a run of more ops than this process has room for."""
    ranks = shapes.plan.ranks
    every = not how.folded or bool(how.disturbed) or how.level in WRITTEN_OUT
    level = how.level
    if level == "auto":
        level = "rank-vector" if every and ranks > LARGEST_ENGINE_RANKS else "collective"
        level = "collective" if how.faults else level
    size = estimated_size(shapes, how.iterations, every_rank=every)
    check_size(size, level, how.engine, ranks)


def _numbers(cluster: Cluster) -> Catalogue:
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    return cluster.catalogue or shipped_catalogue()


def _peak(catalogue: Catalogue, chip: str, precision: str) -> float:
    """Headline of a chip in a precision [FLOP/s]."""
    check_precision(precision, chip, catalogue, TRAINING, "train")
    return catalogue.value(chip, f"{precision}_peak")


def recomputed_flops(model: Model, plan: ParallelPlan) -> float:
    """Recomputed FLOPs of the backward pass for one token.

    The fused kernel's own recomputation of scores is part of the kernel, not of the plan.
    """
    if plan.recompute == "full":
        layers = forward_flops(model, plan.seq) - 2 * model.vocab * model.hidden
        return layers * -(-model.layers // plan.recompute_every) / model.layers
    if plan.recompute == "selective" and plan.attention == "unfused":
        return all_attention_flops(model, plan.seq)
    return 0.0
