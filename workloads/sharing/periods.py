"""Periods in which the same jobs run, where jobs start at stated times or make stated steps.

Between two starts or ends nothing changes: each job makes steps at the rate that it has beside the
others that run. A step that is under way when a period ends counts by the part that is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

ROUNDING = 1e-12  # difference within which two times are one, relative to them


class Period(NamedTuple):
    """Time in which the same jobs run."""

    begin_s: float
    end_s: float
    running: tuple[int, ...]  # numbers of the jobs that run, ascending
    step_s: tuple[float, ...]  # time of a step of each of them [s]

    @property
    def length_s(self) -> float:
        """Length of the period [s]."""
        return self.end_s - self.begin_s

    def steps(self, number: int) -> float:
        """Return the steps that a job makes in the period."""
        if number not in self.running:
            return 0.0
        return self.length_s / self.step_s[self.running.index(number)]


def periods(
    starts_s: Sequence[float],
    steps: Sequence[float],
    step_times: Callable[[float, tuple[int, ...]], Sequence[float]],
    last_steps: int,
) -> Iterator[Period]:
    """Yield the periods from the first start to the last end of jobs.

    ``starts_s``, ``steps``: start of each job [s], and the steps that it makes; infinite for one
    that runs on until the others end, and for ``last_steps`` of the slowest after the last start.
    ``step_times``: function of the time [s] and of the jobs that run from it on; it returns the
    time of a step of each [s].

    Examples
    --------
    The second job starts after 4 s; a step takes 1 s, and 2 s where both run.

    >>> for each in periods([0, 4], [10, 3], lambda now_s, jobs: [len(jobs)] * len(jobs), 1):
    ...     each.begin_s, each.end_s, each.running, each.steps(0)
    (0, 4, (0,), 4.0)
    (4, 10, (0, 1), 3.0)
    (10, 13.0, (0,), 3.0)
    """
    waiting = sorted(range(len(starts_s)), key=lambda number: starts_s[number])
    now_s, last_start_s, left = 0.0, starts_s[waiting[-1]], dict[int, float]()
    while waiting or left:
        if not left:
            now_s = starts_s[waiting[0]]
        while waiting and starts_s[waiting[0]] <= now_s:
            number = waiting.pop(0)
            left[number] = steps[number]
        running = tuple(sorted(left))
        step_s = tuple(step_times(now_s, running))
        ends_s = [now_s + left[number] * each for number, each in zip(running, step_s, strict=True)]
        next_s = min([*ends_s, *(starts_s[number] for number in waiting[:1])])
        if math.isinf(next_s):  # all that run now run on
            next_s = max(now_s, last_start_s + last_steps * max(step_s))
            ends_s = [next_s] * len(running)
        period = Period(now_s, next_s, running, step_s)
        if period.length_s > 0:
            yield period
        for number, end_s in zip(running, ends_s, strict=True):
            if math.isclose(end_s, next_s, rel_tol=ROUNDING):  # so that no splinter of it is left
                del left[number]
            else:
                left[number] -= period.steps(number)
        now_s = next_s
