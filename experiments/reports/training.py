"""Output of a training step: a JSON document, tables for people, and a run directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.trace.trace import Trace
from experiments.figures.training import NAMES, one_step
from experiments.reports.formatting import format_interval, idle_entry, value_text, values_of
from experiments.reports.plan_rows import memory_document
from topologies.support.memory_limit import peak_rss_bytes
from topologies.support.units import PS_PER_S, format_bytes, format_memory, format_seconds
from workloads.confidence.interval import Interval
from workloads.confidence.sensitivity import Uncertain
from workloads.economics import StepCost
from workloads.remarks import assumed_document, assumed_sentences, remarks_entry
from workloads.training.detail import APART
from workloads.training.explain import input_table, memory_in_use, step_table
from workloads.training.iteration import Iteration
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    import pandas as pd

    from experiments.reports.run_directory import Run

LEAST_NOTED = 0.001
"""Share of a step that a kind of collective must lose to a fault to be named beside others."""
LARGEST_TRACE_OPS = 5_000_000  # most ops for which the trace is written


def document(run: Iteration, engine: str) -> dict[str, Any]:
    """Return all results under the keys of the command line."""
    plan, memory = run.plan, run.memory
    return {
        "model": run.model.name,
        "cluster": run.joined.name,
        "plan": stated(plan),
        **assumed_document(run),
        "ranks": plan.ranks,
        "chips": run.chips,
        "parameters": run.model.parameters,
        **({"prediction_heads": heads} if (heads := run.model.prediction_heads) else {}),
        **({"left_out": list(run.model.left_out)} if run.model.left_out else {}),
        **idle_entry(run.without_effect),
        **remarks_entry(run),
        "iteration_s": run.iteration_s,
        "interval": interval_document(
            run.interval, run.cost, tokens_per_s=run.tokens_per_s, mfu=run.mfu, hfu=run.hfu
        ),
        "tokens": plan.tokens,
        "tokens_per_s": run.tokens_per_s,
        "tokens_per_s_per_chip": run.tokens_per_s / run.chips,
        **values_of(run, "model_flops_per_s_per_chip", "mfu", "hfu"),
        "memory_bytes": memory_document(memory),
        "memory_range_bytes": values_of(memory, "least", "most"),
        **values_of(memory, "fits", "tight"),
        **values_of(run, "breakdown_s", "overlapped_s"),
        **_disturbed(run),
        **_unlike(run),
        **run.cost.document(),
        **values_of(run, "level", "folded"),
        "simulated_ranks": len(run.program),
        "engine": engine,
        **values_of(run, "shares_memory", "ops", "build_s", "simulate_s"),
        "peak_rss_bytes": peak_rss_bytes(),
        "provenance": dict(run.provenance),
    }


def _disturbed(run: Iteration) -> dict[str, Any]:
    """Time of the undisturbed step, and the change by disturbances; empty without any."""
    undisturbed_s = run.undisturbed_s
    if undisturbed_s is None:
        return {}
    change_s = run.iteration_s - undisturbed_s
    struck = [each._asdict() for each in run.crossed.struck] if run.crossed else []
    slowed = {"slowed_collectives": struck} if struck else {}
    drawn = run.uneven.document() if run.uneven else {}
    return {"undisturbed_s": undisturbed_s, "disturbance_change_s": change_s, **drawn, **slowed}


def _unlike(run: Iteration) -> dict[str, Any]:
    """Stages on unlike chips, and other ways to run the step; empty on one cluster."""
    unlike = run.unlike
    if unlike is None:
        return {}
    return {
        "stages": stage_table(run),
        "idle_chips": sum(unlike.idle_chips),
        "beside": [each._asdict() for each in unlike.beside],
        "slowest_network_s": unlike.slowest_network_s,
    }


def stage_table(run: Iteration) -> list[dict[str, Any]]:
    """Return a row a stage: its cluster, layers, and the time of a step by category [s]."""
    plan, counts = run.plan, run.plan.stage_layers
    chunks = [
        [plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp)]
        for stage in range(plan.pp)
    ]
    return [
        {
            "stage": stage,
            "cluster": run.joined.of_stage(stage).name,
            "layers": sum(counts[chunk] for chunk in held),
            "breakdown_s": run.parts_of_stages(range(stage, stage + 1)),
        }
        for stage, held in enumerate(chunks)
    ]


STAGE_HEADINGS = ["stages", "on", "layers", "busy", "exposed", "bubble"]
"""Headings of the table of stages on unlike chips."""


def stage_rows(run: Iteration) -> list[tuple[str, ...]]:
    """Return stages of one cluster and as many layers together, mean over them, for people."""
    rows = []
    by = itemgetter("cluster", "layers")
    for (cluster, layers), group in groupby(stage_table(run), key=by):
        held = [row["stage"] for row in group]
        parts = run.parts_of_stages(range(held[0], held[-1] + 1))
        exposed = sum(seconds for name, seconds in parts.items() if name.startswith("exposed"))
        waits = parts["bubble"] + parts["straggler"]
        busy = sum(parts.values()) - exposed - waits
        numbers = f"{held[0]} – {held[-1]}" if len(held) > 1 else str(held[0])
        times = (format_seconds(seconds) for seconds in (busy, exposed, waits))
        rows.append((numbers, cluster, str(layers), *times))
    return rows


def beside_rows(run: Iteration) -> list[tuple[str, ...]]:
    """Return the other ways to run a step on unlike chips, for people."""
    by_speed = ("layers by speed", f"{run.chips:,}", format_seconds(run.iteration_s), "1.000")
    others = [
        (name, f"{chips:,}", format_seconds(seconds), f"{seconds / run.iteration_s:.3f}")
        if seconds is not None
        else (name, f"{chips:,}", reason, "–")
        for name, seconds, chips, reason in run.unlike.beside
    ]
    return [by_speed, *others]


def network_note(run: Iteration) -> str:
    """Return what is assumed between the clusters, and what it may cost."""
    unlike = run.unlike
    idle = [
        f"{count:,} chips of {cluster.name} have no stage."
        for count, cluster in zip(unlike.idle_chips, run.joined.clusters, strict=True)
        if count
    ]
    longer = unlike.slowest_network_s / run.iteration_s - 1
    network = (
        "Between the clusters the slower side's adapters are assumed to set the rate; over a "
        f"network with 1/{unlike.oversubscription:g} of it the step takes {longer:.1%} longer."
    )
    return " ".join([network, *idle])


def slowed_note(run: Iteration) -> str:
    """Return what the times of several kinds of collectives that cross a fault leave out."""
    least_s = LEAST_NOTED * run.iteration_s
    axes = {
        each.axis
        for each in (run.crossed.struck if run.crossed else ())
        if each.calls * (each.time_s - each.usual_s) > least_s
    }
    if len(axes) < 2 or run.plan.overlap == "none" or covers(run.cluster):
        return ""
    return (
        "Collectives of several kinds cross the fault and may overlap there. --level chunk lets "
        "them wait for each other, which moved steps by up to a third."
    )


def slowed_rows(run: Iteration) -> list[tuple[str, ...]]:
    """Collectives that cross a faulty link or adapter, for people: whose, how long, how often."""
    return [
        (
            f"{each.axis} {each.collective} of {format_bytes(each.size_bytes)}",
            f"{each.groups:,} of {each.of_groups:,}",
            f"{each.calls:,}",
            format_seconds(each.usual_s),
            format_seconds(each.time_s),
        )
        for each in (run.crossed.struck if run.crossed else ())
    ]


def interval_document(ends: Interval, cost: StepCost, **rates: float) -> dict[str, Any]:
    """Interval of the time of a step, with those of its rates, price and energy."""
    prices = {"cost_usd": cost.cost_usd, "usd_per_million_tokens": cost.usd_per_million_tokens}
    document = ends.document(rates=rates, **prices, energy_joules=cost.energy_joules)
    price = Uncertain(*cost.price_ends)
    priced = {name: usd for name, usd in prices.items() if usd is not None}
    return document | {name: price.times(usd, document[name]) for name, usd in priced.items()}


def stated(plan: ParallelPlan) -> dict[str, Any]:
    """All fields of a plan, defaults included, and the ZeRO stage in effect within the step."""
    return {**asdict(plan), "order": "-".join(plan.order), "sharding": plan.sharding}


def headline(run: Iteration) -> str:
    """Model, cluster and plan in one line."""
    plan = run.plan
    unit = "chip" if run.chips == 1 else "chips"
    batches = "microbatch" if plan.microbatches == 1 else "microbatches"
    return (
        f"{run.model.name} ({run.model.parameters / 1e9:,.1f} G parameters) on {run.joined.name}, "
        f"{run.chips:,} {unit}: {degrees(plan)}, {plan.microbatches} {batches} of "
        f"{plan.microbatch} × {plan.seq:,} tokens{packed(plan)}"
    )


def degrees(plan: ParallelPlan) -> str:
    """Return the degrees of a plan, those of some kinds where they are no 1.

    >>> degrees(ParallelPlan(dp=256, cp=2, global_batch=256))
    'tp 1, pp 1, dp 256, cp 2'
    """
    more = [f"{name} {size}" for name in ("cp", "ep", "vpp") if (size := getattr(plan, name)) > 1]
    return ", ".join([f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp}", *more])


def packed(plan: ParallelPlan) -> str:
    """Return how a batch's sequences are filled, where several samples share one."""
    return f" packed from samples of {plan.sample_tokens:,}" if plan.context < plan.seq else ""


