"""Night question from the options of ``cluster-sim lend``."""

from __future__ import annotations

import math
from dataclasses import replace

from topologies.errors import InputError
from topologies.units import parse_seconds
from workloads.fleet.lending.answer import Night
from workloads.options.fleet import FleetInputs, FleetOptions, NightInputs, PolicyInputs
from workloads.serving import parse_share, parse_slo

USUAL_SHARE = 0.999
"""Default share of a night's minutes in which demand stays within the kept units."""
LIMIT_NAMES = ("ttft", "tpot")


def night_from(inputs: NightInputs, slo: str) -> Night:
    """Return the night question from the options of a night.

    Parameters
    ----------
    inputs : NightInputs
    slo : str
        Text of the SLO; only its share is read here, as a share of the night's minutes.

    Raises
    ------
    InputError
    """
    window_s = parse_seconds(inputs.window, "--window")
    if window_s % 60 or window_s < 60:
        raise InputError(
            f"--window {inputs.window} is not a whole number of minutes; write 30min or 1h."
        )
    return Night(
        until=inputs.until,
        begin=inputs.begin or "",
        share=parse_slo(slo, share=USUAL_SHARE).share,
        confidence=parse_share(inputs.confidence, "--confidence"),
        window_minutes=int(window_s // 60),
    )


def for_lending(options: FleetOptions) -> FleetOptions:
    """Return options with all days of a history, and an SLO without its share.

    The share counts minutes of the night, not requests of the fleet.
    """
    parts = options.fleet.slo.split(",")
    limits = [part for part in parts if part.partition("=")[0].strip() in LIMIT_NAMES]
    days = math.inf if options.demand.days is None else options.demand.days
    return replace(
        options,
        policy=PolicyInputs(policy="static"),  # not used: lending asks no policy
        fleet=replace(options.fleet, slo=",".join(limits) or FleetInputs.slo),
        demand=replace(options.demand, days=days),
    )
