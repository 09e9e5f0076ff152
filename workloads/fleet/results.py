"""Results of a run: its timeline by the minute, its summary, and remarks on what it missed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from topologies.support.arrays import FloatArray, IntArray
from workloads.fleet.inputs.jobs import STEP_TOKENS
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.simulation import COMPUTING, FleetRun
from workloads.fleet.state.services import Queue, split_tokens, waits_s
from workloads.fleet.state.store import MINUTE_MS, MS
from workloads.fleet.state.world import OUT, ROLES, Role, World

GROUPS = {
    "inference": (Role.SERVING, Role.BATCH, Role.WARMING, Role.DRAINING),
    "training": (Role.TRAINING, Role.EVALUATION, Role.CHECKPOINTING),
    "moving": (Role.LOADING, Role.COMPILING),
    "idle": (Role.SPARE, Role.PAUSED),
    "broken": (Role.BROKEN, Role.MAINTENANCE),
}
"""Groups of roles; every role but that of absent units is in exactly one of them."""
CHANGE_MINUTES = 15  # minutes over which reports state changes of power and the worst attainment


def role_units(run: FleetRun) -> FloatArray:
    """Mean number of units in each role in each minute; (minutes, roles)."""
    return np.asarray(np.sum([kind_units(kind) for kind in run.kinds], axis=0))


def kind_units(kind: World) -> FloatArray:
    """Mean number of units of a kind in each role in each minute; (minutes, roles)."""
    return np.asarray(np.diff(role_server_ms(kind), axis=0) / (MINUTE_MS * kind.servers))


def role_server_ms(kind: World) -> IntArray:
    """Server-milliseconds spent until each minute begins, by role; (minutes + 1, roles)."""
    roles = kind.spent_server_ms[:, : len(Role)].copy()
    roles[:, Role.SERVING] += kind.spent_server_ms[:, len(Role) :].sum(axis=1)
    return roles


def role_chip_ms(run: FleetRun) -> IntArray:
    """Chip-milliseconds spent until each minute begins, by role; (minutes + 1, roles)."""
    parts = [role_server_ms(kind) * (kind.chips_per_unit // kind.servers) for kind in run.kinds]
    return np.asarray(np.sum(parts, axis=0))


def service_minutes(run: FleetRun, number: int) -> pd.DataFrame:
    """Return requests, tokens, latency and attainment of one service, one row a minute."""
    # Requests and tokens are integers: offered ones were served, queued (at the end of the minute)
    # or shed. Attainment counts the requests that arrive in a minute. A request that is shed misses
    # the SLO; the others keep it with the probability that the capacity table has for the minute's
    # utilisation and their wait.
    queue = run.queues[number]
    prompt = np.rint(queue.arrivals * run.demand.prompt_tokens[number]).astype(np.int64)
    output = np.rint(queue.arrivals * run.demand.output_tokens[number]).astype(np.int64)
    served, queued, shed = split_tokens(queue, prompt + output)
    before = np.concatenate([[0], queue.backlog[:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        busy = np.where(
            queue.capacity > 0, (queue.arrivals + before) / np.maximum(queue.capacity, 1), 1.0
        )
    utilisation = np.where(queue.arrivals + before > 0, np.minimum(busy, 1.0), 0.0)
    wait = waits_s(queue)
    kept, slowest_s = np.zeros(run.minutes), np.zeros(run.minutes)
    for kind, share in zip(run.kinds, kind_shares(run, number), strict=True):
        capacity = kind.services[number].capacity
        kept += share * capacity.attained(utilisation, wait + kind.round_trip_s[number])
        alone_s = capacity.ttft_quantile_s(utilisation, 0.99) + kind.round_trip_s[number]
        slowest_s = np.maximum(slowest_s, np.where(share > 0, alone_s, 0.0))
    admitted = np.where(queue.arrivals > 0, 1 - queue.shed / np.maximum(queue.arrivals, 1), 1.0)
    columns = {
        "offered_requests": queue.arrivals,
        "served_requests": queue.served,
        "queued_requests": queue.backlog,
        "shed_requests": queue.shed,
        "offered_tokens": prompt + output,
        "served_tokens": served,
        "queued_tokens": queued,
        "shed_tokens": shed,
        "output_tokens": split_tokens(queue, output)[0],
        "utilisation": utilisation,
        "wait_s": wait,
        "ttft_p99_s": slowest_s + wait,
        "attainment": kept * admitted,
    }
    return pd.DataFrame(columns)


def kind_shares(run: FleetRun, number: int) -> FloatArray:
    """Share of a service's requests that each kind of units serves; (kinds, minutes)."""
    # Requests go to units in proportion to their rates, so that all are equally busy.
    rates = np.array(
        [kind.service_units[:, number] * kind.rate_max_per_s[number] for kind in run.kinds]
    )
    total = rates.sum(axis=0)
    shares = np.divide(rates, total, out=np.zeros_like(rates), where=total > 0)
    shares[0, total <= 0] = 1.0
    result: FloatArray = shares
    return result