def results(run: Iteration) -> list[tuple[str, str]]:
    """Names and texts of the results, for people."""
    memory = run.memory
    kept = (
        f"{format_memory(memory.total)} of {format_memory(memory.capacity)} a rank "
        f"({format_memory(memory.least)} – {format_memory(memory.most)} by training stack)"
    )
    parts = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in memory.parts().items())
    ends, precision = run.interval, run.plan.precision
    peak = "" if precision == "bf16" else f" of {precision}'s peak"
    mfu, rate = (ends.scaled(number, rate=True) for number in (run.mfu, run.tokens_per_s))
    return [
        ("iteration", f"{format_seconds(run.iteration_s)} {format_interval(ends)}"),
        (
            "tokens a second",
            f"{run.tokens_per_s:,.0f} (80 %: {rate['low']:,.0f} – {rate['high']:,.0f}), "
            f"a chip {run.tokens_per_s / run.chips:,.1f}",
        ),
        ("model FLOP/s a chip", f"{run.model_flops_per_s_per_chip / 1e12:,.1f} T"),
        (
            f"MFU, HFU{peak}",
            f"{run.mfu:.1%} (80 %: {mfu['low']:.1%} – {mfu['high']:.1%}), {run.hfu:.1%}",
        ),
        ("memory", kept),
        ("  in GB", parts),
        ("hidden communication", format_seconds(run.overlapped_s)),
        *_disturbance(run),
        *_costs(run),
        ("simulated", folding(run)),
        ("took", f"{run.build_s:.2f} s to build, {run.simulate_s:.2f} s to run"),
    ]


