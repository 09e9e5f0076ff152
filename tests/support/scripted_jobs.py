"""Jobs of weeks with failures at scripted times, and what became of their time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workloads.job import Cause, FailureRates, Job, Outcome, Recovery, simulate

NEVER = FailureRates(())


def job(rates: FailureRates = NEVER, **changes: Any) -> Job:
    usual = Job(
        rates=rates,
        recovery=Recovery(restart_s=100, explicit_s=10, timeout_s=0, hang_share=0, repair_s=500),
        interval_s=1000, stall_s=20, write_s=0, units=4, spares=100, span_s=1e6,
    )  # fmt: skip
    return replace(usual, **changes)


def failing(mtbf_s: float, *, replaces: bool = False) -> FailureRates:
    return FailureRates((Cause("chip", 1 / mtbf_s, replaces),))


def run(trial: Job, seed: int = 0) -> Outcome:
    return simulate(trial, np.random.default_rng(seed))


class Scripted:
    """Stands for a generator: exponential draws come from a list, then never again."""

    def __init__(self, draws: Mapping[int, list[float]], place: int = -1) -> None:
        self.draws, self.place = draws, place

    def spawn(self, count: int) -> "list[Scripted]":
        return [Scripted(self.draws, place) for place in range(count)]

    def exponential(self, mean: float) -> float:
        left = self.draws.get(self.place, [])
        return left.pop(0) if left else 1e12

    def random(self) -> float:
        return 0.5


def scripted(trial: Job, failures: list[float], repairs: list[float] = []) -> Outcome:  # noqa: B006
    return simulate(trial, Scripted({0: list(failures), 2: list(repairs)}))  # type: ignore[arg-type]


def parts_s(outcome: Outcome) -> dict[str, float]:
    return {part: ms / 1000 for part, ms in outcome.parts_ms.items() if ms}