def power_w(run: FleetRun) -> FloatArray:
    """Draw of the site in each minute [W]."""
    return np.asarray(np.sum([_kind_w(run, kind) for kind in run.kinds], axis=0))


def _kind_w(run: FleetRun, kind: World) -> FloatArray:
    """Draw of the site for the units of a kind in each minute [W]."""
    # Units that train, evaluate or do batch work draw the busy power; units that serve lie between
    # idle and busy by their utilisation; those out of service are off; all others draw the idle
    # power.
    units, chip = kind_units(kind), kind.economics
    level = np.full(len(Role), chip.idle_w)
    level[list(COMPUTING)] = chip.busy_w
    level[list(OUT)] = 0.0
    draw = units @ level
    for number, queue in enumerate(run.queues):
        used = queue.served / np.maximum(queue.capacity, 1)
        draw += kind.service_units[:, number] * used * (chip.busy_w - chip.idle_w)
    return np.asarray(draw * kind.chips_per_unit * chip.pue)


def change_w(draw_w: FloatArray) -> FloatArray:
    """Change of power against 15 minutes before, 0 in the first ones; (minutes,) [W]."""
    change = np.zeros_like(draw_w)
    if len(draw_w) > CHANGE_MINUTES:
        change[CHANGE_MINUTES:] = draw_w[CHANGE_MINUTES:] - draw_w[:-CHANGE_MINUTES]
    return change


def attainment(minutes: list[pd.DataFrame]) -> FloatArray:
    """Share of all services' requests in each minute that keep their SLO; 1 without requests."""
    offered = np.sum([each.offered_requests for each in minutes], axis=0)
    kept = np.sum([each.offered_requests * each.attainment for each in minutes], axis=0)
    return np.asarray(np.where(offered > 0, kept / np.maximum(offered, 1), 1.0))


def timeline(run: FleetRun) -> pd.DataFrame:
    """Return a table with one row a minute."""
    # Columns: ``time_utc``; mean units by role (``serving_units`` …); ``load_units`` that the
    # demand needed; requests and tokens offered, served, queued (at the end of the minute) and
    # shed; ``utilisation``; ``ttft_p99_s`` of the slowest service; ``slo_attainment``; ``power_w``.
    # With a batch tier also its requests that arrived, were served, were late, and wait at the
    # minute's end. With several kinds also the units of each by role, and its requests served.
    each = [service_minutes(run, number) for number in range(len(run.queues))]
    columns: dict[str, object] = {"time_utc": run.demand.index}
    units = role_units(run)
    roles = ROLES if any(kind.blocks for kind in run.kinds) else ROLES[: Role.ABSENT]
    for number, role in enumerate(roles):
        columns[f"{role}_units"] = units[:, number]
    columns["load_units"] = run.load.sum(axis=0)
    if len(run.kinds) > 1:
        for place, part in enumerate(run.kinds):
            for number, role in enumerate(roles):
                columns[f"{part.name}_{role}_units"] = kind_units(part)[:, number]
            columns[f"{part.name}_served_requests"] = np.sum(
                [kind_shares(run, k)[place] * each[k].served_requests for k in range(len(each))],
                axis=0,
            )
    if len(each) > 1:
        service_units = run.service_units
        for number, name in enumerate(run.demand.services):
            columns[f"{name}_units"] = service_units[:, number]
            columns[f"{name}_slo_attainment"] = each[number].attainment
    for what in ("requests", "tokens"):
        for kind in ("offered", "served", "queued", "shed"):
            name = f"{kind}_{what}"
            columns[name] = np.sum([minutes[name] for minutes in each], axis=0)
    columns["utilisation"] = np.max([minutes.utilisation for minutes in each], axis=0)
    columns["ttft_p99_s"] = np.max([minutes.ttft_p99_s for minutes in each], axis=0)
    columns["slo_attainment"] = attainment(each)
    columns["power_w"] = power_w(run)
    if run.batch is not None:
        for kind in ("arrivals", "served", "late", "waiting"):
            columns[f"batch_{kind}_requests"] = getattr(run.batch, kind)
    return pd.DataFrame(columns)