def _disturbance(run: Iteration) -> list[tuple[str, str]]:
    usual = run.undisturbed_s
    if usual is None:
        return []
    longer = run.iteration_s - usual
    change = f"{format_seconds(abs(longer))} {'longer' if longer >= 0 else 'shorter'}"
    waited = format_seconds(run.breakdown_s["straggler"])
    more = f"{change} than {format_seconds(usual)} undisturbed"
    rows = [("disturbance", f"{more}; a rank waits {waited} for it on average")]
    uneven = run.uneven
    if uneven is None:
        return rows
    times = ", ".join(f"p{q} {format_seconds(uneven.quantile_s(q))}" for q in (50, 90, 99))
    late, steps = uneven.straggler, len(uneven.steps_s)
    what = "collectives" if late.cause == "network" else "kernels"
    without = format_seconds(uneven.without_straggler_s)
    often = f"slowest in {late.share_of_steps:.0%} of steps; " if steps > 1 else ""
    waits = (
        f"rank {late.rank:,}, {what} {late.slower:.1%} longer, most by {late.cause}; {often}"
        f"without it {without}"
    )
    drawn = [(f"{steps:,} drawn steps", times)] if steps > 1 else []
    return [*rows, *drawn, ("straggler", waits)]


def _costs(run: Iteration) -> list[tuple[str, str]]:
    """Rows of the price and energy of the step, if the catalogue has the numbers for them."""
    cost = run.cost
    rows = []
    if cost.cost_usd is not None:
        usd = interval_document(run.interval, cost)["usd_per_million_tokens"]
        price = (
            f"{cost.cost_usd:,.4g} USD a step, {cost.usd_per_million_tokens:,.3g} USD a million "
            f"tokens (80 %: {usd['low']:,.3g} – {usd['high']:,.3g})"
        )
        rows.append(("price", f"{price}; {_without_choice(cost.price_basis)}"))
    if cost.energy_joules is not None:
        drawn = f"{value_text('energy_joules', cost.energy_joules)} a step"
        rows.append(("energy", f"{drawn}; {_without_choice(cost.power_basis)}"))
    return rows


