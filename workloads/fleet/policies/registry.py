"""All built-in policies: a new one is a module with a ``KIND``, and one entry here."""

from __future__ import annotations

from topologies.errors import InputError, shown, suggestion
from topologies.registry import by_name
from workloads.fleet.policies import (
    clock,
    forecasting,
    oracle,
    power_capped,
    predictive,
    price_aware,
    static,
    threshold,
)
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.user_policy import load_policy
from workloads.fleet.policies.view import Policy
from workloads.options.fleet import PolicyInputs

KINDS: dict[str, PolicyKind] = by_name(
    "policy",
    (
        static.KIND,
        clock.KIND,
        threshold.KIND,
        forecasting.KIND,
        predictive.KIND,
        price_aware.KIND,
        power_capped.KIND,
        oracle.KIND,
        predictive.FORESIGHT,
    ),
)
"""Built-in policies by name."""


def check_name(name: str) -> None:
    """Check that a policy is built in or a Python file."""
    if not name.endswith(".py") and name not in KINDS:
        raise InputError(
            f"unknown policy {shown(name)!r}; choose {', '.join(KINDS)} or a file such as mine.py."
            + suggestion(name, KINDS)
        )


def bound_of(name: str) -> str:
    """Name of the policy with foresight that bounds a policy from above."""
    return KINDS[name].bound if name in KINDS else oracle.KIND.name


def policy_named(name: str, settings: PolicyInputs, situation: Situation) -> Policy:
    """Return a built-in policy by its name, or a user's from a file such as ``mine.py``."""
    if name.endswith(".py"):
        return load_policy(name)
    check_name(name)
    return KINDS[name].build(settings, situation)
