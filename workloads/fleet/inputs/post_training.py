"""Post-training by reinforcement learning: rollouts and updates on units of their own.

A step makes a batch of rollouts with the served weights, updates the trained weights on it, and
sends them to the rollout units. With times t of rollouts r, update u and transfer w a step takes

    lockstep      t_r + t_u + t_w         rollouts wait for the newest weights
    one behind    max(t_r, t_u + t_w)     rollouts use the weights of one step before

in the steady state: one behind, a rollout runs beside the update and transfer of the step before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topologies.errors import InputError, suggestion

LOCKSTEP, BEHIND = "lockstep", "one-behind"
MODES = (LOCKSTEP, BEHIND)


@dataclass(frozen=True)
class Split:
    """Division of units between rollouts and updates.

    ``rollout_units, update_units``: units for rollouts, and for updates; with one unit alone it is
        the same unit in turn.
    ``rollout_s, update_s, transfer_s, step_s``: durations of the parts of a step, and of the step
        in the steady state [s].
    ``tokens_per_s``: trained tokens per second.
    """

    rollout_units: int
    update_units: int
    rollout_s: float
    update_s: float
    transfer_s: float
    step_s: float
    tokens_per_s: float

    @property
    def bound(self) -> str:
        """Name of the phase that takes longer: ``rollouts`` or ``updates``."""
        return "rollouts" if self.rollout_s > self.update_s + self.transfer_s else "updates"


@dataclass(frozen=True)
class PostTraining:
    """Rates of a post-training job.

    ``rollout_tokens_per_s, update_tokens_per_s``: rate of one unit that makes rollouts, and of one
        that updates the weights [1/s].
    ``transfer_s``: time from the end of an update until all rollout units hold its weights [s].
    ``step_tokens``: tokens of the rollouts of one step, prompts and answers together.
    ``mode``: ``lockstep`` or ``one-behind``.
    """

    rollout_tokens_per_s: float
    update_tokens_per_s: float
    transfer_s: float
    step_tokens: float
    mode: str = BEHIND

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(
                f"post-training {self.mode!r} is none of {', '.join(MODES)}."
                + suggestion(self.mode, MODES)
            )
        rates = (self.rollout_tokens_per_s, self.update_tokens_per_s, self.step_tokens)
        if min(rates) <= 0 or not 0 <= self.transfer_s < math.inf:
            raise InputError(
                f"post-training with rates of {rates[0]:g} and {rates[1]:g} tokens/s a unit, steps "
                f"of {rates[2]:g} tokens and a transfer of {self.transfer_s:g} s; rates and steps "
                "must be above 0, the transfer at least 0."
            )

    def on(self, rollout_units: int, update_units: int) -> Split:
        """Return the steady state with a number of rollout units and of update units.

        >>> job = PostTraining(100.0, 300.0, 10.0, 6000.0, LOCKSTEP)
        >>> job.on(3, 1).step_s, PostTraining(100.0, 300.0, 10.0, 6000.0).on(3, 1).step_s
        (50.0, 30.0)
        """
        rollout_s = self.step_tokens / (rollout_units * self.rollout_tokens_per_s)
        update_s = self.step_tokens / (update_units * self.update_tokens_per_s)
        step_s = max(rollout_s, update_s + self.transfer_s)
        if self.mode == LOCKSTEP:
            step_s = rollout_s + update_s + self.transfer_s
        return self._split(rollout_units, update_units, rollout_s, update_s, step_s)

    def best(self, units: int) -> Split:
        """Return the fastest division of ``units`` units between rollouts and updates.

        Among equally fast ones, the division with fewer rollout units is returned. One unit alone
        makes rollouts and updates in turn, whatever the mode. Raises InputError for no units.
        """
        if units < 1:
            raise InputError(f"post-training on {units} units; it needs at least one.")
        if units == 1:
            rollout_s = self.step_tokens / self.rollout_tokens_per_s
            update_s = self.step_tokens / self.update_tokens_per_s
            return self._split(1, 1, rollout_s, update_s, rollout_s + update_s + self.transfer_s)
        splits = (self.on(rollouts, units - rollouts) for rollouts in self._candidates(units))
        return min(splits, key=lambda split: (split.step_s, split.rollout_units))

    def _candidates(self, units: int) -> range:
        """Numbers of rollout units near the continuous optimum of the mode.

        The best whole number is among them.
        """
        rollout, update = self.rollout_tokens_per_s, self.update_tokens_per_s
        if self.mode == LOCKSTEP:
            share = math.sqrt(update) / (math.sqrt(update) + math.sqrt(rollout))
        else:
            # A step is shortest where both sides take as long: B/(x R) = B/((N - x) T) + w, a
            # quadratic in x, the rollout units, with one root between 0 and N.
            work = self.step_tokens
            linear = work / rollout + work / update + self.transfer_s * units
            square = linear**2 - 4 * self.transfer_s * work * units / rollout
            share = 2 * work / rollout / (linear + math.sqrt(square))
        middle = round(share * units)
        return range(max(1, middle - 2), min(units - 1, middle + 2) + 1)

    def _split(
        self, rollouts: int, updates: int, rollout_s: float, update_s: float, step_s: float
    ) -> Split:
        return Split(
            rollouts,
            updates,
            rollout_s,
            update_s,
            self.transfer_s,
            step_s,
            self.step_tokens / step_s,
        )
