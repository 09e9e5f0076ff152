"""``PipelineSchedule``: all that the program needs to know about a pipeline schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workloads.training.plan.schedules.passes import Passes

ANY_NUMBER = range(1, 2**31)
ONLY_ONE = range(1, 2)


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule.

    Everything else follows from ``passes``: the simulated iteration, the activations that a stage
    holds at once, the estimate of the plan search.

    Attributes
    ----------
    name : str
        As a plan and the command line write it.
    title : str
        As figures and tables write it.
    passes : function of (pp, stage, microbatches, chunks)
        The passes of one stage in order. Every stage must take each microbatch forward and then
        backward through each of its chunks once, and stages must not wait for one another in a
        circle.
    splits_weights : bool
        Whether the backward pass leaves gradients of weights to a pass of their own, ``WEIGHT``.
    chunks_allowed : range
        Numbers of chunks of the model that a stage may hold (``vpp`` of a plan).
    chunks_searched : tuple of int
        The numbers of chunks that the plan search tries.
    searched : bool
        Whether the plan search tries the schedule without being asked to.
    title_of_chunks : str
        Title where a stage has several chunks; empty for ``title``.
    aliases : tuple of str
        Other names under which published measurements state it.
    source : str
        Where it was published.
    """

    name: str
    title: str
    passes: Callable[[int, int, int, int], Passes]
    splits_weights: bool = False
    chunks_allowed: range = ONLY_ONE
    chunks_searched: tuple[int, ...] = (1,)
    searched: bool = True
    title_of_chunks: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""

    def titled(self, chunks: int) -> str:
        """Return the title for stages of so many chunks."""
        return self.title_of_chunks if chunks > 1 and self.title_of_chunks else self.title