def worst_window(queues: tuple[Queue, ...], kept: FloatArray) -> tuple[float, int]:
    """Lowest attainment of any 15 minutes, weighted by requests, and the first of these minutes."""
    offered = np.sum([queue.arrivals for queue in queues], axis=0).astype(float)
    width = min(CHANGE_MINUTES, len(kept))
    came = np.convolve(offered, np.ones(width), "valid")
    good = np.convolve(offered * kept, np.ones(width), "valid")
    shares = np.where(came > 0, good / np.maximum(came, 1e-300), 1.0)
    first = int(np.argmin(shares))
    return float(shares[first]), first


HOUR_MS = 3600 * MS


def batch_document(run: FleetRun) -> dict[str, Any] | None:
    """Return the account of the batch tier by its keys in the command line's JSON."""
    # Requests and tokens are exact integers, with ``arrived = served + waiting + late``. Waits last
    # from a request's arrival to its answer, by the minute. None for a run without a batch tier.
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
    order = np.argsort(minutes)
    counts, waited_s = np.cumsum(queue.served[order]), (minutes * 60.0)[order]
    quantiles = {
        name: float(waited_s[int(np.searchsorted(counts, share * counts[-1]))])
        if counts[-1]
        else None
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
    economics = run.kinds[0].economics
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
        "wait_s": quantiles,
        "chip_hours": float(role_chip_ms(run)[-1, Role.BATCH]) / HOUR_MS,
        "revenue_usd": served / 1e6 * price if price else None,
    }


def summary(run: FleetRun, prices: Prices | None = None) -> dict[str, Any]:
    """Headline numbers of a run, by their keys in the command line's JSON."""
    # The five ``…_chip_hours`` of the groups sum to ``chip_hours``. All offered tokens were served,
    # wait at the end, or were shed. For prices of tokens and steps, the chip-hours of moving, idle
    # and broken units are divided between inference and training in proportion.
    batch = batch_document(run)
    results = {
        **_sizes(run),
        **_chip_hours(run),
        **_service(run),
        **_training(run),
        **_changes(run),
        **_power(run, prices),
        **_over_cap(run),
        "holes": holes(run),
        "store_bytes": run.loaded_bytes,
        **({} if batch is None else {"batch": batch}),
    }
    kinds = _kinds(run, prices) if len(run.kinds) > 1 else []
    results |= _money(results, run, kinds, prices)
    rows = {"kinds": kinds, "regions": _regions(run, kinds)}
    return {**results, **{name: each for name, each in rows.items() if each}}


SUMMED = (
    "units", "chips", "chip_hours", *(f"{name}_chip_hours" for name in GROUPS), "training_tokens",
    "energy_joules", "cost_usd", "electricity_usd", "carbon_kg",
)  # fmt: skip
"""Accounts of kinds of units that a region adds up."""


