"""Clusters of unlike chips that hold the stages of one pipeline, their chips numbered through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.duration.duration import geometries
from topologies.arrays import IntArray, distinct_rows
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT


class Side(NamedTuple):
    """Members of groups that lie on one of the clusters."""

    number: int  # number of the cluster
    chips: IntArray  # (groups, members): chips by their numbers on that cluster


@dataclass(frozen=True)
class Joined:
    """Clusters side by side, each with consecutive stages of one pipeline.

    The chips of a cluster are numbered behind those of the clusters before it.
    """

    clusters: tuple[Cluster, ...]
    stages: tuple[int, ...]  # stages on each cluster
    # Rate of the slower side's adapters over that of the network that joins the clusters
    oversubscription: float = 1.0

    @property
    def name(self) -> str:
        """Names of the clusters in the order of the pipeline."""
        return " + ".join(cluster.name for cluster in self.clusters)

    @cached_property
    def first(self) -> IntArray:
        """First chip of each cluster, int64 (clusters,)."""
        return np.cumsum([0, *(cluster.chips for cluster in self.clusters[:-1])])

    @cached_property
    def of_stages(self) -> IntArray:
        """Number of the cluster of each stage, int64 (stages,)."""
        return np.repeat(np.arange(len(self.stages)), self.stages)

    def held(self, number: int) -> range:
        """Return the stages of one cluster."""
        first = sum(self.stages[:number])
        return range(first, first + self.stages[number])

    def number(self, chips: IntArray) -> IntArray:
        """Return the number of the cluster of each chip."""
        return np.searchsorted(self.first, chips, side="right") - 1

    def part(self, plan: ParallelPlan, number: int) -> ParallelPlan:
        """Return a plan with the stages of one cluster only, which has its ranks and groups."""
        return replace(plan, pp=self.stages[number], stage_layers=(), vpp=1, schedule=DEFAULT)

    def sides(self, chips: IntArray) -> Iterator[Side]:
        """Yield the sides of groups of chips (groups, members) whose members lie alike."""
        numbers = self.number(chips[0])
        for number in np.unique(numbers).tolist():
            yield Side(number, chips[:, numbers == number] - self.first[number])

    def geometry(self, chips: IntArray) -> IntArray:
        """Number groups of chips (groups, members): those of one number take equally long."""
        # Between two clusters all transfers take the same time, wherever their ends lie.
        rows, pattern = distinct_rows(self.number(chips))
        columns = np.zeros((len(chips), len(self.clusters)), np.int64)
        for number in range(len(rows)):
            alike = np.flatnonzero(pattern == number)
            for side in self.sides(chips[alike]):
                if side.chips.shape[1] > 1:
                    of_side = geometries(self.clusters[side.number], side.chips)[1]
                    columns[alike, side.number] = of_side
        return distinct_rows(np.concatenate([pattern[:, None], columns], axis=1))[1]

    def domain(self, chips: IntArray) -> IntArray:
        """Return the domain of each chip, counted anew wherever the switches above repeat."""
        number = self.number(chips)
        repeats, sizes = (
            np.array(column)
            for column in zip(
                *((period(each), each.chips_per_domain) for each in self.clusters), strict=True
            )
        )
        return np.asarray((chips - self.first[number]) % repeats[number] // sizes[number])
