"""Batch tier of a scenario: the requests that may wait, and a unit's rate of answering them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.errors import InputError
from workloads.demand import Demand
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.inputs.batch import BatchTier, BatchWork
from workloads.fleet.state.services import Service, pools_from

NAME = "batch"


def interactive(demand: Demand, tier: BatchTier | None) -> Demand:
    """Return the demand without the share of its requests that may wait."""
    return demand.times(1 - tier.share) if tier is not None and tier.share else demand


def batch_work(
    demand: Demand, stated: Demand | None, services: Sequence[Service], tier: BatchTier | None
) -> BatchWork | None:
    """Return the batch work of a run.

    Parameters
    ----------
    demand : Demand
        Interactive requests of the run, of which the tier may be a share.
    stated : Demand, optional
        The tier's requests in the run where it has a demand of its own.
    services : sequence of Service
        Services of one model, whose weights the batch work uses as well.
    tier : BatchTier, optional
        None for a fleet without batch work.

    Raises
    ------
    InputError
        For services of several models, and a stated demand that is shorter than the run.
    """
    if tier is None:
        return None
    if len(pools_from(services)) > 1:
        raise InputError(
            f"a batch tier on a fleet that serves {len(pools_from(services))} models; its requests "
            "need one model. Give one --model."
        )
    tier_demand = demand.times(tier.share / (1 - tier.share)) if stated is None else stated
    if tier_demand.minutes < demand.minutes:
        raise InputError(
            f"a batch demand of {tier_demand.minutes / MINUTES_PER_DAY:.3g} days for a run of "
            f"{demand.minutes / MINUTES_PER_DAY:.3g}; give one that is as long."
        )
    joined = _one_service(tier_demand.between(0, demand.minutes))
    capacity = services[0].capacity
    work = capacity.work(joined.prompt_tokens[0], joined.output_tokens[0])
    return BatchWork(joined, capacity.rate_max_per_s / work, tier.deadline_minutes)


def _one_service(demand: Demand) -> Demand:
    """Join the services of a demand, with the mean lengths of their requests."""
    total = demand.requests.sum(axis=0, keepdims=True)
    weights = np.where(total > 0, demand.requests, 1.0)
    prompt, output = (
        (weights * column).sum(axis=0, keepdims=True) / weights.sum(axis=0, keepdims=True)
        for column in (demand.prompt_tokens, demand.output_tokens)
    )
    return replace(
        demand, services=(NAME,), requests=total, prompt_tokens=prompt, output_tokens=output
    )
