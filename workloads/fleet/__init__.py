"""The fleet that serves by day and trains by night, from demand to a record of every minute.

Start with :func:`simulate`; :func:`summary` and :func:`timeline` read its result. A module is
loaded at the first use of one of its names, so that to list policies loads no simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.lazy import loader

if TYPE_CHECKING:
    from workloads.economics import Economics
    from workloads.fleet.inputs.costs import ChangeCosts
    from workloads.fleet.inputs.job_file import read_jobs
    from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, evaluation_job
    from workloads.fleet.inputs.prices import Prices, read_prices
    from workloads.fleet.policies.clock import clock
    from workloads.fleet.policies.forecasting import forecast
    from workloads.fleet.policies.headroom import lendable
    from workloads.fleet.policies.oracle import oracle
    from workloads.fleet.policies.power_capped import power_capped
    from workloads.fleet.policies.predictive import predictive
    from workloads.fleet.policies.price_aware import price_aware
    from workloads.fleet.policies.static import best_static, static
    from workloads.fleet.policies.threshold import threshold
    from workloads.fleet.policies.user_policy import load_policy
    from workloads.fleet.policies.view import Decision, Limits, Policy, View
    from workloads.fleet.processes.control import Signals
    from workloads.fleet.processes.failures import Failures
    from workloads.fleet.processes.machines import Fleet
    from workloads.fleet.results.summary import (
        changes_frame,
        chip_hours,
        jobs_frame,
        regret,
        summary,
    )
    from workloads.fleet.results.timeline import power_w, timeline
    from workloads.fleet.simulation import FleetRun, simulate
    from workloads.fleet.state.needs import scaled_to_fleet, units_needed
    from workloads.fleet.state.roles import GROUPS, ROLES, Role
    from workloads.fleet.state.services import Service

__all__ = [
    "GROUPS",
    "ROLES",
    "ChangeCosts",
    "Decision",
    "Economics",
    "Failures",
    "Fleet",
    "FleetRun",
    "Limits",
    "Policy",
    "Prices",
    "Role",
    "Service",
    "Signals",
    "TrainingJob",
    "View",
    "best_static",
    "changes_frame",
    "chip_hours",
    "clock",
    "default_jobs",
    "evaluation_job",
    "forecast",
    "jobs_frame",
    "lendable",
    "load_policy",
    "oracle",
    "power_capped",
    "power_w",
    "predictive",
    "price_aware",
    "read_jobs",
    "read_prices",
    "regret",
    "scaled_to_fleet",
    "simulate",
    "static",
    "summary",
    "threshold",
    "timeline",
    "units_needed",
]

_MODULES = {
    "workloads.economics": ("Economics",),
    "workloads.fleet.inputs.costs": ("ChangeCosts",),
    "workloads.fleet.inputs.job_file": ("read_jobs",),
    "workloads.fleet.inputs.jobs": ("TrainingJob", "default_jobs", "evaluation_job"),
    "workloads.fleet.inputs.prices": ("Prices", "read_prices"),
    "workloads.fleet.policies.clock": ("clock",),
    "workloads.fleet.policies.forecasting": ("forecast",),
    "workloads.fleet.policies.headroom": ("lendable",),
    "workloads.fleet.policies.oracle": ("oracle",),
    "workloads.fleet.policies.power_capped": ("power_capped",),
    "workloads.fleet.policies.predictive": ("predictive",),
    "workloads.fleet.policies.price_aware": ("price_aware",),
    "workloads.fleet.policies.static": ("best_static", "static"),
    "workloads.fleet.policies.threshold": ("threshold",),
    "workloads.fleet.policies.user_policy": ("load_policy",),
    "workloads.fleet.policies.view": ("Decision", "Limits", "Policy", "View"),
    "workloads.fleet.processes.control": ("Signals",),
    "workloads.fleet.processes.failures": ("Failures",),
    "workloads.fleet.processes.machines": ("Fleet",),
    "workloads.fleet.results.summary": (
        "changes_frame",
        "chip_hours",
        "jobs_frame",
        "regret",
        "summary",
    ),
    "workloads.fleet.results.timeline": ("power_w", "timeline"),
    "workloads.fleet.simulation": ("FleetRun", "simulate"),
    "workloads.fleet.state.needs": ("scaled_to_fleet", "units_needed"),
    "workloads.fleet.state.roles": ("GROUPS", "ROLES", "Role"),
    "workloads.fleet.state.services": ("Service",),
}
__getattr__ = loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
