"""Groups of the ranks of a placement, and which of them take equally long."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.duration.geometry import geometries
from topologies.arrays import IntArray, present
from workloads.training.plan.placement import Placement


class Groups(NamedTuple):
    """Groups of ranks that make the same calls."""

    ranks: IntArray  # (groups, members)
    # (groups,): kind of each group; groups of one kind have the same geometry and take equally long
    kind: IntArray
    chips: IntArray  # (kinds, members): chips of the first group of each kind


class PlacedGroups:
    """Groups of a placement along each axis, computed once.

    They depend on degrees and places of ranks alone, so plans of any model and batch share them.
    """

    def __init__(self, placement: Placement):
        self.placement = placement
        self._within: dict[str, list[Groups]] = {}

    @staticmethod
    def key(placement: Placement) -> tuple[Hashable, ...]:
        """Return the values that the groups follow from."""
        plan = placement.plan
        degrees = (plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.expert_tp)
        return degrees, plan.order, plan.norm_axes, placement.chip  # type: ignore[return-value]

    def within(self, axis: str) -> list[Groups]:
        """Return the groups along an axis that lie within one stage, for each stage."""
        if axis not in self._within:
            ranks = self.placement.groups(axis)
            stage, geometry = self.placement.stage[ranks[:, 0]], self._geometry(ranks)
            self._within[axis] = [
                self._of_kinds(ranks[stage == s], geometry[stage == s])
                for s in range(self.placement.plan.pp)
            ]
        return self._within[axis]

    @cached_property
    def ahead(self) -> list[Groups]:
        """Pairs of ranks of each stage and of the next; the last stage pairs with the first."""
        pipes = self.placement.groups("pp")
        pairs = np.stack([pipes, np.roll(pipes, -1, axis=1)], axis=2)
        return self._of_stages(pairs)

    @cached_property
    def back(self) -> list[Groups]:
        """Pairs of ``ahead`` the other way round."""
        return self._of_stages(np.stack([pairs.ranks[:, ::-1] for pairs in self.ahead], axis=1))

    @cached_property
    def ends(self) -> Groups:
        """Pairs of the first and the last stage's ranks."""
        return self._groups(self.placement.groups("pp")[:, [0, -1]])

    @cached_property
    def norm(self) -> Groups:
        """Groups that add up the norm of the gradients."""
        return self._groups(self.placement.groups("norm"))

    def _of_stages(self, pairs: IntArray) -> list[Groups]:
        """Return the groups of each stage from pairs of ranks, int64 (pipelines, stages, 2).

        Geometries are found for all stages at once, apart from the last, whose pairs lead back over
        the whole pipeline: groups with equal distances are told apart faster.
        """
        count = len(pairs)
        by_stage = np.ascontiguousarray(pairs.transpose(1, 0, 2))
        onward = self._geometry(by_stage[:-1].reshape(-1, 2))
        last = self._geometry(by_stage[-1])
        geometry = [*onward.reshape(-1, count), last]
        return [self._of_kinds(*stage) for stage in zip(by_stage, geometry, strict=True)]

    def _groups(self, ranks: IntArray) -> Groups:
        return self._of_kinds(ranks, self._geometry(ranks))

    def _geometry(self, ranks: IntArray) -> IntArray:
        """Number of each group's geometry, int64 (groups,)."""
        return geometries(self.placement.cluster, self.placement.chip[ranks])[1]

    def _of_kinds(self, ranks: IntArray, geometry: IntArray) -> Groups:
        kinds, kind = present(geometry)
        first = np.empty(len(kinds), np.int64)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return Groups(ranks, kind, self.placement.chip[ranks[first]])
