"""Kinds of policies: a name, a line about it, and how it is set up for a situation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.fleet.policies.view import Policy


@dataclass(frozen=True)
class Settings:
    """Settings of all policies; each policy reads its own.

    Attributes
    ----------
    headroom : float, optional
        Capacity above the need, as a share of it; by default the policy's own.
    hysteresis, hold_s : float, optional
        Slack of ``threshold``: what is idle by less, or for a shorter time, is kept.
    quantile : float
        Quantile of past errors that a forecast covers.
    night : tuple of float
        Hours (UTC) from and to which ``clock`` has night.
    night_share : float
        Share of the day's units that ``clock`` keeps at night.
    static_units : float, optional
        Units that ``static`` keeps, instead of what the busiest hour needs.
    price_share : float
        Share of the coming day, the cheapest, in which ``price`` trains: of its hours, or with
        ``mpc`` of the unit-time that serving leaves.
    power_cap_w : float, optional
        Draw of the site that ``power-cap`` and ``mpc`` keep to [W].
    """

    headroom: float | None = None
    hysteresis: float | None = None
    hold_s: float | None = None
    quantile: float = 0.999
    night: tuple[float, float] = (0.0, 8.0)
    night_share: float = 0.5
    static_units: float | None = None
    price_share: float = 0.5
    power_cap_w: float | None = None


@dataclass(frozen=True, eq=False)
class Situation:
    """The scenario that a policy is set up for.

    Attributes
    ----------
    need : float array (pools, minutes)
        Units that each minute of the run needs; only ``oracle``, ``static`` and ``clock`` look.
    lead_s, back_s : float
        From an order until a unit that trained serves, and from serving until it trains [s].
    ramp : int
        Most units that can be ordered in a minute, 0 for any number.
    priced : bool
        Whether prices of electricity are known.
    busy_share : float
        Part of its time for which a unit computes that serves what it can under the SLO.
    rest_units : float
        Units that evaluation and batch work can use beside training jobs.
    """

    need: FloatArray
    lead_s: float
    back_s: float
    ramp: int = 0
    priced: bool = False
    busy_share: float = 1.0
    rest_units: float = math.inf


@dataclass(frozen=True)
class PolicyKind:
    """A policy that can be asked for by name.

    Attributes
    ----------
    name, summary : str
    build : function of Settings and Situation
        Returns the policy.
    bound : str
        Name of the policy with foresight that it is compared with.
    """

    name: str
    summary: str
    build: Callable[[Settings, Situation], Policy]
    bound: str = "oracle"


def check_not_negative(**values: float) -> None:
    """Refuse settings below zero by their names."""
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{name} is {value}; it must be at least 0.")
