"""Exchanges: which ranks meet in which ops, and how long each call of theirs takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from topologies.arrays import IntArray, present
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.placement import Placement, geometries
from workloads.training.program.group_costs import GroupCosts
from workloads.training.program.ops import Catalog
from workloads.training.program.shared_memory import Draws, draws
from workloads.training.program.streams import Stream
from workloads.training.program.transfers import RETURNING

WITHIN = ("tp", "cp", "etp", "ep", "dp", "edp")
"""Axes whose groups lie within one stage."""
TRANSFERS = ("forward", "backward")
"""Beginnings of the axes of transfers between stages, which one rank sends and another receives."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A communication of many groups of ranks: each call starts when all who must are ready.

    Attributes
    ----------
    axis : str
    members : int64 array (groups, members)
        Ranks, by their row in the program.
    role : int64 array (members,)
        Which of ``ops`` each member does.
    ops : tuple of int64 array (calls,)
        For each role, its op of every call, in the stream of its stage.
    kind : int64 array (groups,)
        Row of ``duration_ps`` of each group.
    duration_ps : int64 array (kinds, calls)
    draws : Draws
        Bytes that each call draws from the memory of a member, arrays (kinds, calls).
    """

    axis: str
    members: IntArray
    role: IntArray
    ops: tuple[IntArray, ...]
    kind: IntArray
    duration_ps: IntArray
    draws: Draws

    @property
    def calls(self) -> int:
        """Communications of each group."""
        return len(self.ops[0])

    @cached_property
    def places(self) -> tuple[IntArray, ...]:
        """Columns of ``members`` of each role."""
        return tuple(np.flatnonzero(self.role == role) for role in range(len(self.ops)))


class Exchanges:
    """Finds which ranks meet in which op, axis by axis and stage by stage.

    Geometries of groups are worked out once an axis, those of pairs of stages once a pair, and
    costs of calls once for all stages that make the same calls on groups whole domains apart.

    Parameters
    ----------
    placement : Placement
    catalog : Catalog
    streams : tuple of Stream
        One a stage.
    memory_bytes_per_s : int
        Rate of a rank's memory; 0 where that is left out.
    per_token : int
        Experts of a token.
    costs : GroupCosts
    """

    def __init__(
        self,
        placement: Placement,
        catalog: Catalog,
        streams: tuple[Stream, ...],
        memory_bytes_per_s: int,
        per_token: int,
        costs: GroupCosts,
    ):
        self.placement, self.per_token, self.costs = placement, per_token, costs
        self.steps = catalog.steps
        self.streams = streams
        self.memory_bytes_per_s = memory_bytes_per_s
        self._worked_out: dict[tuple[bytes, ...], tuple[Draws, IntArray]] = {}

    def all(self) -> Iterator[Exchange]:
        """Every exchange that has a call."""
        stages = len(self.streams)
        for axis in WITHIN:
            if (axis, "") in self._calls:
                groups = self.placement.groups(axis)
                stage, geometry = self.placement.stage[groups[:, 0]], self._geometry(groups)
                for s in range(stages):
                    yield from self._within(axis, groups[stage == s], geometry[stage == s], s)
        if stages > 1:
            yield from self._pipeline(stages)
        yield from self._whole(stages)

    def _pipeline(self, stages: int) -> Iterator[Exchange]:
        """Transfers between a stage and its neighbours; with several chunks they go round."""
        pipes, plan = self.placement.groups("pp"), self.placement.plan
        round_about = stages if plan.vpp > 1 and not plan.pipeline.turns else stages - 1
        pairs = np.stack([pipes, np.roll(pipes, -1, axis=1)], axis=2)[:, :round_about]
        there, back = self._ways(pairs), self._ways(pairs[:, :, ::-1])
        for s in range(round_about):
            after = (s + 1) % stages
            yield from self._between("forward", *there[s], (s, after))
            yield from self._between("backward", *back[s], (after, s))
            yield from self._between("forward" + RETURNING, *back[s], (after, s))
            yield from self._between("backward" + RETURNING, *there[s], (s, after))
        ends = pipes[:, [0, -1]]
        yield from self._between("tie", ends, self._geometry(ends), (0, stages - 1))

    def _ways(self, pairs: IntArray) -> list[tuple[IntArray, IntArray]]:
        """Pairs of ranks, int64 (pipes, stages, 2), and their geometries, by stage."""
        stages = [pairs[:, s] for s in range(pairs.shape[1])]
        return [(groups, self._geometry(groups)) for groups in stages]

    def _whole(self, stages: int) -> Iterator[Exchange]:
        """Exchanges between ranks of all stages: a role for each stage."""
        ops = tuple(self._ops("norm", stage) for stage in range(stages))
        if len(ops[0]):
            groups = self.placement.groups("norm")
            role = self.placement.stage[groups[0]]
            yield self._exchange("norm", groups, self._geometry(groups), role, ops, 0)

    def _within(
        self, axis: str, groups: IntArray, geometry: IntArray, stage: int
    ) -> Iterator[Exchange]:
        op = self._ops(axis, stage)
        if len(op):
            role = np.zeros(groups.shape[1], np.int64)
            yield self._exchange(axis, groups, geometry, role, (op,), stage)

    def _between(
        self, axis: str, pairs: IntArray, geometry: IntArray, stages: tuple[int, int]
    ) -> Iterator[Exchange]:
        sends, receives = ("", "") if axis == "tie" else ("send", "receive")
        sent = self._ops(axis, stages[0], sends)
        if len(sent):
            ops = sent, self._ops(axis, stages[1], receives)
            yield self._exchange(axis, pairs, geometry, np.arange(2), ops, stages[0])

    def _ops(self, axis: str, stage: int, part: str = "") -> IntArray:
        """Ops of an axis in a stage; of the pipeline by microbatch.

        Of one microbatch a stage takes its chunks in the same order as its neighbours do.
        """
        number = self._calls.get((axis, part))
        rows = self._rows[stage][0 if number is None else number]
        if number is None:
            return rows[:0]
        if not part:
            return rows
        return rows[np.argsort(self.streams[stage].ops.microbatch[rows], kind="stable")]

    @cached_property
    def _numbers(self) -> IntArray:
        """Number of each step among ``_calls``, int8 (steps,); 0 for a kernel."""
        return np.array([self._calls[_axis_and_part(step)] for step in self.steps], np.int8)

    @cached_property
    def _calls(self) -> dict[tuple[str, str], int]:
        """Axes of steps and the parts that ranks have in their calls, numbered; kernels are 0."""
        parts = dict.fromkeys([("", ""), *(_axis_and_part(step) for step in self.steps)])
        return {part: number for number, part in enumerate(parts)}

    @cached_property
    def _rows(self) -> list[list[IntArray]]:
        """Ops of each stage by number among ``_calls``, in program order."""
        rows: list[list[IntArray]] = []
        for stream in self.streams:
            number = self._numbers[stream.ops.step]
            order = np.argsort(number, kind="stable")
            ends = np.cumsum(np.bincount(number, minlength=len(self._calls))).tolist()
            rows.append([order[low:high] for low, high in pairwise([0, *ends])])
        return rows

    def _geometry(self, groups: IntArray) -> IntArray:
        """Number of each group's geometry, int64 (groups,)."""
        return geometries(self.placement.cluster, self.placement.chip[groups])[1]

    def _exchange(
        self,
        axis: str,
        groups: IntArray,
        geometry: IntArray,
        role: IntArray,
        ops: tuple[IntArray, ...],
        stage: int,
    ) -> Exchange:
        kinds, kind = present(geometry)
        first = np.empty(len(kinds), np.int64)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        used, where = present(self.streams[stage].ops.step[ops[0]])
        drawn, lasts = self._costs(self.placement.chip[groups[first]], used)
        of_calls = Draws(*(column[:, where] for column in drawn))
        return Exchange(axis, groups, role, ops, kind, lasts[:, where], of_calls)

    def _costs(self, groups: IntArray, used: IntArray) -> tuple[Draws, IntArray]:
        """Draws and times [ps] of these steps on groups of these chips, arrays (groups, steps)."""
        key = used.tobytes(), *(self.costs.place_key(chips) for chips in groups)
        if key not in self._worked_out:
            steps = [self.steps[number] for number in used.tolist()]
            time_ps = [
                self.costs.times_ps(chips, steps, self.placement.plan, self.per_token)
                for chips in groups
            ]
            drawn_bytes = np.zeros((len(groups), len(steps)), np.int64)
            if self.memory_bytes_per_s:
                drawn_bytes[:] = [self.costs.drawn_bytes(chips, steps) for chips in groups]
            self._worked_out[key] = draws(drawn_bytes, np.array(time_ps), self.memory_bytes_per_s)
        return self._worked_out[key]


def _axis_and_part(step: LayerOp) -> tuple[str, str]:
    """Axis of a step, and where it is a transfer whether its rank sends or receives."""
    return step.axis, step.name.rpartition(".")[2] if step.axis.startswith(TRANSFERS) else ""
