"""Predicting collective rows: one operation on the first chips of as many machines as needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cluster_sim.collectives import Group
from cluster_sim.collectives.nccl import covers, nccl_ps
from cluster_sim.collectives.timing import duration_ps
from experiments.validation.columns import Value
from experiments.validation.outcome import Outcome
from topologies.clusters import Cluster
from topologies.errors import InputError
from topologies.machines import cluster

PS_PER_S = 10**12


def machines_for(name: str, chips: int) -> Cluster:
    """As many machines of a name as hold that many chips.

    Raises
    ------
    InputError
        For an unknown name, and for chips that do not fill whole machines when there are several.
    """
    one = cluster(name)
    if chips <= one.chips:
        return one
    count, rest = divmod(chips, one.chips)
    if rest:
        raise InputError(
            f"chips {chips} are not whole {name} of {one.chips}. "
            f"Use {count * one.chips} or {(count + 1) * one.chips}."
        )
    return cluster(f"{name}:{count}")


def predict(values: Mapping[str, Any] | Mapping[str, Value]) -> Outcome:
    """Time of the collective of one row [s], under ``time_s``."""
    row: Mapping[str, Any] = values
    whole = machines_for(row["cluster"], row["chips"])
    ranks = row["ranks"] or row["chips"]
    if ranks % row["chips"]:
        raise InputError(f"ranks {ranks} are not a multiple of chips {row['chips']}. Correct one.")
    group = Group(whole, np.arange(row["chips"]), ranks // row["chips"])
    algorithm = row["algorithm"] or "auto"
    if algorithm == "auto" and covers(whole):
        time_ps = nccl_ps(row["collective"], group, row["size_bytes"])
    else:
        time_ps = duration_ps(row["collective"], group, row["size_bytes"], algorithm)
    return Outcome({"time_s": time_ps / PS_PER_S}, provenance=_provenance(whole, row))


def _provenance(whole: Cluster, row: Mapping[str, Any]) -> dict[str, str]:
    """Grades of what the time was made of."""
    if whole.plain or whole.catalogue is None:
        return {"links": "stated"}
    numbers = whole.catalogue
    fits = f"nccl.{whole.chip}"
    if covers(whole):
        return {
            "links": numbers.entry(whole.chip, "scale_up_bandwidth").grade,
            "efficiency": numbers.entry(fits, "efficiency").grade,
            "algorithm": "assumed" if not row["algorithm"] else "stated",
        }
    return {
        quantity: numbers.entry(whole.chip, quantity).grade
        for quantity in ("link_bandwidth", "collective_step", "collective_efficiency")
        if numbers.has(whole.chip, quantity)
    }
