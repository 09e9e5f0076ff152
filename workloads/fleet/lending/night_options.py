"""The options of a night, read into the night question."""

from __future__ import annotations

from topologies.errors import InputError
from topologies.units import parse_seconds
from workloads.fleet.lending.answer import Night
from workloads.fleet_options import FleetInputs, NightInputs
from workloads.serving import parse_share, parse_slo

USUAL_SHARE = 0.999
"""Share of a night's minutes that stay within what is kept."""
LIMIT_NAMES = ("ttft", "tpot")


def night_from(inputs: NightInputs, slo: str) -> Night:
    """Return the question that the options of a night ask.

    Parameters
    ----------
    inputs : NightInputs
    slo : str
        Its share counts minutes of the night here.

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
    """Limits on latency without the share, which counts minutes of the night."""
    limits = [part for part in slo.split(",") if part.partition("=")[0].strip() in LIMIT_NAMES]
    return ",".join(limits) or FleetInputs.slo
