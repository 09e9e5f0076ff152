"""Remedies for plans that are refused: the error names the nearest plan that works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model


@contextmanager
def remedied(
    stated: Mapping[str, Any], model: Model, cluster: Cluster, *, lnc: int | None = None
) -> Iterator[None]:
    """Add the nearest plan that works to the error of a plan; parameters as for ``nearest_plan``.

    Raises the refusal with that plan added; unchanged where it names the plan already,
    or where something other than the plan is wrong.
    """
    try:
        yield
    except InputError as mistake:
        from workloads.search.nearest import nearest_plan  # only a refusal needs the search

        changes = nearest_plan(stated, model, cluster, lnc=lnc)
        if not changes:
            raise
        changed_fields = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in changes.items()
        )
        if str(mistake).endswith(f" Use {changed_fields}."):
            raise  # the refusal names that very plan
        raise InputError(f"{mistake} The nearest plan that works: {changed_fields}.") from None
