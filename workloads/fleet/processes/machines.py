"""Machines of a fleet: units that change roles as a whole, costs of changes, and failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.policies.view import Limits
from workloads.fleet.processes.failures import Failures

SERVER_CHIPS = 16
"""Chips of a server where nothing states the servers of a unit."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """Units of a fleet, and the rules of their changes and failures.

    Attributes
    ----------
    units, chips_per_unit : int
        Number of UltraServers, or other units that change role as a whole, and their chips.
    costs : ChangeCosts, optional
        Costs of a change of role; by default the catalogue's.
    limits : Limits
        Bounds that hold for every policy.
    failures : Failures, optional
        By default nothing breaks.
    """

    units: int
    chips_per_unit: int = 64
    costs: ChangeCosts | None = None
    limits: Limits = field(default_factory=Limits)
    failures: Failures | None = None

    @property
    def change_costs(self) -> ChangeCosts:
        """Costs as given, or the catalogue's for units of this size."""
        return self.costs or ChangeCosts.from_catalogue(max(1, self.chips_per_unit // SERVER_CHIPS))

    @property
    def servers(self) -> int:
        """Servers of a unit where each fails on its own; else 1."""
        return self.failures.servers if self.failures else 1
