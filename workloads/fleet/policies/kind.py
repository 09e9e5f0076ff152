"""Kinds of policies: a name, a summary, and a function that configures the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.arrays import FloatArray
from topologies.options import observed
from workloads.fleet.policies.view import Policy
from workloads.options.fleet import PolicyInputs


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
    build : function of PolicyInputs and Situation
        Returns the policy, configured for a scenario.
    bound : str
        Name of the policy with foresight that bounds this one from above.
    """

    name: str
    summary: str
    build: Callable[[PolicyInputs, Situation], Policy]
    bound: str = "oracle"

    @cached_property
    def reads(self) -> set[str]:
        """Options that the policy reads, observed as it is built for an hour of one unit."""
        options, read = observed(PolicyInputs(power_cap=1.0))
        self.build(options, Situation(np.ones((1, 60)), lead_s=60.0, back_s=60.0, priced=True))
        return read
