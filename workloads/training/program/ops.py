"""Ops of a rank as a table of columns, which is repeated and concatenated by array arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import HORIZON_PS
from topologies.arrays import BoolArray, IntArray
from topologies.errors import InputError
from workloads.training.layers.steps import LayerOp, back

NONE = -1  # layer or microbatch of an op that belongs to none


@dataclass(frozen=True, eq=False)
class Ops:
    """Ops of one rank in program order, each of which runs one step."""

    step: IntArray  # (ops,): number of the op's step among all different ones (``Catalog.steps``)
    back: IntArray  # (ops,): distance to the earlier op that the op waits for, in ops; 0 for none
    # layer, microbatch: (ops,): layer and microbatch that the op belongs to; -1 for none
    layer: IntArray
    microbatch: IntArray

    def __len__(self) -> int:
        return len(self.step)

    def of_layers(self, further: int) -> Ops:
        """Return the same ops for other layers, whose numbers are higher by ``further``."""
        layer = np.where(self.layer < 0, NONE, self.layer + np.int32(further))
        return Ops(self.step, self.back, layer, self.microbatch)

    def later(self, microbatches: int) -> Ops:
        """Return the same ops for other microbatches, whose numbers are higher."""
        return Ops(self.step, self.back, self.layer, self.microbatch + np.int32(microbatches))


EMPTY = Ops(*(np.zeros(0, np.int32) for _ in range(4)))  # a table without ops


class Catalog:
    """The different steps of all stages, numbered in order of their first use."""

    def __init__(self) -> None:
        self.steps: list[LayerOp] = []
        self._number: dict[LayerOp, int] = {}

    def ops(self, steps: Sequence[LayerOp]) -> Ops:
        """Return a block of steps as ops, with the waits that the steps' ``after`` names."""
        if not steps:
            return EMPTY
        empty = np.full(len(steps), NONE, np.int32)
        return Ops(self.numbers(steps), np.array(back(steps), np.int32), empty, empty)

    def numbers(self, steps: Sequence[LayerOp]) -> IntArray:
        """Return the number of each step, int32 (steps,); new steps are added."""
        return np.array([self._number_of(step) for step in steps], np.int32)

    def _number_of(self, step: LayerOp) -> int:
        number = self._number.setdefault(step, len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        return number

    def _check_lengths(self) -> None:
        for step in self.steps:
            if step.seconds * PS_PER_S > HORIZON_PS or step.size_bytes > HORIZON_PS:
                raise InputError(
                    f"{step.name} takes {step.seconds:.1e} s and {step.size_bytes:.1e} bytes; a "
                    f"run ends at {HORIZON_PS / PS_PER_S:.1e} s. Use a shorter --seq, a smaller "
                    "--microbatch, or more --tp or --cp."
                )

    def column(self, name: str) -> IntArray:
        """Return one attribute of all steps, int64 (steps,); ``duration_ps`` is the time [ps]."""
        self._check_lengths()
        if name == "duration_ps":
            values = [max(1, round(step.seconds * PS_PER_S)) for step in self.steps]
        else:
            values = [getattr(step, name) for step in self.steps]
        return np.array(values, np.int64)


def join(parts: Sequence[Ops]) -> Ops:
    """Concatenate tables of ops; the result for no table is empty."""
    kept = [part for part in parts if len(part.step)]
    if len(kept) < 2:
        return kept[0] if kept else EMPTY
    return Ops(
        np.concatenate([part.step for part in kept]),
        np.concatenate([part.back for part in kept]),
        np.concatenate([part.layer for part in kept]),
        np.concatenate([part.microbatch for part in kept]),
    )


def sequence(blocks: Sequence[Ops], which: IntArray, microbatch: IntArray) -> Ops:
    """Concatenate blocks, each for a microbatch."""
    # ``which`` (places,): number of the block at each place. ``microbatch`` (places,): microbatch
    # of all ops of the block at each place.
    lengths = np.array([len(block) for block in blocks], np.int64)
    joined, length = join(blocks), lengths[which]
    # Row of ``joined`` for every row of the result: the block's first row, plus the row within it.
    first = (np.cumsum(lengths) - lengths)[which] - (np.cumsum(length) - length)
    row = np.repeat(first, length) + np.arange(int(length.sum()))
    number = np.repeat(microbatch.astype(np.int32), length)
    return Ops(joined.step[row], joined.back[row], joined.layer[row], number)


def repeat(block: Ops, layers: Sequence[int] | IntArray) -> Ops:
    """Repeat a block for each of these layers, in their order."""
    count = len(layers)
    return Ops(
        step=np.tile(block.step, count),
        back=np.tile(block.back, count),
        layer=np.repeat(np.asarray(layers, np.int32), len(block)),
        microbatch=np.tile(block.microbatch, count),
    )


def past_asynchronous(ops: Ops, asynchronous: BoolArray) -> Ops:
    """Let ops wait for the op before an asynchronous one, rather than for that one itself."""
    # ``asynchronous`` (ops,): ops that the ops after them do not wait for.
    row = np.arange(len(ops))
    latest = np.maximum.accumulate(np.where(asynchronous, NONE, row))
    before = np.concatenate([[NONE], latest[:-1]])
    distance = np.where(before < 0, 0, row - before)
    waits = np.where(ops.back == 1, distance, ops.back).astype(np.int32)
    return Ops(ops.step, waits, ops.layer, ops.microbatch)


def edges(ops: Ops, stream: IntArray) -> tuple[IntArray, IntArray]:
    """Return the dependencies within a rank: waits for data, and the order of every stream."""
    # ``stream`` (ops,): stream of each op.
    # Returns ``src, dst`` (edges,): op ``dst`` waits for op ``src``. An edge of a stream's order is
    # left out where a chain of waits implies it.
    row = np.arange(len(ops))
    waits = ops.back > 0
    # Ops with the same number are a chain, each of which waits for the one before it.
    chain = np.cumsum(ops.back != 1)
    order = np.argsort(stream.astype(np.int8), kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    needed = (chain[before] != chain[after]) & (after - ops.back[after] != before)
    src = np.concatenate([row[waits] - ops.back[waits], before[needed]])
    return src, np.concatenate([row[waits], after[needed]])
