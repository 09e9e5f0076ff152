"""Timeline of a run, minute by minute: roles, load, requests and tokens, latency, power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from topologies.arrays import FloatArray, IntArray
from workloads.economics import Economics
from workloads.fleet.processes.control import MINUTE_MS
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.ledger import ROLES, Role
from workloads.fleet.state.queues import Queue, split_tokens, waits_s

BUSY = (Role.TRAINING, Role.EVALUATION, Role.BATCH)
OFF = (Role.BROKEN,)
CHANGE_MINUTES = 15
"""Minutes over which reports state changes of power."""


@dataclass(frozen=True, eq=False)
class ServiceMinutes:
    """One service by the minute; all arrays are (minutes,).

    Requests and tokens are integers: offered ones were served, queued or shed. ``queued`` counts
    those that wait at the end of a minute.
    """

    name: str
    offered_requests: IntArray
    served_requests: IntArray
    queued_requests: IntArray
    shed_requests: IntArray
    offered_tokens: IntArray
    served_tokens: IntArray
    queued_tokens: IntArray
    shed_tokens: IntArray
    output_tokens: IntArray
    utilisation: FloatArray
    wait_s: FloatArray
    ttft_p99_s: FloatArray
    attainment: FloatArray


def role_units(run: FleetRun) -> FloatArray:
    """Mean number of units in each role in each minute; (minutes, 12)."""
    spent = role_server_ms(run)
    result: FloatArray = np.diff(spent, axis=0) / (MINUTE_MS * run.servers)
    return result


def role_server_ms(run: FleetRun) -> IntArray:
    """Server-milliseconds spent until each minute begins, by role; (minutes + 1, 12)."""
    roles = run.spent_server_ms[:, : len(Role)].copy()
    roles[:, Role.SERVING] += run.spent_server_ms[:, len(Role) :].sum(axis=1)
    return roles


def service_minutes(run: FleetRun, number: int) -> ServiceMinutes:
    """Return requests, tokens, latency and attainment of one service by the minute.

    Attainment counts the requests that arrive in a minute. A request that is shed misses the SLO;
    the others keep it with the probability that the capacity table has for the minute's utilisation
    and their wait.
    """
    queue, service = run.queues[number], run.services[number]
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
    kept = service.capacity.attained(utilisation, wait)
    admitted = np.where(queue.arrivals > 0, 1 - queue.shed / np.maximum(queue.arrivals, 1), 1.0)
    return ServiceMinutes(
        name=service.name,
        offered_requests=queue.arrivals,
        served_requests=queue.served,
        queued_requests=queue.backlog,
        shed_requests=queue.shed,
        offered_tokens=prompt + output,
        served_tokens=served,
        queued_tokens=queued,
        shed_tokens=shed,
        output_tokens=split_tokens(queue, output)[0],
        utilisation=utilisation,
        wait_s=wait,
        ttft_p99_s=service.capacity.ttft_quantile_s(utilisation, 0.99) + wait,
        attainment=kept * admitted,
    )


def power_w(run: FleetRun, economics: Economics) -> FloatArray:
    """Draw of the site in each minute [W].

    Units that train, evaluate or do batch work draw the busy power; units that serve lie between
    idle and busy by their utilisation; broken units are off; all others draw the idle power.
    """
    units = role_units(run)
    level = np.full(len(Role), economics.idle_w)
    level[list(BUSY)] = economics.busy_w
    level[list(OFF)] = 0.0
    draw = units @ level
    for number, queue in enumerate(run.queues):
        used = queue.served / np.maximum(queue.capacity, 1)
        draw += run.service_units[:, number] * used * (economics.busy_w - economics.idle_w)
    result: FloatArray = draw * run.chips_per_unit * economics.pue
    return result


def change_w(draw_w: FloatArray, minutes: int = CHANGE_MINUTES) -> FloatArray:
    """Change of power against ``minutes`` minutes before, 0 in the first ones; (minutes,) [W]."""
    change = np.zeros_like(draw_w)
    if 0 < minutes < len(draw_w):
        change[minutes:] = draw_w[minutes:] - draw_w[:-minutes]
    return change


def attainment(minutes: list[ServiceMinutes]) -> FloatArray:
    """Share of all services' requests in each minute that keep their SLO; 1 without requests."""
    offered = np.sum([each.offered_requests for each in minutes], axis=0)
    kept = np.sum([each.offered_requests * each.attainment for each in minutes], axis=0)
    result: FloatArray = np.where(offered > 0, kept / np.maximum(offered, 1), 1.0)
    return result


def timeline(run: FleetRun, economics: Economics) -> pd.DataFrame:
    """Return a table with one row a minute.

    Columns: ``time_utc``; mean units by role (``serving_units`` …); ``load_units`` that the demand
    needed; requests and tokens offered, served, queued (at the end of the minute) and shed;
    ``utilisation``; ``ttft_p99_s`` of the slowest service; ``slo_attainment``; ``power_w``. With a
    batch tier also its requests that arrived, were served, were late, and wait at the minute's end.
    """
    each = [service_minutes(run, number) for number in range(len(run.services))]
    columns: dict[str, object] = {"time_utc": run.demand.index}
    units = role_units(run)
    for number, role in enumerate(ROLES):
        columns[f"{role}_units"] = units[:, number]
    columns["load_units"] = run.load.sum(axis=0)
    if len(run.services) > 1:
        for number, minutes in enumerate(each):
            columns[f"{minutes.name}_units"] = run.service_units[:, number]
            columns[f"{minutes.name}_slo_attainment"] = minutes.attainment
    for what in ("requests", "tokens"):
        for kind in ("offered", "served", "queued", "shed"):
            columns[f"{kind}_{what}"] = np.sum(
                [getattr(minutes, f"{kind}_{what}") for minutes in each], axis=0
            )
    columns["utilisation"] = np.max([minutes.utilisation for minutes in each], axis=0)
    columns["ttft_p99_s"] = np.max([minutes.ttft_p99_s for minutes in each], axis=0)
    columns["slo_attainment"] = attainment(each)
    columns["power_w"] = power_w(run, economics)
    if run.batch is not None:
        for kind in ("arrivals", "served", "late", "waiting"):
            columns[f"batch_{kind}_requests"] = getattr(run.batch, kind)
    return pd.DataFrame(columns)


def worst_window(queues: tuple[Queue, ...], kept: FloatArray, minutes: int = 15) -> float:
    """Lowest attainment of any window of ``minutes`` minutes, weighted by requests."""
    offered = np.sum([queue.arrivals for queue in queues], axis=0).astype(float)
    width = min(minutes, len(kept))
    came = np.convolve(offered, np.ones(width), "valid")
    good = np.convolve(offered * kept, np.ones(width), "valid")
    return float(np.min(np.where(came > 0, good / np.maximum(came, 1e-300), 1.0)))