def _regions(run: FleetRun, kinds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the account of each region: the requests of its users, and what its chips did."""
    names = [service.region for service in run.kinds[0].services]
    rows = []
    for region in dict.fromkeys(names) if len(set(names)) > 1 else ():
        numbers = [number for number, name in enumerate(names) if name == region]
        of_region = np.array([kind.region == region for kind in run.kinds])
        shares = [kind_shares(run, number)[of_region].sum(axis=0) for number in numbers]
        at_home = np.concatenate(shares)
        minutes = pd.concat([service_minutes(run, number) for number in numbers])
        here = [row for row, is_here in zip(kinds, of_region, strict=True) if is_here]
        rows.append(
            {
                "region": region,
                **{
                    name: int(minutes[name].sum())
                    for name in ("offered_requests", "served_requests", "shed_requests")
                },
                "queued_requests": sum(run.queues[number].waiting for number in numbers),
                "served_elsewhere_share": 1 - _weighted(at_home, minutes.served_requests),
                "slo_attainment": _weighted(minutes.attainment, minutes.offered_requests),
                **{name: _sum([row[name] for row in here]) for name in SUMMED},
            }
        )
    return rows


def _sum(values: Sequence[float | None]) -> float | None:
    """Sum of values; None where one is unknown."""
    return None if None in values else sum(filter(None, values))


def _kinds(run: FleetRun, prices: Prices | None) -> list[dict[str, Any]]:
    """Return the account of each kind of units by its keys in the command line's JSON."""
    rows = []
    tokens = [
        kind_shares(run, number) @ service_minutes(run, number).served_tokens.to_numpy()
        for number in range(len(run.queues))
    ]
    served = np.sum(tokens, axis=0)
    for kind, tokens_of in zip(run.kinds, served.tolist(), strict=True):
        part = replace(run, kinds=(kind,))
        results = {
            **_sizes(part),
            **_chip_hours(part),
            "served_tokens": tokens_of,
            **_training(part),
            **_changes(part),
            **_power(part, prices),
        }
        rows.append({"kind": kind.name, **results, **_money(results, part, [], prices)})
    return rows


def jobs_frame(run: FleetRun) -> pd.DataFrame:
    """Return the progress, stops and goodput of the training jobs, one row a job."""
    rows = [
        {
            **({"kind": kind.name} if len(run.kinds) > 1 else {}),
            "job": job.name,
            **({"team": job.team} if any(one.team for one, _ in kind.jobs) else {}),
            "tokens": tally.tokens if job.rated else None,
            "steps": tally.tokens / job.step_tokens if job.rated else None,
            "lost_tokens": tally.lost_tokens if job.rated else None,
            "goodput": tally.useful_unit_ms / tally.held_unit_ms if tally.held_unit_ms else 0.0,
            "chip_hours": tally.held_unit_ms * kind.chips_per_unit / HOUR_MS,
            "starts": tally.starts,
            "resizes": tally.resizes,
            "reclaims": tally.reclaims,
            "failures": tally.failures,
            "finished_h": tally.finished_s / 3600.0,
            "deadline_h": job.deadline_s / 3600.0,
            "in_time": tally.finished_s <= job.deadline_s if job.deadline_s < math.inf else None,
        }
        for kind in run.kinds
        for job, tally in kind.jobs
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
            **({"kind": kind.name} if len(run.kinds) > 1 else {}),
        }
        for kind in run.kinds
        for change in kind.changes
    ]
    columns = ["ordered_s", "units", "from", "to", "latency_s", "arrived"]
    return pd.DataFrame(rows, columns=[*columns, *(["kind"] if len(run.kinds) > 1 else [])])


def service_moves(run: FleetRun) -> int:
    """Number of moves of units between services that share weights; they cost nothing."""
    # In each minute the whole units of a pool are divided among its services by their share of the
    # work, the largest remainders first; a unit that gets another service than before has moved.
    moves = 0
    for kind in run.kinds:
        for pool in (each for each in kind.pools if len(each.services) > 1):
            units = kind.service_units[:, list(pool.services)]
            whole = np.floor(units)
            rest = np.rint(units.sum(axis=1) - whole.sum(axis=1)).astype(np.int64)
            order = np.argsort(np.argsort(whole - units, axis=1, kind="stable"), axis=1)
            divided = whole + (order < rest[:, None])
            moves += int(np.maximum(np.diff(divided, axis=0), 0.0).sum())
    return moves


def weight_changes(run: FleetRun) -> int:
    """Number of units that went from serving one pool's weights straight to another's."""
    return sum(
        change.units
        for kind in run.kinds
        for change in kind.changes
        if change.source == "serving" and change.target in {pool.name for pool in kind.pools}
    )


