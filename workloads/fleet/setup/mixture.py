"""Several models on one fleet: the services of each model, and its share of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from topologies.errors import InputError
from workloads.demand import Demand
from workloads.models.model import Model


@dataclass(frozen=True, eq=False)
class Share:
    """A model with its share of a service's requests.

    Attributes
    ----------
    model : Model
    share : float, optional
        Share of the requests; by default all models have equal shares.
    """

    model: Model
    share: float | None = None


def divided(demand: Demand, shares: Sequence[Share]) -> tuple[Demand, tuple[Model, ...]]:
    """Return a demand with a model for each of its services.

    One model answers every service. As many models as services answer them in order. Several models
    for one service divide its requests; each then has a service of its own.

    Raises
    ------
    InputError
        For another number of models, or shares that do not add up to 1.

    Examples
    --------
    >>> from workloads.demand import constant
    >>> from workloads.models.huggingface import named
    >>> both = [Share(named("llama-3.1-405b"), 0.2), Share(named("llama-3.1-8b"), 0.8)]
    >>> demand, models = divided(constant(10.0, minutes=1), both)
    >>> demand.services, demand.requests[:, 0].tolist()
    (('llama-3.1-405b', 'llama-3.1-8b'), [2.0, 8.0])
    """
    models = tuple(each.model for each in shares)
    stated = [each.share for each in shares if each.share is not None]
    if len(models) == 1:
        _shares([each.share for each in shares])
        return demand, models * len(demand.services)
    if len(models) == len(demand.services) and not stated:
        return demand, models
    if len(demand.services) > 1:
        raise InputError(
            f"{len(models)} models for {len(demand.services)} services "
            f"({', '.join(demand.services)}); give one model, or one for each."
        )
    parts = _shares([each.share for each in shares])
    column = np.array(parts)[:, None]
    return (
        replace(
            demand,
            services=tuple(model.name for model in models),
            requests=demand.requests * column,
            prompt_tokens=np.repeat(demand.prompt_tokens, len(models), axis=0),
            output_tokens=np.repeat(demand.output_tokens, len(models), axis=0),
        ),
        models,
    )


def _shares(shares: Sequence[float | None]) -> list[float]:
    """Return shares that sum to 1; if none is stated, they are equal."""
    stated = [share for share in shares if share is not None]
    if not stated:
        return [1.0 / len(shares)] * len(shares)
    if len(stated) != len(shares) or abs(sum(stated) - 1) > 1e-6:
        raise InputError(
            f"shares of models {', '.join(f'{share:g}' for share in stated)}; give every model "
            "one, such as llama-3.1-405b=20%,llama-3.1-8b=80%, that add up to 1."
        )
    return stated
