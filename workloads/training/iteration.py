"""Simulation of a training iteration: from model, plan and cluster to a trace and its breakdown."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.analysis.stretches import CategoryTimes
from cluster_sim.hardware.faults import spelled_out
from cluster_sim.schedule.table import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.support import display
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from workloads.confidence.interval import Interval
from workloads.economics import StepCost, step_cost, sum_of_costs
from workloads.kernels.chip_share import worst
from workloads.models.model import (
    Model,
    all_attention_flops,
    forward_flops,
    mixer_size,
    output_flops,
)
from workloads.training.detail import (
    WRITTEN_OUT,
    Detail,
    Ready,
    automatic,
    check_plausible,
    check_step,
    chip_catalogue,
    counts_equal_ranks,
    peak_flops_per_s,
    ready,
)
from workloads.training.execution.jitter import (
    Chips,
    Disturbance,
    Uneven,
    slowest_alone,
    with_slower_network,
)
from workloads.training.execution.links import folded_flows
from workloads.training.execution.rank_vector import Progress, RankVector
from workloads.training.execution.struck_groups import Crossed, composed, of_messages
from workloads.training.frameworks.framework import DATE, Framework, framework_of
from workloads.training.layers.adapters import layers_run_again, trained_flops
from workloads.training.layers.feed_forward import fed_again
from workloads.training.layers.layer import PREDICTED, ends_early
from workloads.training.layers.steps import RankShapes, keeps_projections
from workloads.training.memory.memory import Memory
from workloads.training.plan.placement import Joined, place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import idle_fields
from workloads.training.program.breakdown import (
    RankTimes,
    breakdown,
    hidden_and_exposed,
    overlapped_s,
)
from workloads.training.program.fold import affected_ranks, equal_ranks, fold, keep
from workloads.training.program.groups import SharedParts
from workloads.training.program.program import Program, program
from workloads.training.usual_plan import Alternative, Choice, alternatives, hull, training_interval

if TYPE_CHECKING:
    import pandas as pd


COMPOSES = ("auto", "collective")
"""Levels at which collectives are timed one by one, with the faults that they cross."""

SHARING = ("collective", "rank-vector")
"""Levels at which kernels and collectives share memory, the second by mean durations."""


@display.by_facts("Training step")
@dataclass(frozen=True, eq=False)
class Iteration:
    """One simulated optimizer step.

    Attributes
    ----------
    model : Model
    plan : ParallelPlan
    joined : Joined
        Clusters that have the stages, with the numbers of the framework; most often one.
    stated : Joined
        The same clusters without them, as a user states them.
    program : Program
        Program that was run, folded or not.
    trace : Trace or RankVector
        Start and end of every op; at the rank-vector level only the sums over all ranks.
    memory : Memory
        Memory of the rank that needs most.
    build_s, simulate_s : float
        Wall-clock time of building the schedule and of running it [s].
    peak_flops_per_s : float
        Headline rate of a chip in the plan's precision, by which MFU divides.
    iterations : int
        Optimizer steps that were run in a row; all results are the mean of one step.
    undisturbed : Trace or None
        Trace of the same program without disturbances and faults; None for a run that had none. At
        the collective level equal ranks are run once there.
    level : {"chunk", "flow", "collective", "rank-vector"}
        Level of detail at which it was run.
    ops : int
        Ops that were simulated. A trace at the chunk level has fewer: it joins the chunks of each
        collective.
    like : int64 array (rows,) or None
        Row of the undisturbed run that each row of the program equals; None where it is that of the
        same number.
    crossed : Crossed or None
        Collectives that cross faulty links and adapters and are timed with them; None where no such
        fault is stated, and at levels that write messages out.
    choice : Choice or None
        Search for the plan where no degree of parallelism was stated; None if there was none.
    uneven : Uneven or None
        Times of steps on uneven chips, of which this is the median; None where no cause was named.
    unlike : object or None
        The step beside equal layers and each cluster alone; None for a step on one cluster.
    tell : function of (Iteration), or None
        Finds the ``remarks``, which need the search for plans; None where nobody reads them.
    """

    model: Model
    plan: ParallelPlan
    joined: Joined
    stated: Joined
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
    like: IntArray | None = None
    crossed: Crossed | None = None
    choice: Choice | None = field(default=None, compare=False, repr=False)
    uneven: Uneven | None = field(default=None, compare=False, repr=False)
    unlike: Any = field(default=None, compare=False, repr=False)
    tell: Callable[[Iteration], list[str]] | None = field(default=None, compare=False, repr=False)

    @property
    def cluster(self) -> Cluster:
        """Cluster of the first stage, with the numbers of the framework."""
        return self.joined.clusters[0]

    @property
    def without_effect(self) -> dict[str, str]:
        """Stated fields of the plan and faults that change nothing, with the reason."""
        idle = idle_fields(self.plan, self.model)
        if self.cluster.catalogue and self.cluster.catalogue.integer("training", "selective_keeps"):
            idle.pop("recompute", None)  # selective would leave out more than what fused kernels do
        chosen = self.choice
        stated = chosen.stated if chosen and chosen.default_ratio is None else idle
        faults = self.crossed.idle if self.crossed else {}
        within = self.uneven and "network" in self.uneven.causes and self.cluster.domains == 1
        stack = self.framework
        dated = re.search(f"[:,]{DATE}", self.plan.framework) and not stack.releases
        return {
            **{name: reason for name, reason in idle.items() if name in stated},
            **({"date": f"releases of {stack.name} are not told apart"} if dated else {}),
            **({"jitter network": "all collectives stay in one scale-up domain"} if within else {}),
            **{f"fault {name}": reason for name, reason in faults.items()},
        }

    @property
    def iteration_s(self) -> float:
        """Duration of one optimizer step [s]."""
        return self.trace.total_s / self.iterations

    @property
    def time_s(self) -> float:
        """Duration of one optimizer step [s], under the name that all results have."""
        return self.iteration_s

    @property
    def _facts(self) -> dict[str, object]:
        parts = {name: f"{seconds:.4g} s" for name, seconds in self.breakdown_s.items() if seconds}
        return {
            "model": self.model.name,
            "cluster": self.joined.name,
            "time": f"{self.iteration_s:.4g} s",
            "MFU": f"{self.mfu:.1%}",
            "tokens/s": f"{self.tokens_per_s:,.0f}",
            **parts,
        }

    @property
    def interval(self) -> Interval:
        """Interval that should hold 80 % of measured times of such a step [s]."""
        left_open, share = hull(self.alternatives), max(self.mfu, self.hfu)
        first, *others = (
            training_interval(self.model, self.plan, each, self.iteration_s, left_open, share)
            for each in self.joined.clusters
        )
        for other in others:  # what is less sure of two kinds of chips decides
            low, high = min(first.low, other.low), max(first.high, other.high)
            wider = max(first, other, key=lambda ends: ends.high / ends.low)
            first = replace(wider, low=low, high=high)
        return first

    @cached_property
    def remarks(self) -> list[str]:
        """Sentences to read before believing the answer, as the command prints them."""
        return self.tell(self) if self.tell else []

    @property
    def framework(self) -> Framework:
        """Training stack that ran the plan, stated or assumed."""
        return framework_of(self.plan, self.cluster)

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Plausible values of the fields of the plan that nobody stated, with their times."""
        how = Detail(
            trace=False,
            partial=True,
            allow_oversized=True,
            iterations=self.iterations,
            joined=self.stated,
        )
        cluster, shared = self.stated.clusters[0], SharedParts()

        def seconds(plan: ParallelPlan) -> float:
            return iteration(self.model, cluster, plan, how, shared=shared).iteration_s

        return alternatives(self.plan, self.model, cluster, seconds)

    @property
    def chips(self) -> int:
        """Chips that the plan uses."""
        return -(-self.plan.ranks // self.plan.ranks_per_chip)

    @property
    def folded(self) -> bool:
        """Return whether ranks that do the same were simulated once and counted."""
        return len(self.program) < self.plan.ranks

    @property
    def shares_memory(self) -> bool:
        """Return whether kernels and collectives that overlap slow each other in memory."""
        return self.level in SHARING and bool(self.program.memory_bytes_per_s.any())

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens a second of all chips together."""
        return self.plan.tokens / self.iteration_s

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model FLOPs a second and chip, with causal attention and without recomputation."""
        return trained_flops(self.model, self.plan) / self.iteration_s / self.chips

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the share of the headline peak that model FLOPs reach."""
        return self.model_flops_per_s_per_chip / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: as MFU, with the recomputed FLOPs."""
        catalogue = chip_catalogue(self.cluster)
        recomputed = recomputed_flops(self.model, self.plan, catalogue) * self.plan.tokens
        return self.mfu + recomputed / self.iteration_s / self.chips / self.peak_flops_per_s

    @property
    def ranks(self) -> pd.DataFrame:
        """Time of each rank by category, as the module ``program.breakdown`` defines them."""
        return self.rank_times.frame()

    @cached_property
    def rank_times(self) -> RankTimes:
        """Times of each rank by category as arrays, of which :attr:`ranks` is the table."""
        if isinstance(self.trace, RankVector):
            return self.trace.ranks
        return breakdown(self.trace, self.undisturbed, self._times, self.like)

    @cached_property
    def _times(self) -> CategoryTimes | None:
        """Times from which breakdown and overlap follow; None for a run without a trace."""
        return hidden_and_exposed(self.trace) if isinstance(self.trace, Trace) else None

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Time of a step by category [s], mean over all ranks; the parts sum to the step."""
        return {part: total / self.iterations for part, total in self.rank_times.mean_s().items()}

    @property
    def undisturbed_s(self) -> float | None:
        """Duration of the step without jitter, stragglers and faults [s]; None if it had none."""
        if self.uneven is not None:
            return self.uneven.even_s
        if isinstance(self.trace, RankVector):
            total_ps = self.trace.undisturbed_ps
            return None if total_ps is None else total_ps / PS_PER_S / self.iterations
        return None if self.undisturbed is None else self.undisturbed.total_s / self.iterations

    @property
    def cost(self) -> StepCost:
        """Price and energy of the step, from the catalogue's rows of the machine."""
        costs, used = [], self.plan.ranks_of_chip / self.plan.ranks_per_chip
        for number, cluster in enumerate(self.joined.clusters):
            chips, stages = self.held(number)
            parts = self.parts_of_stages(stages)
            costs.append(step_cost(cluster, chips, self.plan.tokens, parts, used))
        return sum_of_costs(costs, self.plan.tokens)

    def held(self, number: int) -> tuple[int, range]:
        """Return the chips and the stages of one of the clusters."""
        stages = self.joined.held(number)
        ranks = self.plan.ranks // self.plan.pp * len(stages)
        return -(-ranks // self.plan.ranks_per_chip), stages

    def parts_of_stages(self, stages: range) -> dict[str, float]:
        """Return the time of a step by category [s], mean over the ranks of some stages."""
        times, program_rows = self.rank_times, self.program
        row = np.searchsorted(program_rows.rank, times.rank)
        kept = np.isin(program_rows.stage[row], list(stages))
        some = RankTimes(
            times.rank[kept],
            times.count[kept],
            {part: column[kept] for part, column in times.parts_ps.items()},
        )
        return {part: total / self.iterations for part, total in some.mean_s().items()}

    @property
    def overlapped_s(self) -> float:
        """Communication hidden behind compute, mean over all ranks [s]."""
        if isinstance(self.trace, RankVector):
            return self.trace.overlapped_s / self.iterations
        return overlapped_s(self.trace, self._times) / self.iterations

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """Provenance of each kind of input: the worst grade among the numbers that it used."""
        of_each = [
            provenance(self.program, chip_catalogue(each), each.chip)
            for each in self.joined.clusters
        ]
        return {kind: worst(*(grades[kind] for grades in of_each)) for kind in of_each[0]}


def iteration(
    model: Model,
    cluster: Cluster,
    plan: ParallelPlan,
    detail: Detail | None = None,
    *,
    progress: Progress | None = None,
    shared: SharedParts | None = None,
    **changes: Any,
) -> Iteration:
    """Simulate one optimizer step.

    Parameters
    ----------
    model, cluster, plan : Model, Cluster, ParallelPlan
    detail : Detail, optional
        Level of detail of the step, and what disturbs it.
    progress : function of (str, int, int), optional
        Called with how far a rank-vector run is.
    shared : SharedParts, optional
        Parts that several steps on this cluster have in common.
    **changes
        Fields of the detail, such as ``level="chunk"``.

    Raises
    ------
    InputError
        For a plan that does not suit, a run without room, and faults that a level does not have.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=4, pp=2, dp=2, global_batch=8, seq=2048)
    >>> step = iteration(named("llama-3.1-8b"), cluster("trn2.48xlarge"), plan)
    >>> abs(sum(step.breakdown_s.values()) - step.iteration_s) < 1e-9
    True
    """
    detail = replace(detail or Detail(), **changes)
    if detail.disturbed and detail.disturbed.causes:
        return _on_uneven_chips(model, cluster, plan, detail, progress, shared)
    stated, joined, of_clusters, memory = _checked(model, cluster, plan, detail)
    build_start = time.perf_counter()
    level, built_program, run, crossed = _build(of_clusters, joined, detail, shared)
    run_start = time.perf_counter()
    trace, undisturbed = run.run(detail.engine, progress)
    peaks = [peak_flops_per_s(each) for each in of_clusters]
    step = Iteration(
        *(model, plan, joined, stated, built_program, trace, memory),
        *(run_start - build_start, time.perf_counter() - run_start),
        float(np.average(peaks, weights=joined.stages)),  # mean over the chips
        iterations=detail.iterations,
        undisturbed=undisturbed,
        level=level,
        ops=run.ops(trace),
        like=run.like,
        crossed=crossed,
    )
    check_plausible({"MFU": step.mfu, "HFU": step.hfu}, of_clusters[0])
    return step


def _checked(
    model: Model, cluster: Cluster, plan: ParallelPlan, detail: Detail
) -> tuple[Joined, Joined, list[RankShapes], Memory]:
    """Return clusters as stated and on the framework, shapes on each, and the fullest rank."""
    stated = detail.joined or Joined((cluster,), (plan.pp,))
    clusters = tuple(framework_of(plan, each).on(each, model) for each in stated.clusters)
    joined = replace(stated, clusters=clusters)
    of_clusters = [RankShapes(model, plan, each.chip, chip_catalogue(each)) for each in clusters]
    needs = [check_step(each, joined, k, detail) for k, each in enumerate(of_clusters)]
    fullest = max(needs, key=lambda need: need.total / need.capacity)
    return stated, joined, of_clusters, fullest


def _on_uneven_chips(
    model: Model,
    cluster: Cluster,
    plan: ParallelPlan,
    detail: Detail,
    progress: Progress | None,
    shared: SharedParts | None,
) -> Iteration:
    """Simulate the median of the steps that causes of uneven chips draw."""
    base = detail.disturbed or Disturbance()
    if "network" in base.causes and detail.level in WRITTEN_OUT:
        raise InputError(
            f"--level {detail.level} times messages on links, so jitter network has no collectives "
            "to lengthen. Use --level collective, or name other causes."
        )
    shared, steps = shared or SharedParts(), detail.iterations
    detail = replace(detail, iterations=1, disturbed=replace(base, causes=()))
    even = iteration(model, cluster, plan, detail, progress=progress, shared=shared)
    placed, parts = place(plan, cluster, detail.chips), even.breakdown_s
    exposed_s = sum(seconds for part, seconds in parts.items() if part.startswith("exposed"))
    waits_s = exposed_s + parts["bubble"] + parts["straggler"]
    chips = Chips(
        *(placed.chip, cluster.chips_per_server, base.seed),
        *(even.iteration_s - waits_s, exposed_s if cluster.domains > 1 else 0.0),
        chip_catalogue(cluster),
    )
    drawn = chips.draw(base.causes, steps)
    every = not detail.folded or base.jitter > 0
    uneven = drawn.slower if every else slowest_alone(drawn.slower, placed.stage)
    drawn_base = replace(base, causes=(), uneven=uneven, network=drawn.network)
    step = iteration(
        *(model, cluster, plan, replace(detail, disturbed=drawn_base)),
        progress=progress,
        shared=shared,
    )
    uneven_steps = replace(drawn, even_s=even.iteration_s, median_s=step.iteration_s)
    return replace(step, uneven=uneven_steps)


def _build(
    of_clusters: Sequence[RankShapes], joined: Joined, detail: Detail, shared: SharedParts | None
) -> tuple[str, Program, Ready, Crossed | None]:
    """Return the level of the step, its program, its run, and what crosses faults."""
    shapes, *later = of_clusters
    plan, cluster = shapes.plan, joined.clusters[0]
    placed = place(plan, joined, detail.chips)
    step_program = program(shapes, placed, detail.iterations, shared, later)
    disturbed, level, engine = detail.disturbed, detail.level, detail.engine
    if disturbed and (disturbed.network or disturbed.within):
        domain, between = placed.chip // cluster.chips_per_domain, disturbed.network
        step_program = with_slower_network(step_program, domain, between, disturbed.within)
    folds = counts_equal_ranks(detail)
    if folds and level == "flow":
        few, flows = folded_flows(step_program, cluster)
        return level, few, Ready(few, None, flows), None
    crossed, others = of_messages(detail.faults) if level in COMPOSES else ((), detail.faults)
    others = spelled_out(others, cluster, plan.ranks_per_chip)
    slowed = None
    if crossed:
        slowed = composed(
            *(step_program, plan, cluster, crossed),
            per_token=shapes.model.experts.per_token if shapes.model.experts else 1,
            iterations=detail.iterations,
        )
        step_program = slowed.program
    healthy = None if slowed is None else slowed.usual
    if folds:
        apart = affected_ranks(step_program, others)
        if disturbed:
            apart = np.union1d(apart, disturbed.slow_rows(step_program.rank))
        if slowed is None:
            # The rank vector follows disturbed ranks one by one, and ``auto`` hands it what stays
            # large.
            few = fold(step_program, apart)
            large = level == "auto" and automatic(few, detail.faults) == "rank-vector"
            step_program = step_program if disturbed and large else few
        else:
            classes = equal_ranks(slowed.both, apart)
            step_program, healthy = keep(step_program, classes), keep(slowed.usual, classes)
    if level == "auto":
        untraced = not detail.trace and engine == "fast" and not disturbed
        level = automatic(step_program, detail.faults, exact_vector=untraced)
    run = ready(step_program, cluster, level, others, disturbed, engine=engine, healthy=healthy)
    return level, step_program, run, None if slowed is None else slowed.crossed


def recomputed_flops(model: Model, plan: ParallelPlan, catalogue: Catalogue) -> float:
    """Recomputed FLOPs of the backward pass for one token."""
    # Scores that the fused attention kernel computes again are part of that kernel's time whatever
    # the plan says, so they are not counted.
    projections_kept = keeps_projections(plan, catalogue)
    merged = catalogue.integer("training", "merged_with_adapters")
    if layers_run_again(plan, merged) or projections_kept:
        layers = forward_flops(model, plan.context) - output_flops(model)
        if ends_early(model, plan, catalogue):
            layers -= 2 * model.hidden * model.dense_columns
        if projections_kept:
            kinds = [(model.each_layer.count(kind), model.of_kind(kind)) for kind in model.kinds]
            return layers - 2 * sum(count * mixer_size(each).weights for count, each in kinds)
        return layers * -(-model.layers // plan.recompute_every) / model.layers
    scores = plan.recompute == "selective" and plan.attention == "unfused"
    flops = all_attention_flops(model, plan.context) if scores else 0.0
    if fed_again(plan, catalogue.integer("training", "feed_again_tokens")):
        flops += 2 * model.hidden * model.dense_columns * (2 if model.gated_mlp else 1)
    return flops


KERNELS = {
    "gemm": (
        "attention.qkv", "attention.out", "mlp.up", "mlp.down", "output.logits", "attention.down",
        "attention.queries", "attention.groups", "attention.keys-values", "attention.gate",
        "attention.index.queries",
        "experts.up", "experts.down", "experts.latent.down", "experts.latent.up", "shared.up",
        "shared.down", "router.logits", "layer-input.gate", "layer-input.out",
        "streams.weights",
    ),
    "attention": ("attention.core", "attention.index"),
    "elementwise": (
        "attention.norm", "attention.residual", "attention.rotate", "attention.compressed.norm",
        "mlp.norm", "mlp.residual", "mlp.activation", "experts.activation", "shared.activation",
        "router.choice", "output.norm", "loss",
    ),
    "optimizer": ("norm.squares", "optimizer.step"),
}  # fmt: skip
"""Beginnings of the names of kernels of each kind; a backward kernel's name has the same one."""
AGAIN = re.compile(rf"^(again\.)?(gradient\.)?({re.escape(PREDICTED)})?")
"""Prefixes of the names of kernels that run again, or whose gradient is like the kernel itself."""
LINKS = {"measured": "measured", "derived": "extrapolated"}
"""Grade of the times of collectives by the grade of the links' efficiency; others are assumed."""


def provenance(program_kernels: Program, catalogue: Catalogue, chip: str) -> dict[str, str]:
    """Return the provenance of the times of kernels by kind, and of collectives."""
    grades = {}
    for kind, names in KERNELS.items():
        graded = [
            step.provenance
            for step in program_kernels.steps
            if step.provenance and AGAIN.sub("", step.name).startswith(names)
        ]
        grades[kind] = worst(*graded) if graded else "assumed"
    stated = catalogue.has(chip, "collective_efficiency")
    grade = catalogue.entry(chip, "collective_efficiency").grade if stated else "assumed"
    return {**grades, "collectives": LINKS.get(grade, "assumed")}
