"""Policies by name, configured for a scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workloads.fleet.policies.kind import Settings, Situation
from workloads.fleet.policies.registry import policy_named
from workloads.fleet.policies.view import Policy
from workloads.fleet.scenario import Scenario


def policy_of(
    name: str, scenario: Scenario, settings: Settings | None = None, **changes: Any
) -> Policy:
    """Return a policy by name, or a user's from a file, configured for a scenario.

    Parameters
    ----------
    name : str
        See :mod:`workloads.fleet.policies.registry`.
    scenario : Scenario
    settings : Settings, optional
    **changes
        Fields of the settings, such as ``headroom=0.2``.

    Raises
    ------
    InputError
    """
    costs = scenario.fleet.change_costs
    situation = Situation(
        need=scenario.need,
        lead_s=scenario.lead_s,
        back_s=costs.to_training_s,
        ramp=scenario.fleet.limits.changes_per_minute,
        priced=scenario.prices is not None,
        busy_share=max(
            service.capacity.rate_slo_per_s / service.capacity.rate_max_per_s
            for service in scenario.services
        ),
        rest_units=_rest_units(scenario),
    )
    return policy_named(name, replace(settings or Settings(), **changes), situation)


def _rest_units(scenario: Scenario) -> float:
    """Units that evaluation and batch work can use."""
    evaluating = sum(job.units for job in scenario.jobs if job.evaluation)
    return float(evaluating if scenario.batch is None else scenario.cluster.domains)