def regret(
    policy: Mapping[str, Any], oracle: Mapping[str, Any], static: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare a policy with foresight under the same costs, and with a split that never changes."""
    # Each argument is the ``summary`` of a run. ``captured`` is the policy's gain in training
    # chip-hours over the static split, as a share of the gain that foresight has.
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
    return {
        "chips": run.chips,
        "units": run.units,
        "minutes": run.minutes,
        "chip_hours": run.chips * run.minutes / 60.0,
    }


def _chip_hours(run: FleetRun) -> dict[str, Any]:
    total = role_chip_ms(run)[-1]
    groups: dict[str, Any] = {}
    # The chip-hours of every group are rounded to a multiple of the last binary place of the total,
    # as the difference of two running sums. So the floats add up to the total without an error, in
    # any order.
    place = Fraction(math.ulp(run.chips * run.minutes / 60.0))
    chip_ms, before = 0, 0
    for name, roles in GROUPS.items():
        chip_ms += sum(int(total[role]) for role in roles)
        after = round(Fraction(chip_ms, HOUR_MS) / place)
        groups[f"{name}_chip_hours"] = float((after - before) * place)
        before = after
    by_role = dict(zip(ROLES, (total / HOUR_MS).tolist(), strict=True))
    if any(kind.blocks for kind in run.kinds):
        groups["chip_hours"] = float(before * place)
        rows = [block.document(kind.name) for kind in run.kinds for block in kind.blocks]
        groups |= {"reservations": rows, "reserved_usd": _sum([row["cost_usd"] for row in rows])}
    else:
        del by_role["absent"]
    return {**groups, "chip_hours_by_role": by_role}


def holes(run: FleetRun) -> dict[str, Any]:
    """Return the chip-hours that units lose as they are used whole, and their price."""
    # A gang takes whole units. Serving rounds up to them where its replicas would fill parts of
    # one, replicas may not fill a unit, and servers beside a lost one wait for its repair. The need
    # is counted in units of the first kind, whatever serves.
    first, rounding, unused, beside, usd = run.kinds[0], 0.0, 0.0, 0.0, 0.0
    for number, pool in enumerate(first.pools):
        service = first.services[pool.services[0]]
        need = run.load[list(pool.services)].sum(axis=0)
        parts = max(1.0, service.replicas / service.group)
        whole = np.ceil(need - 1e-9) - np.ceil(need * parts - 1e-9) / parts
        rounding += float(whole.sum()) / 60 * first.chips_per_unit
        for kind in run.kinds:
            each = kind.services[pool.services[0]]
            idle = kind.chips_per_unit - each.replicas * each.replica_chips
            unit_ms = int(kind.spent_server_ms[-1, len(Role) + number]) / kind.servers
            lost = unit_ms / HOUR_MS * idle if each.replica_chips and idle > 0 else 0.0
            unused, usd = unused + lost, usd + lost * kind.economics.usd_per_chip_s
    usd += rounding * first.economics.usd_per_chip_s
    for kind in run.kinds:
        chips = kind.chips_per_unit / kind.servers
        lost = kind.ledger.beside_lost_server_ms / HOUR_MS * chips
        beside, usd = beside + lost, usd + lost * kind.economics.usd_per_chip_s
    total = rounding + unused + beside
    return {
        "chip_hours": total,
        "share": total / (int(role_chip_ms(run)[-1, : Role.ABSENT].sum()) / HOUR_MS),
        "rounding_chip_hours": rounding,
        "unused_chip_hours": unused,
        "beside_lost_chip_hours": beside,
        "cost_usd": usd * 3600.0
        if all(kind.economics.usd_per_chip_s for kind in run.kinds)
        else None,
    }


def _service(run: FleetRun) -> dict[str, Any]:
    each = [service_minutes(run, number) for number in range(len(run.queues))]
    kept = attainment(each)
    offered = sum(int(minutes.offered_requests.sum()) for minutes in each)
    good = sum(float((minutes.offered_requests * minutes.attainment).sum()) for minutes in each)
    waits = np.concatenate([minutes.wait_s for minutes in each])
    tokens = {
        f"{kind}_tokens": sum(int(minutes[f"{kind}_tokens"].sum()) for minutes in each)
        for kind in ("offered", "served", "shed")
    }
    worst, first = worst_window(run.queues, kept)
    begins = run.demand.index[first].strftime("%Y-%m-%dT%H:%M")
    return {
        "slo_attainment": good / offered if offered else 1.0,
        "slo_attainment_worst_15min": worst,
        "slo_attainment_worst_15min_from": begins if worst < 1 else None,
        "slo_attainment_by_service": {
            name: _weighted(minutes.attainment, minutes.offered_requests)
            for name, minutes in zip(run.demand.services, each, strict=True)
        },
        **tokens,
        "queued_tokens": sum(int(minutes.queued_tokens.iloc[-1]) for minutes in each),
        "served_output_tokens": sum(int(minutes.output_tokens.sum()) for minutes in each),
        "longest_wait_s": float(waits.max(initial=0.0)),
    }


def _weighted(values: Any, weights: Any) -> float:
    """Weighted mean; 1 where all weights are zero."""
    return float((values * weights).sum() / weights.sum()) if weights.sum() else 1.0


def _training(run: FleetRun) -> dict[str, Any]:
    """Goodput, tokens, deadlines and restarts of training; None where no throughput is known."""
    # Unit-time of several kinds is added up by their chips.
    first = run.kinds[0].chips_per_unit
    sized = [(kind.chips_per_unit / first, kind.jobs) for kind in run.kinds]
    held = sum(size * tally.held_unit_ms for size, jobs in sized for _, tally in jobs)
    useful = sum(size * tally.useful_unit_ms for size, jobs in sized for _, tally in jobs)
    evaluated = [
        int(role_server_ms(kind)[-1, Role.EVALUATION]) / (MS * kind.servers) * job.rate(1)
        for kind in run.kinds
        if (job := kind.evaluation) and job.rated
    ]
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
            tally.finished_s <= job.deadline_s < math.inf for job, tally in run.jobs
        ),
        "training_restarts": sum(tally.starts for _, tally in run.jobs),
        "evaluation_tokens": sum(evaluated) if evaluated else None,
    }


def _changes(run: FleetRun) -> dict[str, Any]:
    frame, late_ms = changes_frame(run), max(kind.maintenance_late_ms for kind in run.kinds)
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
        "maintained_units": sum(kind.maintained for kind in run.kinds),
        **({"maintenance_late_s": late_ms / MS} if late_ms else {}),
    }


def _power(run: FleetRun, prices: Prices | None) -> dict[str, Any]:
    draws = [_kind_w(run, kind) for kind in run.kinds]
    draw: FloatArray = np.sum(draws, axis=0)
    energy = float(draw.sum() * 60.0)
    here = [] if prices is None else [prices.within(kind.region) for kind in run.kinds]
    drawn = {
        "energy_joules": energy,
        "power_mean_w": float(draw.mean()),
        "power_peak_w": float(draw.max()),
        "power_ramp_15min_w": float(np.abs(change_w(draw)).max()),
        "carbon_kg": energy * run.kinds[0].economics.carbon_kg_per_j or None,
        "electricity_usd": None,
    }
    if here:
        parts = list(zip(here, draws, strict=True))
        drawn["electricity_usd"] = sum(each.cost_usd(part_w) for each, part_w in parts)
        carbon = _sum([each.carbon_kg(part_w) for each, part_w in parts])
        drawn["carbon_kg"] = drawn["carbon_kg"] if carbon is None else carbon
    return {
        # Nothing is known of a site with machines whose power is not stated.
        **(drawn if all(kind.unit_busy_w for kind in run.kinds) else dict.fromkeys(drawn)),
        "training_usd_per_mwh": None if prices is None else _paid_by_training(run, prices),
        "held_minutes": int(np.any([each.dear for each in here], axis=0).sum()),
    }


def _over_cap(run: FleetRun) -> dict[str, Any]:
    """Return the minutes above the cap on power, and the most above it; nothing without a cap."""
    if np.isinf(run.cap_w).all():
        return {}
    above_w = power_w(run) - run.cap_w
    over = above_w > 1e-9 * run.cap_w
    most_w = float(above_w.max(initial=0.0, where=over))
    return {"over_cap_minutes": int(over.sum()), "over_cap_w": most_w}


def _paid_by_training(run: FleetRun, prices: Prices) -> float | None:
    """Mean price of electricity, weighted by the draw of training and evaluation [USD/MWh]."""
    works = [Role.TRAINING, Role.EVALUATION]
    comparable = all(kind.unit_busy_w for kind in run.kinds)
    paid: FloatArray = np.zeros(2)
    for kind in run.kinds:
        # Kinds count alike where the power of one is not stated.
        unit_w = kind.unit_busy_w if comparable else 1.0
        trains = kind_units(kind)[:, works].sum(axis=1) * unit_w
        paid += trains @ prices.within(kind.region).usd_per_mwh, trains.sum()
    return float(paid[0] / paid[1]) if paid[1] else None


def _money(
    results: Mapping[str, Any],
    run: FleetRun,
    kinds: Sequence[Mapping[str, Any]],
    prices: Prices | None,
) -> dict[str, Any]:
    """Return costs and prices; ``kinds`` are the accounts of several kinds."""
    each = [
        _cost_usd(row, run, kind) for row, kind in zip(kinds or [results], run.kinds, strict=True)
    ]
    cost = sum(each) if all(each) else 0.0  # unknown where the price of a kind is
    share, evaluated = _shares(kinds or [results], each)
    economics = run.kinds[0].economics
    tokens, steps = results["served_tokens"], results["training_steps"]
    has_cost = cost > 0
    trained_tokens, electricity = results["training_tokens"], results["electricity_usd"] or 0.0
    unknown = prices is not None and results["electricity_usd"] is None
    revenue = tokens / 1e6 * economics.usd_per_million_tokens
    if "batch" in results:
        tokens += results["batch"]["served_tokens"]
        revenue += results["batch"]["revenue_usd"] or 0.0
    return {
        **({"serving_cost_share": share} if len(each) > 1 and has_cost else {}),
        "cost_usd": cost if has_cost else None,
        "cost_with_electricity_usd": (
            cost + electricity if (has_cost or electricity) and not unknown else None
        ),
        "revenue_usd": revenue or None,
        "margin_usd": (
            revenue - cost - electricity if revenue and has_cost and not unknown else None
        ),
        "usd_per_million_trained_tokens": (
            cost * (1 - share) / trained_tokens * 1e6 if has_cost and trained_tokens else None
        ),
        "usd_per_million_trained_tokens_without_evaluation": (
            cost * (1 - share - evaluated) / trained_tokens * 1e6
            if has_cost and trained_tokens and evaluated
            else None
        ),
        "usd_per_million_tokens": cost * share / tokens * 1e6 if has_cost and tokens else None,
        "usd_per_training_step": cost * (1 - share) / steps if has_cost and steps else None,
    }


def _cost_usd(results: Mapping[str, Any], run: FleetRun, kind: World) -> float:
    """Price of a kind of units, reserved ones in advance for all of their time; 0 if unknown."""
    if not kind.blocks:
        return float(results["chip_hours"] * 3600.0 * kind.economics.usd_per_chip_s)
    units = kind.units - max(block.units for block in kind.blocks)
    steady = units * kind.chips_per_unit * run.minutes * 60.0 * kind.economics.usd_per_chip_s
    return steady + sum(block.usd for block in kind.blocks) if steady else 0.0


def _shares(kinds: Sequence[Mapping[str, Any]], costs_usd: Sequence[float]) -> tuple[float, float]:
    """Shares of the costs of serving and training that are for serving, and for evaluation."""
    # Costs of kinds that did neither are divided in proportion, as other idle time is.
    served = np.array([row["inference_chip_hours"] for row in kinds])
    worked = served + np.array([row["training_chip_hours"] for row in kinds])
    evaluated = np.array([row["chip_hours_by_role"]["evaluation"] for row in kinds])
    shares = np.divide([served, evaluated], worked, out=np.zeros((2, len(kinds))), where=worked > 0)
    weights = np.where(worked > 0, costs_usd, 0.0)
    serving, evaluation = shares @ (weights / (weights.sum() or 1.0))  # one kind weighs exactly 1
    return float(serving), float(evaluation)
