"""Ops: a rank's steps as a table of columns, which repeats and concatenates by array arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import HORIZON_PS
from topologies.arrays import BoolArray, IntArray
from topologies.errors import InputError
from workloads.training.layers.steps import LayerOp, back

NONE = -1


@dataclass(frozen=True, eq=False)
class Ops:
    """Steps of one rank in program order; each column has one element a step.

    Attributes
    ----------
    step : int32 array
        Number of the step among all different ones (``Catalog.steps``).
    back : int32 array
        Distance to the earlier op that it waits for, in ops; 0 for none.
    layer, microbatch : int32 array
        -1 where it belongs to none.
    """

    step: IntArray
    back: IntArray
    layer: IntArray
    microbatch: IntArray

    def __len__(self) -> int:
        return len(self.step)

    def of_layers(self, further: int) -> Ops:
        """Return the same ops for layers so many numbers further."""
        return replace(self, layer=np.where(self.layer < 0, NONE, self.layer + np.int32(further)))

    def later(self, microbatches: int) -> Ops:
        """Return the same ops for as many microbatches later."""
        return replace(self, microbatch=self.microbatch + np.int32(microbatches))


EMPTY = Ops(*(np.zeros(0, np.int32) for _ in range(4)))
"""No steps."""


class Catalog:
    """The different steps of all stages, numbered as they come; equal ones have one number.

    Attributes
    ----------
    steps : list of LayerOp
    """

    def __init__(self) -> None:
        self.steps: list[LayerOp] = []
        self._number: dict[LayerOp, int] = {}

    def ops(self, steps: Sequence[LayerOp]) -> Ops:
        """Ops of a block of steps."""
        if not steps:
            return EMPTY
        empty = np.full(len(steps), NONE, np.int32)
        return Ops(self.numbers(steps), np.array(back(steps), np.int32), empty, empty)

    def numbers(self, steps: Sequence[LayerOp]) -> IntArray:
        """Numbers of steps, int32 (steps,); new ones are added."""
        return np.array([self._of(step) for step in steps], np.int32)

    def _of(self, step: LayerOp) -> int:
        number = self._number.setdefault(step, len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        return number

    def _check_lengths(self) -> None:
        """Refuse a kernel that lasts longer than a run can, or moves more than can be counted."""
        for step in self.steps:
            if step.seconds * PS_PER_S > HORIZON_PS or step.size_bytes > HORIZON_PS:
                raise InputError(
                    f"{step.name} takes {step.seconds:.1e} s and {step.size_bytes:.1e} bytes; a "
                    f"run ends at {HORIZON_PS / PS_PER_S:.1e} s. Use a shorter --seq, a smaller "
                    "--microbatch, or more --tp or --cp."
                )

    def column(self, name: str) -> IntArray:
        """One attribute of all steps as integers; times in picoseconds."""
        self._check_lengths()
        if name == "duration_ps":
            values = [max(1, round(step.seconds * PS_PER_S)) for step in self.steps]
        else:
            values = [getattr(step, name) for step in self.steps]
        return np.array(values, np.int64)


def join(parts: Sequence[Ops]) -> Ops:
    """Join tables one after the other; the join of none is empty."""
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
    """Put blocks one after the other, each for a microbatch.

    Parameters
    ----------
    blocks : sequence of Ops
    which : int array (places,)
        Number of the block at each place.
    microbatch : int array (places,)
    """
    lengths = np.array([len(block) for block in blocks], np.int64)
    whole, length = join(blocks), lengths[which]
    first = (np.cumsum(lengths) - lengths)[which] - (np.cumsum(length) - length)
    at = np.repeat(first, length) + np.arange(int(length.sum()))
    number = np.repeat(microbatch.astype(np.int32), length)
    return Ops(whole.step[at], whole.back[at], whole.layer[at], number)


def repeat(block: Ops, layers: Sequence[int] | IntArray) -> Ops:
    """Repeat a block once for each of these layers, in that order."""
    count = len(layers)
    return Ops(
        step=np.tile(block.step, count),
        back=np.tile(block.back, count),
        layer=np.repeat(np.asarray(layers, np.int32), len(block)),
        microbatch=np.tile(block.microbatch, count),
    )


def past_asynchronous(ops: Ops, asynchronous: BoolArray) -> Ops:
    """Let ops wait for the op before an asynchronous one, rather than for that one itself.

    Parameters
    ----------
    ops : Ops
    asynchronous : bool array (ops,)
        Ops that those after them do not wait for.
    """
    at = np.arange(len(ops))
    latest = np.maximum.accumulate(np.where(asynchronous, NONE, at))
    before = np.concatenate([[NONE], latest[:-1]])
    distance = np.where(before < 0, 0, at - before)
    return replace(ops, back=np.where(ops.back == 1, distance, ops.back).astype(np.int32))


def edges(ops: Ops, stream: IntArray) -> tuple[IntArray, IntArray]:
    """Order within a rank: waiting for data, and the order of every stream.

    Parameters
    ----------
    ops : Ops
    stream : int array (ops,)

    Returns
    -------
    src, dst : int64 array (edges,)
        An edge of stream order that a chain of waits implies is left out.
    """
    at = np.arange(len(ops))
    waits = ops.back > 0
    chain = np.cumsum(ops.back != 1)
    order = np.argsort(stream.astype(np.int8), kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    needed = (chain[before] != chain[after]) & (after - ops.back[after] != before)
    src = np.concatenate([at[waits] - ops.back[waits], before[needed]])
    return src, np.concatenate([at[waits], after[needed]])
