"""Kinds of policies: a name, a summary, and a function that configures the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from topologies.arrays import FloatArray
from topologies.errors import InputError, shown, suggestion
from workloads.fleet.policies.view import Policy


@dataclass(frozen=True)
class Settings:
    """Settings of all policies; each policy reads its own.

    Attributes
    ----------
    headroom : float, optional
        Capacity above the need, as a share of the need; by default the policy's own.
    hysteresis, hold_s : float, optional
        Slack of ``threshold``: a smaller share of idle units, or units idle for less time, are
        kept.
    quantile : float
        Quantile of past errors that a forecast covers.
    night : tuple of float
        First and last hour (UTC) of the night of ``clock``.
    night_share : float
        Share of the day's units that ``clock`` keeps at night.
    static_units : float, optional
        Units that ``static`` keeps, instead of the need of the busiest hour.
    price_share : float
        Cheapest share of the coming day in which ``price`` trains; ``mpc`` takes it as a share of
        the unit-time that serving leaves.
    power_cap_w : float, optional
        Limit on the draw of the site for ``power-cap`` and ``mpc`` [W].
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
    """The part of a scenario that policies are configured by.

    Attributes
    ----------
    need : float array (pools, minutes)
        Units that each minute of the run needs; only ``oracle``, ``mpc-oracle``, ``static`` and
        ``clock`` read it.
    lead_s, back_s : float
        Time from an order until a unit that trained serves, and until one that served trains [s].
    ramp : int
        Most units that can be ordered in a minute, 0 for any number.
    priced : bool
        Whether prices of electricity are known.
    busy_share : float
        Share of its time for which a unit computes when it serves at the rate under the SLO.
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
    """A policy that users choose by name.

    Attributes
    ----------
    name, summary : str
    build : function of Settings and Situation
        Returns the policy, configured for a scenario.
    reads : tuple of str
        Fields of the settings that ``build`` reads; a run remarks on all others that were stated.
    bound : str
        Name of the policy with foresight that bounds this one from above.

    Raises
    ------
    InputError
        For a name in ``reads`` that is no field of the settings.
    """

    name: str
    summary: str
    build: Callable[[Settings, Situation], Policy]
    reads: tuple[str, ...] = ()
    bound: str = "oracle"

    def __post_init__(self) -> None:
        settings = [field.name for field in fields(Settings)]
        for name in self.reads:
            if name not in settings:
                remedy = suggestion(name, settings) or f" There are {', '.join(settings)}."
                raise InputError(
                    f"policy {self.name} reads {shown(name, 40)!r}, which is no field of "
                    f"Settings.{remedy}"
                )


def check_not_negative(**values: float) -> None:
    """Check that settings, passed by their names, are not below zero."""
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{name} is {value}; it must be at least 0.")