def _without_choice(basis: str) -> str:
    """Row of the catalogue without the reason for which it is the default among its variants.

    >>> _without_choice("trn2 power 48 kW (stated: 24 kW x 2. Default: the chips are 32 kW)")
    'trn2 power 48 kW (stated: 24 kW x 2)'
    """
    return re.sub(r"\. Default: (?:[^()]|\([^()]*\))*\)", ")", basis)


def folding(run: Iteration) -> str:
    """Text with the number of ranks that were simulated, and stand for all equal ones."""
    ops = f"{run.ops:,} ops"
    if run.level == "rank-vector" and run.shares_memory:
        ops += f"; memory is shared by mean durations, within {APART:.0%} of --level collective"
    if not run.folded:
        ranks = run.plan.ranks
        return f"all {ranks:,} ranks, {ops}" if ranks > 1 else f"the one rank, {ops}"
    some = len(run.program)
    return f"{some:,} of {run.plan.ranks:,} ranks, which stand for all equal ones; {ops}"


def shares(run: Iteration) -> list[tuple[str, float, float]]:
    """Return each part of the breakdown with its time [s] and share; the iteration last."""
    parts = {name: value for name, value in run.breakdown_s.items() if value}
    rows = [(NAMES[name], value, value / run.iteration_s) for name, value in parts.items()]
    return [*rows, ("iteration", run.iteration_s, 1.0)]


def write(out: Run, run: Iteration, results: Mapping[str, Any]) -> None:
    """Add results, breakdowns, figures and trace to a run directory."""
    out.table("metrics", metrics(results), title="Results", note=headline(run))
    bar = one_step(headline(run), run.breakdown_s, run.mfu, run.interval)
    out.figure("step_time_breakdown", bar, title="Step-time breakdown")
    times_s = run.ranks.filter(like="_ps").rename(columns=lambda part: f"{part[:-2]}s") / PS_PER_S
    ranks = run.ranks[["count"]].join(times_s).reset_index()
    out.table("ranks", ranks, title="Breakdown by rank", note="count: equal ranks it stands for")
    note = "Calls and times on one rank of a stage. The host issues kernels ahead of the chip, and "
    note += "hidden collectives run beside them, so that totals add up to more than the step."
    out.table("steps", step_table(run), title="Steps", note=note)
    note = " ".join(["Numbers of the catalogue used.", *assumed_sentences(run)])
    out.table("inputs", input_table(run), title="Inputs", note=note)
    out.json("results", results, title="Results")
    if isinstance(run.trace, Trace):
        _write_trace(out, run, run.trace)


def _write_trace(out: Run, run: Iteration, trace: Trace) -> None:
    from cluster_sim.plot.timeline_figure import timeline
    from experiments.reports.drawing import slices

    title, stage = f"{run.model.name} on {run.joined.name}", run.program.stage
    first = [int(run.program.rank[stage == s][0]) for s in range(run.plan.pp)]
    ranks = first[:: -(-len(first) // 8)]  # the first of each stage, for at most eight stages
    out.figure(
        "timeline",
        timeline(trace, by="rank", what="what", ranks=ranks, title=title),
        title="Timeline of one iteration",
        note=f"Simulated {folding(run)}. Each stream of a rank is a lane of its own.",
        slices=slices(trace, by="rank", what="what", ranks=ranks),
    )
    if len(trace) <= LARGEST_TRACE_OPS:
        # Microbatches of several steps have the same numbers, so their memory cannot be told apart.
        out.trace(trace, counters=memory_in_use(run, trace) if run.iterations == 1 else ())


NO_METRICS = (
    "build_s", "simulate_s", "peak_rss_bytes", "searched", "remarks", "stages", "beside",
)  # fmt: skip
"""Keys of a document that are of one run of the program, or no numbers."""


def metrics(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return a document of nested numbers as rows of ``metric`` and ``value``."""
    import pandas as pd

    rows: list[tuple[str, Any]] = []
    for key, value in results.items():
        if key in NO_METRICS:
            continue
        if isinstance(value, Mapping):
            rows += [(f"{key}.{inner}", item) for inner, item in value.items()]
        else:
            rows.append((key, value))
    return pd.DataFrame(rows, columns=["metric", "value"], dtype=object)
