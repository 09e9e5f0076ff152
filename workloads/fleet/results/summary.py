"""Summary of a run: chip-hours that add up, SLO attainment, training, energy, cost, regret."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from workloads.economics import Economics
from workloads.fleet.inputs.jobs import STEP_TOKENS
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.results.timeline import (
    attainment,
    change_w,
    power_w,
    role_server_ms,
    role_units,
    service_minutes,
    worst_window,
)
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.ledger import GROUPS, MS, ROLES, Role

HOUR_MS = 3600 * MS


def batch_document(run: FleetRun, economics: Economics) -> dict[str, Any] | None:
    """Return the account of the batch tier by its keys in the command line's JSON.

    Requests and tokens are exact integers, with ``arrived = served + waiting + late``. Waits last
    from a request's arrival to its answer, by the minute. None for a run without a batch tier.
    """
    queue = run.batch
    if queue is None:
        return None
    # Requests leave in order of arrival: in each minute those from begins to between were served,
    # those from between to ends expired.
    ends = np.cumsum(queue.served + queue.late)
    begins = ends - queue.served - queue.late
    between = begins + queue.served
    before, middle, after = (queue.tokens_before(each) for each in (begins, between, ends))
    served, late = int((middle - before).sum()), int((after - middle).sum())
    arrived = int(queue.tokens.sum())
    minutes = np.arange(len(queue.served)) - queue.arrived_minute((begins + between) / 2)
    price = economics.usd_per_million_tokens * (1 - economics.batch_discount)
    return {
        "deadline_s": queue.deadline_minutes * 60.0,
        "arrived_requests": int(queue.arrivals.sum()),
        "served_requests": int(queue.served.sum()),
        "waiting_requests": int(queue.waiting[-1]),
        "late_requests": int(queue.late.sum()),
        "arrived_tokens": arrived,
        "served_tokens": served,
        "waiting_tokens": arrived - served - late,
        "late_tokens": late,
        "wait_s": _quantiles(minutes * 60.0, queue.served),
        "chip_hours": float(role_server_ms(run)[-1, Role.BATCH]) * run.chips_per_server / HOUR_MS,
        "revenue_usd": served / 1e6 * price if price else None,
    }


def _quantiles(waits_s: Any, served: Any) -> dict[str, float | None]:
    """Median, 99th percentile and largest of waits, each weighted by the requests served."""
    order = np.argsort(waits_s)
    counts = np.cumsum(served[order])
    if not counts[-1]:
        return {"p50": None, "p99": None, "max": None}
    rows = [int(np.searchsorted(counts, share * counts[-1])) for share in (0.5, 0.99, 1.0)]
    values = [float(waits_s[order][row]) for row in rows]
    return dict(zip(("p50", "p99", "max"), values, strict=True))


def summary(run: FleetRun, economics: Economics, prices: Prices | None = None) -> dict[str, Any]:
    """Headline numbers of a run, by their keys in the command line's JSON.

    The five ``…_chip_hours`` of the groups sum to ``chip_hours``. All offered tokens were served,
    wait at the end, or were shed. For prices of tokens and steps, the chip-hours of moving, idle
    and broken units are divided between inference and training in proportion.
    """
    batch = batch_document(run, economics)
    results = {
        **_sizes(run),
        **_chip_hours(run),
        **_service(run),
        **_training(run),
        **_changes(run),
        **_power(run, economics, prices),
        **({} if batch is None else {"batch": batch}),
    }
    return {**results, **_money(results, economics)}


def chip_hours(run: FleetRun) -> dict[str, float]:
    """Chip-hours by role."""
    total = role_server_ms(run)[-1]
    return {
        role: float(total[number]) * run.chips_per_server / HOUR_MS
        for number, role in enumerate(ROLES)
    }


def jobs_frame(run: FleetRun) -> pd.DataFrame:
    """Return the progress, stops and goodput of the training jobs, one row a job."""
    rows = [
        {
            "job": job.name,
            "tokens": tally.tokens if job.rated else None,
            "steps": tally.tokens / job.step_tokens if job.rated else None,
            "lost_tokens": tally.lost_tokens if job.rated else None,
            "goodput": tally.useful_unit_ms / tally.held_unit_ms if tally.held_unit_ms else 0.0,
            "chip_hours": tally.held_unit_ms * run.chips_per_unit / HOUR_MS,
            "starts": tally.starts,
            "resizes": tally.resizes,
            "reclaims": tally.reclaims,
            "failures": tally.failures,
            "finished_h": finished_s / 3600.0,
            "deadline_h": job.deadline_s / 3600.0,
            "in_time": finished_s <= job.deadline_s if math.isfinite(job.deadline_s) else None,
        }
        for (job, tally), finished_s in zip(run.jobs, run.finished_s, strict=True)
    ]
    return pd.DataFrame(rows)


def changes_frame(run: FleetRun) -> pd.DataFrame:
    """Return the ordered role changes, one row a cohort; ``latency_s`` is NaN while under way."""
    rows = [
        {
            "ordered_s": change.ordered_ms / MS,
            "units": change.units,
            "from": change.source,
            "to": change.target,
            "latency_s": (change.ready_ms - change.ordered_ms) / MS
            if change.ready_ms >= 0
            else np.nan,
            "arrived": change.arrived,
        }
        for change in run.changes
    ]
    return pd.DataFrame(rows, columns=["ordered_s", "units", "from", "to", "latency_s", "arrived"])


def service_moves(run: FleetRun) -> int:
    """Number of moves of units between services that share weights; they cost nothing.

    In each minute the whole units of a pool are divided among its services by their share of the
    work, the largest remainders first; a unit that gets another service than before has moved.
    """
    moves = 0
    for pool in run.pools:
        if len(pool.services) > 1:
            units = run.service_units[:, list(pool.services)]
            whole = np.floor(units)
            rest = np.rint(units.sum(axis=1) - whole.sum(axis=1)).astype(np.int64)
            order = np.argsort(np.argsort(whole - units, axis=1, kind="stable"), axis=1)
            divided = whole + (order < rest[:, None])
            moves += int(np.maximum(np.diff(divided, axis=0), 0.0).sum())
    return moves


def weight_changes(run: FleetRun) -> int:
    """Number of units that went from serving one pool's weights straight to another's."""
    names = {pool.name for pool in run.pools}
    return sum(
        change.units
        for change in run.changes
        if change.source == "serving" and change.target in names
    )


def regret(
    policy: Mapping[str, Any], oracle: Mapping[str, Any], static: Mapping[str, Any]
) -> dict[str, float]:
    """Compare a policy with foresight under the same costs, and with a split that never changes.

    Each argument is the :func:`summary` of a run. ``captured`` is the policy's gain in training
    chip-hours over the static split, as a share of the gain that foresight has.
    """
    gain = policy["training_chip_hours"] - static["training_chip_hours"]
    best = oracle["training_chip_hours"] - static["training_chip_hours"]
    return {
        "regret_training_chip_hours": oracle["training_chip_hours"] - policy["training_chip_hours"],
        "gain_over_static_chip_hours": gain,
        "captured": gain / best if best else 0.0,
        "slo_attainment_oracle": oracle["slo_attainment"],
        "slo_attainment_static": static["slo_attainment"],
    }


def _sizes(run: FleetRun) -> dict[str, Any]:
    chips = run.units * run.chips_per_unit
    return {
        "chips": chips,
        "units": run.units,
        "minutes": run.minutes,
        "chip_hours": chips * run.minutes / 60.0,
    }


def _chip_hours(run: FleetRun) -> dict[str, Any]:
    total = role_server_ms(run)[-1]
    groups: dict[str, Any] = {}
    # The chip-hours of every group are rounded to a multiple of the last binary place of the total,
    # as the difference of two running sums. So the floats add up to the total without an error, in
    # any order.
    place = Fraction(math.ulp(run.units * run.chips_per_unit * run.minutes / 60.0))
    chip_ms, before = 0, 0
    for name, roles in GROUPS.items():
        chip_ms += sum(int(total[role]) for role in roles) * run.chips_per_server
        after = round(Fraction(chip_ms, HOUR_MS) / place)
        groups[f"{name}_chip_hours"] = float((after - before) * place)
        before = after
    return {**groups, "chip_hours_by_role": chip_hours(run)}


def _service(run: FleetRun) -> dict[str, Any]:
    each = [service_minutes(run, number) for number in range(len(run.services))]
    kept = attainment(each)
    offered = sum(int(minutes.offered_requests.sum()) for minutes in each)
    good = sum(float((minutes.offered_requests * minutes.attainment).sum()) for minutes in each)
    waits = np.concatenate([minutes.wait_s for minutes in each])
    tokens = {
        f"{kind}_tokens": sum(int(getattr(minutes, f"{kind}_tokens").sum()) for minutes in each)
        for kind in ("offered", "served", "shed")
    }
    return {
        "slo_attainment": good / offered if offered else 1.0,
        "slo_attainment_worst_15min": worst_window(run.queues, kept),
        "slo_attainment_by_service": {
            minutes.name: _weighted(minutes.attainment, minutes.offered_requests)
            for minutes in each
        },
        **tokens,
        "queued_tokens": sum(int(minutes.queued_tokens[-1]) for minutes in each),
        "served_output_tokens": sum(int(minutes.output_tokens.sum()) for minutes in each),
        "longest_wait_s": float(waits.max(initial=0.0)),
    }


def _weighted(values: Any, weights: Any) -> float:
    """Weighted mean; 1 where all weights are zero."""
    return float((values * weights).sum() / weights.sum()) if weights.sum() else 1.0


def _training(run: FleetRun) -> dict[str, Any]:
    """Goodput, tokens, deadlines and restarts of training; None where no throughput is known."""
    held = sum(tally.held_unit_ms for _, tally in run.jobs)
    useful = sum(tally.useful_unit_ms for _, tally in run.jobs)
    evaluated_s = int(role_server_ms(run)[-1, Role.EVALUATION]) / (MS * run.servers)
    job = run.evaluation
    rated = all(job.rated for job, _ in run.jobs)
    tokens = sum(tally.tokens for _, tally in run.jobs)
    return {
        "training_goodput": useful / held if held else None,
        "training_tokens": tokens if rated else None,
        "training_step_tokens": STEP_TOKENS,
        "training_steps": tokens / STEP_TOKENS if rated else None,
        "lost_training_tokens": (
            sum(tally.lost_tokens for _, tally in run.jobs) if rated else None
        ),
        "jobs_with_deadline": sum(math.isfinite(job.deadline_s) for job, _ in run.jobs),
        "jobs_in_time": sum(
            math.isfinite(job.deadline_s) and done <= job.deadline_s
            for (job, _), done in zip(run.jobs, run.finished_s, strict=True)
        ),
        "training_restarts": sum(tally.starts for _, tally in run.jobs),
        "evaluation_tokens": evaluated_s * job.rate(1) if job and job.rated else None,
    }


def _changes(run: FleetRun) -> dict[str, Any]:
    frame = changes_frame(run)
    back = frame[(frame["to"] != "lent") & frame["latency_s"].notna()]
    latency = np.repeat(back["latency_s"].to_numpy(float), back["units"].to_numpy(np.int64))
    quantiles = {
        f"p{level}": float(np.quantile(latency, level / 100)) if len(latency) else None
        for level in (50, 90, 99)
    }
    return {
        "role_changes": int(frame["units"].sum()),
        "role_change_orders": len(frame),
        "service_moves": service_moves(run),
        "weight_changes": weight_changes(run),
        "reclaim_latency_s": {
            **quantiles,
            "max": float(latency.max()) if len(latency) else None,
            "n": len(latency),
        },
        "failures": run.failures,
        "failures_by_domain": run.failures_by_domain,
        "store_bytes": run.loaded_bytes,
    }


def _power(run: FleetRun, economics: Economics, prices: Prices | None) -> dict[str, Any]:
    draw = power_w(run, economics)
    energy = float(draw.sum() * 60.0)
    return {
        "energy_joules": energy,
        "power_mean_w": float(draw.mean()),
        "power_peak_w": float(draw.max()),
        "power_ramp_15min_w": float(np.abs(change_w(draw)).max()),
        "carbon_kg": energy * economics.carbon_kg_per_j or None,
        "electricity_usd": None if prices is None else prices.cost_usd(draw),
        "training_usd_per_mwh": None if prices is None else _paid_by_training(run, prices),
        "held_minutes": 0 if prices is None else int(prices.dear.sum()),
    }


def _paid_by_training(run: FleetRun, prices: Prices) -> float | None:
    """Mean price of electricity, weighted by the units that train or evaluate [USD/MWh]."""
    trains = role_units(run)[:, [Role.TRAINING, Role.EVALUATION]].sum(axis=1)
    return float(trains @ prices.usd_per_mwh / trains.sum()) if trains.any() else None


def _money(results: Mapping[str, Any], economics: Economics) -> dict[str, Any]:
    cost = results["chip_hours"] * 3600.0 * economics.usd_per_chip_s
    served, trained = results["inference_chip_hours"], results["training_chip_hours"]
    share = served / (served + trained) if served + trained else 0.0
    tokens, steps = results["served_tokens"], results["training_steps"]
    has_cost = cost > 0
    trained_tokens, electricity = results["training_tokens"], results["electricity_usd"] or 0.0
    revenue = tokens / 1e6 * economics.usd_per_million_tokens
    if "batch" in results:
        tokens += results["batch"]["served_tokens"]
        revenue += results["batch"]["revenue_usd"] or 0.0
    return {
        "cost_usd": cost if has_cost else None,
        "cost_with_electricity_usd": cost + electricity if has_cost or electricity else None,
        "revenue_usd": revenue or None,
        "margin_usd": revenue - cost - electricity if revenue and has_cost else None,
        "usd_per_million_trained_tokens": (
            cost * (1 - share) / trained_tokens * 1e6 if has_cost and trained_tokens else None
        ),
        "usd_per_million_tokens": cost * share / tokens * 1e6 if has_cost and tokens else None,
        "usd_per_training_step": cost * (1 - share) / steps if has_cost and steps else None,
    }
