"""Night question from the options of ``cluster-sim lend``."""

from __future__ import annotations

from topologies.errors import InputError
from topologies.units import parse_seconds
from workloads.fleet.lending.answer import Night
from workloads.options.fleet import FleetInputs
from workloads.options.lend import NightInputs
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


def limits_only(slo: str) -> str:
    """Return the latency limits of an SLO, without its share."""
    limits = [part for part in slo.split(",") if part.partition("=")[0].strip() in LIMIT_NAMES]
    return ",".join(limits) or FleetInputs.slo
