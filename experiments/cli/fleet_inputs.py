"""The options of ``cluster-sim fleet``, read into a scenario and a run of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import choose
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.errors import InputError
from topologies.units import parse_seconds
from workloads.demand import Demand, demand_of
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet import ChangeCosts, FleetRun, Limits
from workloads.fleet.inputs.economics import Economics
from workloads.fleet.inputs.prices import Prices, read_prices
from workloads.fleet.policy_by_name import policy_of
from workloads.fleet.scenario import Scenario, run, scenario
from workloads.fleet.state.services import Serving
from workloads.models.huggingface import model
from workloads.serving import parse_slo

NEVER = ("inf", "never")


def scenario_of(inputs: Mapping[str, Any]) -> Scenario:
    """Everything that the options say about the fleet, but its policy.

    Raises
    ------
    InputError
    """
    if inputs["failures"] not in ("on", "off"):
        raise InputError(f"--failures {inputs['failures']!r}; write on or off.")
    book = choose(inputs["variant"] or (), inputs["catalogue"])
    cluster = machine(inputs["cluster"], catalogue=book)
    made = scenario(
        cluster,
        _demand(inputs),
        model=model(inputs["model"]),
        serving=Serving(
            slo=parse_slo(inputs["slo"]),
            tp=inputs["tp"],
            chunk_tokens=inputs["chunk"],
            unit_rate_per_s=inputs["unit_rate"],
            cache=inputs["cache"],
        ),
        days=inputs["days"],
        start_day=inputs["start_day"],
        peak_share=inputs["peak"],
        noise=_noise(inputs["noise"]),
        training=inputs["training"],
        costs=_costs(cluster, inputs),
        limits=_limits(inputs),
        failing=inputs["failures"] == "on",
        economics=Economics.of(cluster, carbon_g_per_kwh=inputs["carbon"]),
        rng=np.random.default_rng([inputs["seed"], 1]),
    )
    return replace(made, prices=_prices(made, inputs))


def run_under(made: Scenario, policy: str, inputs: Mapping[str, Any]) -> FleetRun:
    """Run a scenario under a policy, set up as the options say.

    Raises
    ------
    InputError
    """
    chosen = policy_of(
        policy,
        made,
        headroom=inputs["headroom"],
        hysteresis=inputs["hysteresis"],
        hold_s=None if inputs["hold"] is None else _seconds(inputs["hold"], "--hold"),
        quantile=inputs["quantile"],
        night=_hours(inputs["night"]),
        night_share=inputs["night_share"],
        static_units=inputs["static_units"],
    )
    return run(made, chosen, seed=inputs["seed"])


def notes(made: Scenario, inputs: Mapping[str, Any]) -> list[str]:
    """What a reader of the results should know about the inputs."""
    known = 0 if made.history is None else made.history.minutes
    if inputs["policy"] != "forecast" or known >= MINUTES_PER_DAY:
        return []
    return [
        "the forecast knows no earlier day when the run begins, so its first hours are guesses; "
        "--start-day 1 gives it a day of history."
    ]


def _prices(made: Scenario, inputs: Mapping[str, Any]) -> Prices | None:
    cap = math.inf if inputs["price_cap"] is None else inputs["price_cap"]
    if inputs["price"] is not None:
        return read_prices(inputs["price"], made.demand.start, made.demand.minutes, cap=cap)
    if inputs["price_cap"] is not None:
        raise InputError(f"--price-cap {cap:g} without prices; add --price FILE.csv.")
    return None


def _demand(inputs: Mapping[str, Any]) -> Demand:
    minutes = _seconds(inputs["average"], "--average") / 60.0
    if minutes < 1 or not minutes.is_integer():
        raise InputError(
            f"--average {inputs['average']} is not a whole number of minutes; write 1min or 1h."
        )
    return demand_of(
        inputs["demand"] or ["azure-code"],
        service=inputs["service"],
        weights=inputs["weight"] or (),
        average_minutes=int(minutes),
        what_if=inputs["what_if"],
    )


def _limits(inputs: Mapping[str, Any]) -> Limits:
    return Limits(
        floor=inputs["floor"],
        cap=inputs["cap"],
        block=inputs["block"],
        changes_per_minute=inputs["changes_per_minute"],
        min_lease_s=_seconds(inputs["lease"], "--lease"),
        notice_s=_seconds(inputs["notice"], "--notice"),
        reserve=inputs["reserve"],
    )


def _costs(cluster: Cluster, inputs: Mapping[str, Any]) -> ChangeCosts:
    by_source = ChangeCosts.of(cluster, source=inputs["weights"])
    if inputs["change_time"] is None:
        return by_source
    return ChangeCosts.fixed(_seconds(inputs["change_time"], "--change-time"))


def _seconds(text: str, option: str) -> float:
    return math.inf if text.strip() in NEVER else parse_seconds(text, option)


def _noise(text: str) -> float | str:
    if text in ("none", "measured"):
        return 0.0 if text == "none" else text
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--noise {text!r}; write none, measured or a number such as 0.1."
        ) from None


def _hours(text: str) -> tuple[float, float]:
    try:
        first, last = (float(part) for part in text.split("-"))
    except ValueError:
        raise InputError(f"--night {text!r}; write hours such as 22-6.") from None
    if not (0 <= first <= 24 and 0 <= last <= 24):
        raise InputError(f"--night {text!r}; hours are 0 to 24.")
    return first, last
