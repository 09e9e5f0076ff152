"""Fields of a plan that change nothing, because of its other fields or of the model."""

from __future__ import annotations

from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan

DEFAULTS = ParallelPlan()


def without_effect(plan: ParallelPlan, model: Model) -> dict[str, str]:
    """Return each field that differs from its default and changes nothing, with the reason.

    Such a field is no mistake, as sweeps and searches vary the degree that it belongs to, but who
    compares two plans by it should know.

    Examples
    --------
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(cp_exchange="all-gather", stage_layers=(32,))
    >>> without_effect(plan, named("llama-3.1-8b"))
    {'cp_exchange': 'cp is 1', 'stage_layers': 'pp is 1'}
    """
    dense = "the model has no experts" if model.experts is None else ""
    one_stage = "pp is 1" if plan.pp == 1 else ""
    reasons = {
        "etp": dense,
        "routing_skew": dense,
        "cp_exchange": "cp is 1" if plan.cp == 1 else "",
        "recompute_every": f"recompute is {plan.recompute}" if plan.recompute != "full" else "",
        "reshard": f"zero is {plan.zero}" if plan.zero < 2 else "",
        "schedule": one_stage,
        "stage_layers": one_stage,
    }
    return {
        name: reason
        for name, reason in reasons.items()
        if reason and getattr(plan, name) != getattr(DEFAULTS, name)
    }
